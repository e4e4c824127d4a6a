//! What passes through all operations: those whose time has come, and the end of a purgatory.

use super::call::{Answer, Reach};
use super::operation::{Because, Event};
use super::side::{End, Parked};
use super::sorted_map::{Ended, Model};
use std::time::Duration;

impl Model {
    /// Drives one timer.
    pub(super) fn advance(&mut self, side: usize) -> usize {
        // Those that are due are left to the pass that asks this one.
        if self.expiring > 0 {
            return 0;
        }
        let outermost = self.enter();
        let now = self.tick();
        let is_due = |parked: &Parked| parked.deadline.is_some_and(|deadline| deadline <= now);
        let parked = self.sides[side].parked.iter();
        let due = parked.filter(|(_, parked)| is_due(parked));
        let due = due.map(|(number, _)| *number).collect::<Vec<_>>();
        let driving = std::mem::replace(&mut self.driving, true);
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
            let expires = |ended: &&Ended| ended.end == End::Expired;
            expired += batch.iter().filter(expires).count();
            self.deliver(batch, outermost);
        }
        for number in due {
            let parked = self.sides[side].parked.get_mut(&number);
            if let Some(parked) = parked.filter(|parked| is_due(parked)) {
                // That one is ended by the call that asks it.
                assert!(parked.held, "{number} has not expired");
                parked.marks.insert(End::Expired);
            }
        }
        self.leave(outermost);
        self.driving = driving;
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
            it.stats.missed_checks += u64::from(answer == Answer::Yes);
            let due = self.setup.choices.timestamp(deadline).since_origin();
            let stats = &mut it.stats;
            // A counter of nanoseconds has an end.
            let end = Duration::from_nanos(u64::MAX);
            let late = self.now.saturating_sub(due).min(end);
            stats.lateness_total = stats.lateness_total.saturating_add(late).min(end);
            stats.lateness_max = stats.lateness_max.max(late);
        }
        it.count_end(end);
        Ended {
            number,
            end,
            was_parked: true,
        }
    }

    /// No parks from now on.
    pub(super) fn drain(&mut self, side: usize) -> usize {
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
