//! What should happen, on both purgatories: every call, and what it causes, step by step.

use super::call::{Act, Answer, Arriving, By, Deed, Pick, Reach, Reading, Setup, Way};
use super::operation::{Because, Event, Outcome, Refusal, Told};
use super::real::{is_picked, picked};
use super::side::{End, Followed, Known, Parked, Side};
use request_purgatory::future::WaitError;
use request_purgatory::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

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
    examining: Vec<Option<usize>>,
    /// Whose timer is being driven.
    driving: Option<usize>,
    /// One is being asked because its deadline has passed.
    expiring: usize,
}

/// An operation that has ended, and is still to be told.
#[derive(Debug, Clone, Copy)]
struct Ended {
    number: usize,
    end: End,
    was_parked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
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
            sides: Default::default(),
            known: Vec::new(),
            followed: Followed::default(),
            calm: false,
            active: false,
            waiting: VecDeque::new(),
            nested: VecDeque::new(),
            known_nested: BTreeMap::new(),
            in_nested: false,
            examining: Vec::new(),
            driving: None,
            expiring: 0,
        }
    }

    pub(crate) fn tick(&self) -> u64 {
        self.setup.choices.tick_at(self.now)
    }

    fn is_past(&self, deadline: Option<u64>) -> bool {
        deadline.is_some_and(|deadline| deadline <= self.tick())
    }

    fn parked(&mut self, number: usize) -> Option<&mut Parked> {
        let side = self.known[number].side;
        self.sides[side].parked.get_mut(&number)
    }

    /// Whether this call is the outermost one.
    fn enter(&mut self) -> bool {
        !std::mem::replace(&mut self.active, true)
    }

    fn leave(&mut self, outermost: bool) {
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

    /// What ends is told now, or at the end of the outermost call. (So what an executor runs, which does that at once.)
    fn deliver(&mut self, ended: impl IntoIterator<Item = Ended>, outermost: bool) {
        let executor = self.setup.executor;
        let elsewhere = |ended: &Ended| !outermost || executor && ended.end == End::Expired;
        let (elsewhere, here): (Vec<_>, _) = ended.into_iter().partition(elsewhere);
        self.waiting.extend(elsewhere);
        here.into_iter()
            .for_each(|ended: Ended| self.complete(ended));
    }

    fn complete(&mut self, ended: Ended) {
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
            self.act_if_any(is.ended.as_ref(), number);
            let panics = is.fragile && end != End::Aborted;
            self.sides[side].counts.panicked += u64::from(panics);
        }
        self.sides[side].places -= usize::from(ended.was_parked);
    }

    /// The task that awaits it, if any, is woken, and will be told.
    fn tell(&mut self, number: usize, end: End, lost: bool) {
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
        let told = told.map_or(Told::Lost(lost), Told::Completion);
        self.followed.expect(&Event::Told(number, told));
    }

    pub(crate) fn poll_all(&mut self) {
        for number in 0..self.known.len() {
            if self.known[number].has_future && self.known[number].ended.is_some() {
                self.poll(number);
            }
        }
    }

    /// It is off its lists and has no place, or will have none when it is told.
    fn end(&mut self, number: usize, end: End) -> Ended {
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
    fn give_back(&mut self, ended: Ended) {
        self.sides[self.known[ended.number].side].places -= 1;
    }

    fn act_if_any(&mut self, act: Option<&Act>, number: usize) {
        if let Some(act) = act.filter(|_| !self.calm) {
            self.act(act, Some(number));
        }
    }

    fn ask(&mut self, number: usize, because: Because, arrives: bool) -> Answer {
        self.followed.expect(&Event::Asked(number, because));
        self.examining.push((!arrives).then_some(number));
        let is = self.known[number].is.clone();
        self.act_if_any(is.asked.as_ref(), number);
        self.examining.pop();
        let answer = match arrives {
            true => is.first,
            false => self.known[number].says,
        };
        let panics = u64::from(answer == Answer::Panic);
        self.sides[self.known[number].side].counts.panicked += panics;
        answer
    }

    /// It makes the change that it is given.
    fn change(&mut self, number: usize, act: &Act) {
        self.followed.expect(&Event::Changed(number));
        self.examining.push(Some(number));
        self.act_if_any(Some(act), number);
        self.examining.pop();
    }

    /// It has answered: it ends, or is parked again.
    fn release(&mut self, number: usize, answer: Answer) -> Option<Ended> {
        let parked = self.parked(number).expect("it is parked");
        let end = match answer {
            Answer::Yes => End::Satisfied,
            Answer::Panic => End::Aborted,
            Answer::No => match parked.marks.first() {
                Some(end) => *end,
                None => {
                    parked.held = false;
                    return None;
                }
            },
        };
        if let (End::Forced, Some(act)) = (end, parked.change.take()) {
            self.change(number, &act);
        }
        Some(self.end(number, end))
    }

    /// One that is parked is asked. Returns its end, and whether it refused.
    fn examine(&mut self, number: usize, because: Because) -> (Option<Ended>, bool) {
        let Some(parked) = self.parked(number) else {
            return (None, false);
        };
        assert!(!parked.held, "checks wait while one is asked");
        parked.held = true;
        let answer = self.ask(number, because, false);
        let ended = self.release(number, answer);
        let refused = ended.is_none();
        let counts = &mut self.sides[self.known[number].side].counts;
        counts.checks += u64::from(refused);
        (ended, refused)
    }

    /// Makes a check of one key.
    fn visit(&mut self, side: usize, key: u8, reach: Reach) -> usize {
        let outermost = self.enter();
        let followed = &self.followed;
        let asked =
            |number| followed.place(|event| *event == Event::Asked(number, Because::Key(key)));
        let turns = self.sides[side].turns(key, reach, asked);
        let (mut all, mut satisfied) = (Vec::new(), 0);
        for number in turns {
            let (ended, refused) = self.examine(number, Because::Key(key));
            let is_satisfied = |ended: &Ended| ended.end == End::Satisfied;
            satisfied += usize::from(ended.as_ref().is_some_and(is_satisfied));
            all.extend(ended);
            if Some(satisfied) == reach.at_most || refused && reach.until_refused {
                break;
            }
        }
        self.deliver(all, outermost);
        self.leave(outermost);
        satisfied
    }

    fn check(&mut self, side: usize, key: u8, reach: Reach) -> usize {
        if reach.at_most == Some(0) || self.sides[side].count(key) == 0 {
            return 0;
        }
        match self.examining.last() {
            Some(_) => self.nest(side, Target::Key(key), reach),
            None => return self.visit(side, key, reach),
        }
        0
    }

    fn check_one(&mut self, number: usize) -> bool {
        let outermost = self.enter();
        let (ended, _) = self.examine(number, Because::Other);
        let satisfied = ended.is_some_and(|ended| ended.end == End::Satisfied);
        self.deliver(ended, outermost);
        self.leave(outermost);
        satisfied
    }

    /// A check that an operation makes while it is asked.
    fn nest(&mut self, side: usize, target: Target, reach: Reach) {
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

    fn check_all(&mut self, side: usize, keys: impl IntoIterator<Item = u8>) -> usize {
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
                let is_satisfied = |ended: &Ended| ended.end == End::Satisfied;
                checked.satisfied += usize::from(ended.as_ref().is_some_and(is_satisfied));
                checked.ended.extend(ended);
            }
        }
    }

    /// Among keys there is no order.
    fn check_where(&mut self, side: usize, bits: u64) -> usize {
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
        assert!(watched.is_empty(), "nobody was asked about {watched:?}");
        if self.examining.is_empty() {
            self.deliver(checked.ended, outermost);
            self.leave(outermost);
        }
        checked.satisfied
    }

    /// Where the end of an operation shows.
    fn place_of_end(&self, number: usize) -> usize {
        self.followed.place(|event| match event {
            Event::Completed(it, _) | Event::Woken(it) | Event::Changed(it) => *it == number,
            Event::Returned(Outcome::Operations(all)) => all.contains(&number),
            _ => false,
        })
    }

    /// Marks one that is held, for the end of that. `None` if it was, or has ended.
    fn claim(&mut self, number: usize, mark: End) -> Option<&mut Parked> {
        let parked = self.parked(number)?;
        if parked.held {
            parked.marks.insert(mark);
            return None;
        }
        Some(parked)
    }

    fn force(&mut self, number: usize, change: Option<&Arc<Act>>) -> Option<Ended> {
        if let (Some(act), Some(parked)) = (change, self.parked(number)) {
            parked.change = Some(act.clone());
        }
        let parked = self.claim(number, End::Forced)?;
        parked.held = true;
        if let Some(act) = parked.change.take() {
            self.change(number, &act);
        }
        Some(self.end(number, End::Forced))
    }

    fn force_key(&mut self, side: usize, key: u8, change: Option<&Arc<Act>>) -> usize {
        let outermost = self.enter();
        let place = |number| self.place_of_end(number);
        let turns = self.sides[side].turns(key, Reach::ALL, place);
        let all = turns
            .into_iter()
            .filter_map(|number| self.force(number, change));
        let all = all.collect::<Vec<_>>();
        let count = all.len();
        self.deliver(all, outermost);
        self.leave(outermost);
        count
    }

    fn cancel_all(&mut self, numbers: Vec<usize>) -> Outcome {
        let mut cancelled = Vec::new();
        for number in numbers {
            if self.claim(number, End::Cancelled).is_some() {
                let ended = self.end(number, End::Cancelled);
                self.give_back(ended);
                cancelled.push(number);
            }
        }
        for number in &cancelled {
            if self.known[*number].is.awaited {
                self.tell(*number, End::Cancelled, true);
            }
        }
        Outcome::Operations(cancelled)
    }

    fn cancel_key(&mut self, side: usize, key: u8) -> Outcome {
        let listed = self.followed.log[self.followed.at..]
            .iter()
            .find_map(|event| match event {
                Event::Returned(Outcome::Operations(all)) => Some(all),
                _ => None,
            });
        let place = |number| listed.and_then(|all| all.iter().position(|it| *it == number));
        let place = |number| place(number).unwrap_or(usize::MAX);
        let turns = self.sides[side].turns(key, Reach::ALL, place);
        self.cancel_all(turns)
    }

    /// Makes the call, with all that it causes.
    pub(crate) fn act(&mut self, act: &Act, itself: Option<usize>) {
        let outcome = self.made(act, itself);
        self.followed.expect(&Event::Returned(outcome));
    }

    /// The operation that is meant, and whether its handle is there.
    fn picked(&self, pick: Pick, itself: Option<usize>) -> Option<(usize, bool)> {
        let number = picked(pick, itself, self.known.len())?;
        let known = &self.known[number];
        Some((number, known.has_handle && !self.sides[known.side].closed))
    }

    fn picked_handle(&self, pick: Pick, itself: Option<usize>) -> Option<usize> {
        let (number, has_handle) = self.picked(pick, itself)?;
        has_handle.then_some(number)
    }

    fn made(&mut self, act: &Act, itself: Option<usize>) -> Outcome {
        let side = act.side;
        let picked = |this: &Self, pick| this.picked_handle(pick, itself);
        match &act.deed {
            Deed::Park(arriving) => return self.park(side, arriving),
            Deed::Resolve(key) => *self.sides[side].resolved.entry(*key).or_default() += 1,
            Deed::Release(key) => {
                let resolved = &mut self.sides[side].resolved;
                if let Some(times) = resolved.get_mut(key) {
                    *times -= 1;
                    resolved.retain(|_, times| *times > 0);
                }
            }
            Deed::Answer(pick, answer) => {
                if let Some((number, _)) = self.picked(*pick, itself) {
                    self.known[number].says = *answer;
                }
            }
            Deed::Check(key, by, reach) => {
                let used = self.sides[side].used.len();
                if *by != By::Key {
                    self.resolve(side, *key);
                }
                let count = self.check(side, *key, *reach);
                self.sides[side].used.truncate(used);
                return Outcome::Count(count);
            }
            Deed::CheckLater(key) => {
                // Deferred checks of one key are merged.
                let side = &mut self.sides[side];
                if !side.closed && !side.later.contains(key) {
                    side.later.push_back(*key);
                }
            }
            Deed::CheckHandle(pick) => {
                let satisfied = match picked(self, *pick) {
                    Some(number) if !self.examining.is_empty() => {
                        let side = self.known[number].side;
                        self.nest(side, Target::Operation(number), Reach::ALL);
                        false
                    }
                    Some(number) => self.check_one(number),
                    None => false,
                };
                return Outcome::Flag(satisfied);
            }
            Deed::CheckAll(keys) => {
                return Outcome::Count(self.check_all(side, keys.iter().copied()));
            }
            Deed::CheckWhere(bits) => return Outcome::Count(self.check_where(side, *bits)),
            Deed::CancelKey(key) => return self.cancel_key(side, *key),
            Deed::CancelHandle(pick) => {
                let number = picked(self, *pick).into_iter().collect();
                return self.cancel_all(number);
            }
            Deed::ForceKey(key) => return Outcome::Count(self.force_key(side, *key, None)),
            Deed::ForceWith(key, act) => {
                return Outcome::Count(self.force_key(side, *key, Some(act)));
            }
            Deed::ForceHandle(pick) => {
                let Some(number) = picked(self, *pick) else {
                    return Outcome::Flag(false);
                };
                let outermost = self.enter();
                let ended = self.force(number, None);
                self.deliver(ended, outermost);
                self.leave(outermost);
                return Outcome::Flag(ended.is_some());
            }
            Deed::Reschedule(pick, span) => {
                let timeout = span.of(self.setup.choices.tick);
                let number = picked(self, *pick);
                let done = number.is_some_and(|number| self.reschedule(number, timeout));
                return Outcome::Flag(done);
            }
            Deed::DropHandle(pick) => {
                if let Some((number, _)) = self.picked(*pick, itself) {
                    let known = &mut self.known[number];
                    known.has_handle = false;
                    if std::mem::take(&mut known.has_future)
                        && self.claim(number, End::Cancelled).is_some()
                    {
                        // No task is left to be told.
                        let ended = self.end(number, End::Cancelled);
                        self.give_back(ended);
                    }
                }
            }
            Deed::Advance => return Outcome::Count(self.advance(side)),
            Deed::Drain => return Outcome::Count(self.drain(side)),
            Deed::Shutdown => self.shut_down(side),
        }
        Outcome::Nothing
    }

    /// It stays so at least as long as the call that needs it.
    fn resolve(&mut self, side: usize, key: u8) {
        self.sides[side].resolved.entry(key).or_insert(1);
        self.sides[side].used.push(key);
    }

    fn reschedule(&mut self, number: usize, timeout: Duration) -> bool {
        let deadline = self.setup.choices.deadline(self.now, timeout);
        let (tick, overdue) = (self.tick(), self.is_past(deadline));
        let driving = self.driving == Some(self.known[number].side);
        let next = self.followed.next() == Some(&Event::Returned(Outcome::Flag(true)));
        let Some(parked) = self.parked(number) else {
            return false;
        };
        // It may be on its way to its end.
        let is_due = driving && parked.deadline.is_some_and(|deadline| deadline <= tick);
        if is_due && !next || parked.marks.contains(&End::Expired) {
            return false;
        }
        (parked.deadline, parked.overdue) = (deadline, overdue);
        true
    }

    fn park(&mut self, side: usize, is: &Arc<Arriving>) -> Outcome {
        let number = self.known.len();
        self.known.push(Known {
            side,
            is: is.clone(),
            says: is.then,
            has_handle: false,
            has_future: false,
            ended: None,
            lost: false,
        });
        let used = [0, 1].map(|side| self.sides[side].used.len());
        let mut ranks = Vec::<(u8, Option<u64>)>::new();
        for on in &is.on {
            match on.way {
                Way::Plain => {}
                Way::Resolved => self.resolve(side, on.key),
                Way::Foreign => self.resolve(1 - side, on.key),
            }
            match ranks.iter_mut().find(|(key, _)| *key == on.key) {
                Some((_, rank)) => *rank = (*rank).min(on.rank),
                None => ranks.push((on.key, on.rank)),
            }
        }
        let outermost = self.enter();
        let parked = self.arrive(side, number, &ranks);
        let outcome = match parked {
            Err(refusal) => {
                self.sides[side].counts.rejected += 1;
                Outcome::Refused(refusal, number)
            }
            Ok(ended) => {
                self.deliver(ended, outermost);
                Outcome::Admitted(ended.is_none())
            }
        };
        self.leave(outermost);
        for (side, used) in self.sides.iter_mut().zip(used) {
            side.used.truncate(used);
        }
        if let Outcome::Admitted(is_parked) = outcome {
            self.known[number].has_handle = is_parked;
            if is.awaited {
                self.poll(number);
            }
        }
        outcome
    }

    /// In the order in which it is decided. Returns the end of one that does not stay parked.
    fn arrive(
        &mut self,
        side: usize,
        number: usize,
        ranks: &[(u8, Option<u64>)],
    ) -> Result<Option<Ended>, Refusal> {
        let is = self.known[number].is.clone();
        self.refusal(side)?;
        if ranks.is_empty() {
            return Err(Refusal::NoKeys);
        }
        match self.ask(number, Because::Parking, true) {
            Answer::Panic => return Err(Refusal::Panicked),
            Answer::Yes => {
                self.sides[side].counts.completed_at_once += 1;
                return Ok(Some(Ended {
                    number,
                    end: End::Satisfied,
                    was_parked: false,
                }));
            }
            Answer::No => {}
        }
        let choices = &self.setup.choices;
        if choices
            .max_parked
            .is_some_and(|max| self.sides[side].places >= max)
        {
            return Err(Refusal::Full);
        }
        self.refusal(side)?;
        let reading = self.reading(&is);
        let deadline = choices.deadline(reading, is.timeout.of(choices.tick));
        let parked = Parked {
            parked_at: choices.tick_at(reading),
            deadline,
            overdue: self.is_past(deadline),
            held: true,
            ..Parked::default()
        };
        let max = self.setup.max_watchers.unwrap_or(usize::MAX);
        let it = &mut self.sides[side];
        it.places += 1;
        it.parked.insert(number, parked);
        if ranks.iter().any(|(key, _)| it.count(*key) >= max) {
            let ended = self.end(number, End::Cancelled);
            self.give_back(ended);
            return Err(Refusal::KeyFull);
        }
        for (key, rank) in ranks {
            it.lists.entry(*key).or_default().push((number, *rank));
        }
        let answer = self.ask(number, Because::Parking, false);
        match self.release(number, answer) {
            Some(ended) if ended.end == End::Aborted => {
                self.give_back(ended);
                Err(Refusal::Panicked)
            }
            ended => Ok(ended),
        }
    }

    fn refusal(&self, side: usize) -> Result<(), Refusal> {
        let side = &self.sides[side];
        match (side.closed, side.draining) {
            (true, _) => Err(Refusal::ShutDown),
            (_, true) => Err(Refusal::Draining),
            _ => Ok(()),
        }
    }

    /// When it arrived, as it says.
    fn reading(&self, is: &Arriving) -> Duration {
        let tick = self.setup.choices.tick;
        match is.reading {
            Reading::Ago(span) if !is.awaited => self.now.saturating_sub(span.of(tick)),
            Reading::Ahead(span) if !is.awaited => {
                let ahead = Timestamp::from_origin(self.now.saturating_add(span.of(tick)));
                ahead.since_origin()
            }
            _ => self.now,
        }
    }

    /// Drives one timer.
    fn advance(&mut self, side: usize) -> usize {
        // Those that are due are left to the pass that asks this one.
        if self.expiring > 0 {
            return 0;
        }
        let outermost = self.enter();
        let now = self.tick();
        let is_due =
            |parked: &Parked| -> bool { parked.deadline.is_some_and(|deadline| deadline <= now) };
        let due = self.sides[side]
            .parked
            .iter()
            .filter(|(_, parked)| is_due(parked));
        let due = due.map(|(number, _)| *number).collect::<Vec<_>>();
        let driving = self.driving.replace(side);
        // Deferred checks wait while one is asked, which they could not ask.
        let later = match self.examining.is_empty() {
            true => self.sides[side].later.len(),
            false => 0,
        };
        for _ in 0..later {
            if let Some(key) = self.sides[side].later.pop_front() {
                self.visit(side, key, Reach::ALL);
            }
        }
        let (mut expired, mut last) = (0, 0);
        loop {
            let mut batch = Vec::new();
            // How many expire before the first of them is told shows in what comes next.
            while let Some(&Event::Asked(number, Because::Deadline)) = self.followed.next() {
                let parked = self.sides[side].parked.get(&number).cloned();
                let parked = parked.expect("it is parked here");
                let deadline = parked.deadline.expect("it has a deadline");
                assert!(deadline <= now, "{number} is not due");
                if !parked.overdue {
                    assert!(last <= deadline, "not in the order of their deadlines");
                    last = deadline;
                }
                batch.push(self.expire(side, number, deadline));
            }
            if batch.is_empty() {
                break;
            }
            for ended in &batch {
                self.sides[side].unwatch(ended.number);
            }
            expired += batch
                .iter()
                .filter(|ended| ended.end == End::Expired)
                .count();
            self.deliver(batch, outermost);
        }
        for number in due {
            if let Some(parked) = self.sides[side]
                .parked
                .get_mut(&number)
                .filter(|it| is_due(it))
            {
                // That one is ended by the call that asks it.
                assert!(parked.held, "{number} has not expired");
                parked.marks.insert(End::Expired);
            }
        }
        self.driving = driving;
        self.leave(outermost);
        expired
    }

    /// It is asked a last time.
    fn expire(&mut self, side: usize, number: usize, deadline: u64) -> Ended {
        self.parked(number).expect("it is parked").held = true;
        self.expiring += 1;
        let answer = self.ask(number, Because::Deadline, false);
        self.expiring -= 1;
        let it = &mut self.sides[side];
        it.parked.remove(&number);
        let end = match answer {
            Answer::Panic => End::Aborted,
            _ => End::Expired,
        };
        if end == End::Expired {
            it.counts.missed_checks += u64::from(answer == Answer::Yes);
            let due = self.setup.choices.timestamp(deadline).since_origin();
            let late = self.now.saturating_sub(due).as_nanos();
            let late = u64::try_from(late).unwrap_or(u64::MAX);
            it.counts.lateness_total = it.counts.lateness_total.saturating_add(late);
            it.counts.lateness_max = it.counts.lateness_max.max(late);
        }
        it.count_end(end);
        Ended {
            number,
            end,
            was_parked: true,
        }
    }

    /// No parks from now on.
    fn drain(&mut self, side: usize) -> usize {
        self.sides[side].draining = true;
        self.advance(side);
        self.sides[side].parked.len()
    }

    pub(crate) fn shut_down(&mut self, side: usize) {
        if std::mem::replace(&mut self.sides[side].closed, true) {
            return;
        }
        let outermost = self.enter();
        let mut all = self.sides[side].parked.keys().copied().collect::<Vec<_>>();
        all.sort_by_key(|number| self.place_of_end(*number));
        let mut ended = Vec::new();
        for number in all {
            if self.claim(number, End::ShutDown).is_some() {
                ended.push(self.end(number, End::ShutDown));
            }
        }
        self.deliver(ended, outermost);
        self.sides[side].later.clear();
        self.leave(outermost);
    }
}

/// A check of several keys as one event.
#[derive(Default)]
struct CheckedAll {
    examined: BTreeSet<usize>,
    ended: Vec<Ended>,
    satisfied: usize,
}
