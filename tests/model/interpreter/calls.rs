//! Every call, whoever makes it: what it returns, and whom it ends.

use super::call::{Act, Answer, Arriving, By, Deed, Pick, RECENT, Reach, Way};
use super::operation::{Because, Event, Outcome};
use super::real::picked;
use super::side::{End, Known, Parked};
use super::sorted_map::{Calls, Ended, Model, Target};
use request_purgatory::purgatory::RejectReason;
use std::sync::Arc;
use std::time::Duration;

/// Why an operation is neither parked nor completed.
enum Unparked {
    Refused(RejectReason),
    Panicked,
}

impl Calls for Model {
    fn act(&mut self, act: &Act, itself: Option<usize>) {
        let outcome = self.made(act, itself);
        self.followed.expect(&Event::Returned(outcome));
    }
}

impl Model {
    fn force(&mut self, number: usize, change: Option<&Arc<[Act]>>) -> Option<Ended> {
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

    fn force_key(&mut self, side: usize, key: u8, change: Option<&Arc<[Act]>>) -> usize {
        let outermost = self.enter();
        let place = |number| self.place_of_end(number);
        let turns = self.sides[side].turns(key, Reach::ALL, place).into_iter();
        let all = turns.filter_map(|number| self.force(number, change));
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
        let mut ahead = self.followed.log[self.followed.at..].iter();
        let listed = ahead.find_map(|event| match event {
            Event::Returned(Outcome::Operations(all)) => Some(all),
            _ => None,
        });
        let place = |number| listed?.iter().position(|it| *it == number);
        let place = |number| place(number).unwrap_or(usize::MAX);
        let turns = self.sides[side].turns(key, Reach::ALL, place);
        self.cancel_all(turns)
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
            Deed::Park(arriving) => self.park(side, arriving),
            Deed::Resolve(key) => {
                *self.sides[side].resolved.entry(*key).or_default() += 1;
                Outcome::Nothing
            }
            Deed::Release(key) => {
                let resolved = &mut self.sides[side].resolved;
                if let Some(times) = resolved.get_mut(key) {
                    *times -= 1;
                }
                resolved.retain(|_, times| *times > 0);
                Outcome::Nothing
            }
            Deed::Answer(pick, answer) => {
                if let Some((number, _)) = self.picked(*pick, itself) {
                    self.known[number].says = *answer;
                }
                Outcome::Nothing
            }
            Deed::AnswerRecent(answer) => {
                for known in self.known.iter_mut().rev().take(RECENT) {
                    known.says = *answer;
                }
                Outcome::Nothing
            }
            Deed::Check(key, by, reach) => {
                let used = self.sides[side].used.len();
                if *by != By::Key {
                    self.resolve(side, *key);
                }
                let count = self.check(side, *key, *reach);
                self.sides[side].used.truncate(used);
                count.into()
            }
            Deed::CheckLater(key) => {
                // Deferred checks of one key are merged.
                let side = &mut self.sides[side];
                if !side.closed && !side.later.contains(key) {
                    side.later.push_back(*key);
                }
                Outcome::Nothing
            }
            Deed::CheckHandle(pick) => match picked(self, *pick) {
                Some(number) if self.examining.is_empty() => self.check_one(number).into(),
                Some(number) => {
                    let side = self.known[number].side;
                    self.nest(side, Target::Operation(number), Reach::ALL);
                    Outcome::Flag(false)
                }
                None => Outcome::Flag(false),
            },
            Deed::CheckAll(keys) => self.check_all(side, keys.iter().copied()).into(),
            Deed::CheckWhere(bits) => self.check_where(side, *bits).into(),
            Deed::CancelKey(key) => self.cancel_key(side, *key),
            Deed::CancelHandle(pick) => {
                let number = picked(self, *pick);
                self.cancel_all(number.into_iter().collect())
            }
            Deed::ForceKey(key) => self.force_key(side, *key, None).into(),
            Deed::ForceWith(key, acts) => self.force_key(side, *key, Some(acts)).into(),
            Deed::ForceHandle(pick) => {
                let number = picked(self, *pick);
                let outermost = self.enter();
                let ended = number.and_then(|number| self.force(number, None));
                self.deliver(ended, outermost);
                self.leave(outermost);
                ended.is_some().into()
            }
            Deed::Reschedule(pick, span) => {
                let timeout = span.of(self.setup.choices.tick);
                let number = picked(self, *pick);
                let done = number.is_some_and(|number| self.reschedule(number, timeout));
                done.into()
            }
            Deed::DropHandle(pick) => {
                if let Some((number, _)) = self.picked(*pick, itself) {
                    self.drop_handle(number);
                }
                Outcome::Nothing
            }
            Deed::Advance => self.advance(side).into(),
            Deed::Drain => self.drain(side).into(),
            Deed::Shutdown => {
                self.shut_down(side);
                Outcome::Nothing
            }
        }
    }

    fn drop_handle(&mut self, number: usize) {
        let known = &mut self.known[number];
        known.has_handle = false;
        if std::mem::take(&mut known.has_future) && self.claim(number, End::Cancelled).is_some() {
            // No task is left to be told.
            let ended = self.end(number, End::Cancelled);
            self.give_back(ended);
        }
    }

    /// It stays so at least as long as the call that needs it.
    fn resolve(&mut self, side: usize, key: u8) {
        self.sides[side].resolved.entry(key).or_insert(1);
        self.sides[side].used.push(key);
    }

    fn reschedule(&mut self, number: usize, timeout: Duration) -> bool {
        let deadline = self.setup.choices.deadline(self.now, timeout);
        let (tick, overdue) = (self.tick(), self.is_past(deadline));
        let Some(parked) = self.parked(number) else {
            return false;
        };
        // Past its deadline it cannot be, whoever comes first.
        if parked.deadline.is_some_and(|deadline| deadline <= tick) {
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
            Err(Unparked::Refused(refusal)) => {
                self.sides[side].stats.rejected += 1;
                Outcome::Refused(refusal, number)
            }
            Err(Unparked::Panicked) => {
                if !is.awaited {
                    self.followed.expect(&Event::Dropped(number));
                    self.act_all(&is.ended, number);
                }
                Outcome::Panicked(number)
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
    ) -> Result<Option<Ended>, Unparked> {
        let is = self.known[number].is.clone();
        self.refusal(side)?;
        if ranks.is_empty() {
            return Err(Unparked::Refused(RejectReason::NoKeys));
        }
        match self.ask(number, Because::Parking, true) {
            Answer::Panic => return Err(Unparked::Panicked),
            Answer::Yes => {
                self.sides[side].stats.completed_at_once += 1;
                return Ok(Some(Ended {
                    number,
                    end: End::Satisfied,
                    was_parked: false,
                }));
            }
            Answer::No => {}
        }
        let choices = &self.setup.choices;
        let places = self.sides[side].places;
        if choices.max_parked.is_some_and(|max| places >= max) {
            return Err(Unparked::Refused(RejectReason::Full));
        }
        self.refusal(side)?;
        let reading = is.arrival(self.now, choices.tick);
        let reading = reading.map_or(self.now, |at| at.since_origin());
        let deadline = choices.deadline(reading, is.timeout.of(choices.tick));
        let parked = Parked {
            arrived_at: reading,
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
            return Err(Unparked::Refused(RejectReason::KeyFull));
        }
        for (key, rank) in ranks {
            it.lists.entry(*key).or_default().push((number, *rank));
        }
        let answer = self.ask(number, Because::Parking, false);
        match self.release(number, answer, true) {
            Some(ended) if ended.end == End::Aborted => {
                self.give_back(ended);
                Err(Unparked::Panicked)
            }
            ended => Ok(ended),
        }
    }

    fn refusal(&self, side: usize) -> Result<(), Unparked> {
        let side = &self.sides[side];
        match (side.closed, side.draining) {
            (true, _) => Err(Unparked::Refused(RejectReason::ShutDown)),
            (_, true) => Err(Unparked::Refused(RejectReason::Draining)),
            _ => Ok(()),
        }
    }
}
