//! What should happen, on both purgatories, step by step: who is asked, in which order, and what waits until when.

use super::call::{Act, Answer, Reach, Setup};
use super::operation::{Because, Event, Outcome};
use super::real::is_picked;
use super::side::{End, Followed, Known, Parked, Side};
use request_purgatory::future::WaitError;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Who makes the calls of operations.
pub(crate) trait Calls {
    /// Makes a call, with all that it causes, for the operation with this number.
    fn act(&mut self, act: &Act, itself: Option<usize>);
}

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) setup: Setup,
    pub(crate) now: Duration,
    pub(crate) sides: [Side; 2],
    /// By number.
    pub(crate) known: Vec<Known>,
    pub(crate) followed: Followed,
    /// Operations do nothing but answer.
    pub(crate) calm: bool,
    /// A call is in progress: what user code causes waits for its end.
    active: bool,
    waiting: VecDeque<Ended>,
    /// Those that operations have made while they were asked. They come after what else waits.
    nested: VecDeque<(usize, Target)>,
    /// Until none waits.
    known_nested: BTreeMap<(usize, Target), Nested>,
    in_nested: bool,
    /// Those that are being asked or changed, the innermost last. `None` is one that is not parked yet.
    pub(super) examining: Vec<Option<usize>>,
    /// Whether a timer is being driven.
    pub(super) driving: bool,
    /// One is being asked because its deadline has passed.
    pub(super) expiring: usize,
}

/// An operation that has ended, and is still to be told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) number: usize,
    pub(super) end: End,
    pub(super) was_parked: bool,
}

impl Ended {
    fn is_satisfied(self) -> bool {
        self.end == End::Satisfied
    }
}

/// What a nested check is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Key(u8),
    Operation(usize),
}

#[derive(Default)]
struct Nested {
    waiting: Option<Reach>,
    causes: BTreeSet<usize>,
}

impl Model {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            setup: setup.clone(),
            now: setup.choices.start,
            ..Self::default()
        }
    }

    pub(crate) fn tick(&self) -> u64 {
        self.setup.choices.tick_at(self.now)
    }

    pub(super) fn is_past(&self, deadline: Option<u64>) -> bool {
        deadline.is_some_and(|deadline| deadline <= self.tick())
    }

    pub(super) fn parked(&mut self, number: usize) -> Option<&mut Parked> {
        let side = self.known[number].side;
        self.sides[side].parked.get_mut(&number)
    }

    /// Whether this call is the outermost one.
    pub(super) fn enter(&mut self) -> bool {
        !std::mem::replace(&mut self.active, true)
    }

    pub(super) fn leave(&mut self, outermost: bool) {
        if !outermost {
            return;
        }
        loop {
            self.in_nested = false;
            if let Some(ended) = self.waiting.pop_front() {
                self.complete(ended);
            } else if let Some((side, target)) = self.nested.pop_front() {
                self.in_nested = true;
                let nested = self.known_nested.get_mut(&(side, target));
                let reach = nested.and_then(|nested| nested.waiting.take());
                let reach = reach.expect("it waits");
                match target {
                    Target::Key(key) => _ = self.visit(side, key, reach),
                    Target::Operation(number) => _ = self.check_one(number),
                }
            } else {
                break;
            }
        }
        self.known_nested.clear();
        self.active = false;
    }

    /// What ends is told now, or at the end of the outermost call. What the executor runs comes first (it runs each job at
    /// once, so that is told at the end of the outermost call too): what has expired, and all that a call ends inside
    /// another one on a thread that drives a timer.
    pub(super) fn deliver(&mut self, ended: impl IntoIterator<Item = Ended>, outermost: bool) {
        let executor = self.setup.executor;
        let inside_driving = self.driving && !outermost;
        let elsewhere = |ended: &Ended| executor && (inside_driving || ended.end == End::Expired);
        let (elsewhere, here): (Vec<_>, Vec<Ended>) = ended.into_iter().partition(elsewhere);
        self.waiting.extend(elsewhere);
        match outermost {
            true => here.into_iter().for_each(|ended| self.complete(ended)),
            false => self.waiting.extend(here),
        }
    }

    pub(super) fn complete(&mut self, ended: Ended) {
        let Ended { number, end, .. } = ended;
        let (side, is) = (self.known[number].side, self.known[number].is.clone());
        let event = match end.completion() {
            Some(completion) => Event::Completed(number, completion),
            None => Event::Dropped(number),
        };
        if is.awaited {
            self.tell(number, end, end == End::Aborted);
        } else {
            self.followed.expect(&event);
            self.act_all(&is.ended, number);
            let panics = is.fragile && end != End::Aborted;
            self.sides[side].stats.panicked += u64::from(panics);
        }
        self.sides[side].places -= usize::from(ended.was_parked);
    }

    /// The task that awaits it, if any, is woken, and will be told.
    pub(super) fn tell(&mut self, number: usize, end: End, lost: bool) {
        let known = &mut self.known[number];
        (known.ended, known.lost) = (Some(end), lost);
        if known.has_future {
            self.followed.expect(&Event::Woken(number));
        }
    }

    /// The task looks, if it may.
    pub(crate) fn poll(&mut self, number: usize) {
        let known = &mut self.known[number];
        let Some(end) = known.ended else {
            known.has_future = true;
            return;
        };
        known.has_future = false;
        let lost = match end {
            End::Aborted => WaitError::Panicked,
            _ => WaitError::Cancelled,
        };
        let told = end.completion().filter(|_| !known.lost);
        self.followed.expect(&Event::Told(number, told.ok_or(lost)));
    }

    pub(crate) fn poll_all(&mut self) {
        for number in 0..self.known.len() {
            if self.known[number].has_future && self.known[number].ended.is_some() {
                self.poll(number);
            }
        }
    }

    /// It is off its lists and has no place, or will have none when it is told.
    pub(super) fn end(&mut self, number: usize, end: End) -> Ended {
        let side = &mut self.sides[self.known[number].side];
        side.parked.remove(&number).expect("it is parked");
        side.unwatch(number);
        side.count_end(end);
        Ended {
            number,
            end,
            was_parked: true,
        }
    }

    /// It goes back to the caller.
    pub(super) fn give_back(&mut self, ended: Ended) {
        self.sides[self.known[ended.number].side].places -= 1;
    }

    pub(super) fn act_all(&mut self, acts: &[Act], number: usize) {
        let calm = self.calm;
        for act in acts.iter().filter(|_| !calm) {
            self.act(act, Some(number));
        }
    }

    pub(super) fn ask(&mut self, number: usize, because: Because, arrives: bool) -> Answer {
        self.followed.expect(&Event::Asked(number, because));
        self.examining.push((!arrives).then_some(number));
        let is = self.known[number].is.clone();
        self.act_all(&is.asked, number);
        self.examining.pop();
        let answer = match arrives {
            true => is.first,
            false => self.known[number].says,
        };
        // A panic in a park goes to the caller.
        let panics = answer == Answer::Panic && because != Because::Parking;
        self.sides[self.known[number].side].stats.panicked += u64::from(panics);
        answer
    }

    /// It makes the change that it is given.
    pub(super) fn change(&mut self, number: usize, acts: &[Act]) {
        self.followed.expect(&Event::Changed(number));
        self.examining.push(Some(number));
        self.act_all(acts, number);
        self.examining.pop();
    }

    /// It has answered: it ends, or is parked again.
    pub(super) fn release(&mut self, number: usize, answer: Answer, parks: bool) -> Option<Ended> {
        let parked = self.parked(number).expect("it is parked");
        let end = match answer {
            Answer::Yes => End::Satisfied,
            Answer::Panic => End::Aborted,
            Answer::No => match parked.marks.first() {
                Some(End::Expired) => self.ask_at_deadline(number, parks),
                Some(end) => *end,
                None => {
                    parked.held = false;
                    return None;
                }
            },
        };
        let parked = self.parked(number).expect("it is held");
        if let (End::Forced, Some(act)) = (end, parked.change.take()) {
            self.change(number, &act);
        }
        Some(self.end(number, end))
    }

    /// Its deadline has come while it was asked.
    fn ask_at_deadline(&mut self, number: usize, parks: bool) -> End {
        self.expiring += 1;
        let answer = self.ask(number, Because::Deadline, false);
        self.expiring -= 1;
        if answer != Answer::Panic {
            return End::Expired;
        }
        // A panic in a park goes to the caller.
        let stats = &mut self.sides[self.known[number].side].stats;
        stats.panicked -= u64::from(parks);
        End::Aborted
    }

    /// One that is parked is asked. Returns its end, and whether it refused.
    pub(super) fn examine(&mut self, number: usize, because: Because) -> (Option<Ended>, bool) {
        let Some(parked) = self.parked(number) else {
            return (None, false);
        };
        assert!(!parked.held, "checks wait while one is asked");
        parked.held = true;
        let answer = self.ask(number, because, false);
        let ended = self.release(number, answer, false);
        let refused = ended.is_none();
        let stats = &mut self.sides[self.known[number].side].stats;
        stats.checks += u64::from(refused);
        (ended, refused)
    }

    /// Makes a check of one key.
    pub(super) fn visit(&mut self, side: usize, key: u8, reach: Reach) -> usize {
        let outermost = self.enter();
        let followed = &self.followed;
        let asked =
            |number| followed.place(|event| *event == Event::Asked(number, Because::Key(key)));
        let turns = self.sides[side].turns(key, reach, asked);
        let (mut all, mut satisfied) = (Vec::new(), 0);
        for number in turns {
            let (ended, refused) = self.examine(number, Because::Key(key));
            satisfied += usize::from(ended.is_some_and(Ended::is_satisfied));
            all.extend(ended);
            if Some(satisfied) == reach.at_most || refused && reach.until_refused {
                break;
            }
        }
        self.deliver(all, outermost);
        self.leave(outermost);
        satisfied
    }

    pub(super) fn check(&mut self, side: usize, key: u8, reach: Reach) -> usize {
        if reach.at_most == Some(0) || self.sides[side].count(key) == 0 {
            return 0;
        }
        match self.examining.last() {
            Some(_) => self.nest(side, Target::Key(key), reach),
            None => return self.visit(side, key, reach),
        }
        0
    }

    pub(super) fn check_one(&mut self, number: usize) -> bool {
        let outermost = self.enter();
        let (ended, _) = self.examine(number, Because::Other);
        let satisfied = ended.is_some_and(Ended::is_satisfied);
        self.deliver(ended, outermost);
        self.leave(outermost);
        satisfied
    }

    /// A check that an operation makes while it is asked.
    pub(super) fn nest(&mut self, side: usize, target: Target, reach: Reach) {
        let cause = *self.examining.last().expect("one is asked");
        let nested = self.known_nested.entry((side, target)).or_default();
        let first = cause.is_none_or(|cause| nested.causes.insert(cause));
        if let Some(waiting) = &mut nested.waiting {
            *waiting = waiting.merged(reach);
        } else if first || !self.in_nested {
            nested.waiting = Some(reach);
            self.nested.push_back((side, target));
        }
    }

    pub(super) fn check_all(&mut self, side: usize, keys: impl IntoIterator<Item = u8>) -> usize {
        if !self.examining.is_empty() {
            for key in keys {
                self.check(side, key, Reach::ALL);
            }
            return 0;
        }
        let outermost = self.enter();
        let mut checked = CheckedAll::default();
        for key in keys {
            self.visit_for_all(side, key, &mut checked);
        }
        self.deliver(checked.ended, outermost);
        self.leave(outermost);
        checked.satisfied
    }

    fn visit_for_all(&mut self, side: usize, key: u8, checked: &mut CheckedAll) {
        let followed = &self.followed;
        let asked = |number| followed.place(|event| *event == Event::Asked(number, Because::Other));
        for number in self.sides[side].turns(key, Reach::ALL, asked) {
            if checked.examined.insert(number) {
                let (ended, _) = self.examine(number, Because::Other);
                checked.satisfied += usize::from(ended.is_some_and(Ended::is_satisfied));
                checked.ended.extend(ended);
            }
        }
    }

    /// Among keys there is no order.
    pub(super) fn check_where(&mut self, side: usize, bits: u64) -> usize {
        let it = &self.sides[side];
        let mut watched = it.lists.keys().copied().collect::<BTreeSet<_>>();
        let resolved = it.resolved.keys().chain(&it.used);
        let mut idle = resolved.copied().collect::<BTreeSet<_>>();
        let outermost = self.examining.is_empty() && self.enter();
        let mut checked = CheckedAll::default();
        while let Some(&Event::Picked(key)) = self.followed.next() {
            if !watched.remove(&key) && !idle.remove(&key) {
                break;
            }
            idle.remove(&key);
            self.followed.expect(&Event::Picked(key));
            if is_picked(bits, key) {
                match self.examining.is_empty() {
                    true => self.visit_for_all(side, key, &mut checked),
                    false => _ = self.check(side, key, Reach::ALL),
                }
            }
        }
        assert!(watched.is_empty(), "{watched:?} were not asked about");
        if self.examining.is_empty() {
            self.deliver(checked.ended, outermost);
            self.leave(outermost);
        }
        checked.satisfied
    }

    /// Where the end of an operation shows.
    pub(super) fn place_of_end(&self, number: usize) -> usize {
        self.followed.place(|event| match event {
            Event::Completed(it, _) | Event::Woken(it) | Event::Changed(it) => *it == number,
            Event::Returned(Outcome::Operations(all)) => all.contains(&number),
            _ => false,
        })
    }

    /// Marks one that is held, for the end of that. `None` if it was, or has ended.
    pub(super) fn claim(&mut self, number: usize, mark: End) -> Option<&mut Parked> {
        let parked = self.parked(number)?;
        if parked.held {
            parked.marks.insert(mark);
            return None;
        }
        Some(parked)
    }
}

/// A check of several keys as one event.
#[derive(Default)]
struct CheckedAll {
    examined: BTreeSet<usize>,
    ended: Vec<Ended>,
    satisfied: usize,
}
