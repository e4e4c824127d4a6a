//! G5, G9, G10, G16, G17, G18 against a model: any sequence of calls on `Requests` and on a map of deadlines by id must
//! give each request the same answer, each task its wake-up, and the same counts.

use crate::support::bell::Bell;
use crate::support::spans::{Choices, Span, choices, chosen, jump, span};
use proptest::prelude::*;
use request_purgatory::{
    Requests, WaitError, purgatory::RejectReason, purgatory::Rejected, time::Clock,
    time::ManualClock, tracker::Responded, tracker::ResponseFuture,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

const IDS: u8 = 6;
/// Above all numbers of requests: what one that fails has for its response, beside its id.
const FAILED: usize = 1 << 20;

/// Names a request, whatever became of it: that of this number, counted round and round.
type Pick = u16;

#[derive(Debug, Clone)]
enum Call {
    Request(u8, Span),
    Respond(u8),
    Touch(u8, Span),
    /// Every request with an id below fails.
    Fail(u8),
    Poll(Pick),
    Drop(Pick),
    /// The clock moves, and no thread drives the timer.
    Pass(Span),
    /// The clock moves, and the timer is driven.
    Advance(Span),
    Shutdown,
}

/// One request, and what is known of it.
struct Asked {
    request: ResponseFuture<u8, usize>,
    bell: Arc<Bell>,
    /// It was polled and told to wait, and has not been answered since.
    awaited: bool,
    /// Wake-ups that were due so far.
    wakes: usize,
    answer: Option<Result<usize, WaitError>>,
}

/// What `Stats` should say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    answered: u64,
    timed_out: u64,
    dropped: u64,
    shut_down: u64,
    rejected: u64,
    late: u64,
    unknown: u64,
}

/// Both, side by side.
struct Pair {
    choices: Choices,
    clock: ManualClock,
    real: Requests<u8, usize>,
    /// By number. `None` for those that were refused, dropped, or have resolved.
    asked: Vec<Option<Asked>>,
    /// Number and deadline by id; `None` never times out.
    pending: BTreeMap<u8, (usize, Option<u64>)>,
    /// How often requests with each id have ended without a response that has come since.
    ended: [usize; IDS as usize],
    closed: bool,
    counts: Counts,
}

impl Pair {
    fn new(choices: Choices) -> Self {
        let (builder, clock) = chosen!(Requests::builder("model"), choices);
        Self {
            choices,
            clock,
            real: builder.build().expect("no threads to refuse"),
            asked: Vec::new(),
            pending: BTreeMap::new(),
            ended: [0; IDS as usize],
            closed: false,
            counts: Counts::default(),
        }
    }

    fn deadline(&self, span: Span) -> Option<u64> {
        let now = self.clock.now().since_origin();
        self.choices.deadline(now, span.of(self.choices.tick))
    }

    /// Who asked hears of `answer` with the next poll.
    fn answer(&mut self, number: usize, answer: Result<usize, WaitError>) {
        if let Some(asked) = &mut self.asked[number] {
            asked.wakes += usize::from(std::mem::take(&mut asked.awaited));
            asked.answer = Some(answer);
        }
    }

    fn pick(&self, pick: Pick) -> Option<usize> {
        usize::from(pick).checked_rem(self.asked.len())
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::Request(id, span) => self.request(id, span),
            Call::Respond(id) => {
                let response = self.asked.len();
                let pending = self.pending.remove(&id);
                let ended = &mut self.ended[usize::from(id)];
                let expected = match pending {
                    Some((number, _)) => {
                        self.counts.answered += 1;
                        self.answer(number, Ok(response));
                        Responded::Delivered
                    }
                    None if *ended > 0 => {
                        *ended -= 1;
                        self.counts.late += 1;
                        Responded::Late(response)
                    }
                    None => {
                        self.counts.unknown += 1;
                        Responded::Unknown(response)
                    }
                };
                assert_eq!(self.real.respond(&id, response), expected);
            }
            Call::Fail(below) => {
                let failed = self
                    .real
                    .fail_where(|id| *id < below, |id| FAILED + usize::from(*id));
                let stays = self.pending.split_off(&below);
                let ended = std::mem::replace(&mut self.pending, stays);
                assert_eq!(failed, ended.len());
                for (id, (number, _)) in ended {
                    self.counts.dropped += 1;
                    self.ended[usize::from(id)] += 1;
                    self.answer(number, Ok(FAILED + usize::from(id)));
                }
            }
            Call::Touch(id, span) => {
                let deadline = self.deadline(span);
                let rescheduled = self.real.reschedule(&id, span.of(self.choices.tick));
                let pending = self.pending.get_mut(&id);
                assert_eq!(rescheduled, pending.is_some());
                if let Some(pending) = pending {
                    pending.1 = deadline;
                }
            }
            Call::Poll(pick) => {
                if let Some(number) = self.pick(pick) {
                    self.poll(number);
                }
            }
            Call::Drop(pick) => {
                if let Some(number) = self.pick(pick) {
                    self.asked[number] = None;
                    let ended = self.pending.iter().find(|(_, (other, _))| *other == number);
                    if let Some(id) = ended.map(|(id, _)| *id) {
                        self.pending.remove(&id);
                        self.ended[usize::from(id)] += 1;
                        self.counts.dropped += 1;
                    }
                }
            }
            Call::Pass(span) => self.clock.advance(span.of(self.choices.tick)),
            Call::Advance(span) => {
                self.clock.advance(span.of(self.choices.tick));
                self.advance();
            }
            Call::Shutdown => {
                self.real.shutdown();
                self.closed = true;
                for (id, (number, _)) in std::mem::take(&mut self.pending) {
                    self.ended[usize::from(id)] += 1;
                    self.counts.shut_down += 1;
                    self.answer(number, Err(WaitError::ShutDown));
                }
            }
        }
    }

    fn request(&mut self, id: u8, span: Span) {
        let number = self.asked.len();
        let duplicate = self.pending.contains_key(&id);
        let max = self.choices.max_parked;
        let full = max.is_some_and(|max| self.pending.len() >= max);
        let request = self.real.request(id, span.of(self.choices.tick));
        self.counts.rejected += u64::from(request.is_err());
        let asked = match request.map_err(Rejected::into_parts) {
            Err((RejectReason::ShutDown, back)) if self.closed => (back, None),
            Err((RejectReason::Duplicate, back)) if duplicate => (back, None),
            Err((RejectReason::Full, back)) if full && !duplicate => (back, None),
            Ok(request) if !self.closed && !duplicate && !full => {
                self.pending.insert(id, (number, self.deadline(span)));
                let asked = Asked {
                    request,
                    bell: Bell::new(),
                    awaited: false,
                    wakes: 0,
                    answer: None,
                };
                (*asked.request.id(), Some(asked))
            }
            other => panic!("{other:?}, full: {full}, duplicate: {duplicate}"),
        };
        assert_eq!(asked.0, id);
        self.asked.push(asked.1);
    }

    fn poll(&mut self, number: usize) {
        let Some(asked) = &mut self.asked[number] else {
            return;
        };
        let poll = asked.bell.poll(&mut asked.request);
        match asked.answer.take() {
            Some(answer) => {
                assert_eq!(poll, Poll::Ready(answer));
                self.asked[number] = None;
            }
            None => {
                assert_eq!(poll, Poll::Pending);
                asked.awaited = true;
            }
        }
    }

    fn advance(&mut self) {
        let now = self.choices.tick_at(self.clock.now().since_origin());
        let due = |deadline: Option<u64>| deadline.is_some_and(|deadline| deadline <= now);
        let mut timed_out = Vec::new();
        self.pending.retain(|id, (number, deadline)| {
            if due(*deadline) {
                self.ended[usize::from(*id)] += 1;
                timed_out.push(*number);
            }
            !due(*deadline)
        });
        assert_eq!(self.real.advance(), timed_out.len());
        for number in timed_out {
            self.counts.timed_out += 1;
            self.answer(number, Err(WaitError::Expired));
        }
    }

    /// All that can be asked without changing anything.
    fn compare(&self) {
        let stats = self.real.stats();
        let counts = Counts {
            answered: stats.completed,
            timed_out: stats.expired,
            dropped: stats.cancelled,
            shut_down: stats.shut_down,
            rejected: stats.rejected,
            late: self.real.late(),
            unknown: self.real.unknown(),
        };
        assert_eq!(counts, self.counts);
        assert_eq!(self.real.stats().parked, self.pending.len());
        for asked in self.asked.iter().flatten() {
            assert_eq!(asked.bell.rung(), asked.wakes);
        }
        let deadlines = self.pending.values().filter_map(|(_, deadline)| *deadline);
        let earliest = deadlines.min().map(|tick| self.choices.timestamp(tick));
        let next = self.real.next_deadline();
        assert_eq!(next.is_some(), earliest.is_some());
        assert!(next <= earliest, "{next:?}");
    }
}

fn call() -> impl Strategy<Value = Call> {
    let id = || 0..IDS;
    let pick = any::<Pick>;
    prop_oneof![
        8 => (id(), span()).prop_map(|(id, timeout)| Call::Request(id, timeout)),
        3 => id().prop_map(Call::Respond),
        2 => (id(), span()).prop_map(|(id, timeout)| Call::Touch(id, timeout)),
        1 => (0..=IDS).prop_map(Call::Fail),
        6 => pick().prop_map(Call::Poll),
        2 => pick().prop_map(Call::Drop),
        2 => jump().prop_map(Call::Pass),
        4 => jump().prop_map(Call::Advance),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn g10_any_sequence_of_calls_answers_as_a_map_does(
        choices in choices(),
        calls in prop::collection::vec(call(), 1..120),
        after in prop::collection::vec(call(), 0..20),
    ) {
        let mut pair = Pair::new(choices);
        for call in calls.into_iter().chain([Call::Shutdown]).chain(after) {
            pair.call(call);
            pair.compare();
        }
        for number in 0..pair.asked.len() {
            pair.poll(number);
            assert!(pair.asked[number].is_none(), "{number} has no answer");
        }
    }
}
