//! What reads find.

use super::{Asked, Attempts, Node, Ticket};
use crate::model::waits::Known;
use request_purgatory_cluster::{Epoch, Reading};
use std::time::Duration;
use tokio::time::Instant;

impl Node {
    pub(super) fn read_began(
        &mut self,
        number: u64,
        keys: Vec<u64>,
        reading: Reading,
        now: Instant,
    ) {
        let opens = std::mem::take(&mut self.opens);
        if !opens {
            self.begun += 1;
            let others = self.tickets.values().filter(|it| !it.opens).count();
            assert!(others < self.config.concurrent_reads, "too many reads");
            assert!(
                keys.len() <= self.config.read_batch,
                "too many keys at once"
            );
            self.reads_failed.begin(now, "a read");
            let due = self.settles.iter().filter(|it| *it.1 <= now);
            let due = due.map(|it| *it.0).collect::<Vec<_>>();
            self.settles.retain(|_, due| *due > now);
            due.into_iter().for_each(|key| self.want(key, true));
            let is_doubt = self.reads_failed.failed > 0 && self.wanted.is_empty();
            assert!(!keys.is_empty() || is_doubt, "nothing is read");
        }
        let is_audit = keys.iter().any(|key| !self.wanted.contains_key(key));
        if is_audit {
            assert!(
                self.audits() && self.wanted.is_empty(),
                "{keys:?} are read for nothing: {self:#?}"
            );
        }
        let audit = self.config.audit;
        let mut taken = Vec::new();
        for key in keys {
            let excused = self.wanted.remove(&key).unwrap_or(false);
            let session = self.session.as_ref();
            let is_owed = session.is_some_and(|it| it.owed.get(&key) == Some(&true));
            let is_owed = is_owed && !is_audit && !self.is_on_its_way(key);
            let Some(known) = self.keys.get_mut(&key) else {
                // A round goes on with the keys that it began with.
                assert!(is_audit, "{key} is read, and is not watched");
                taken.push(Asked {
                    key,
                    number: 0,
                    mark: 0,
                    is_owed: false,
                    excused: false,
                });
                continue;
            };
            if is_audit {
                let earliest = known.audited_at.map(|at| at + audit.mul_f64(0.3));
                // (A round that was held up is followed by the next one at once.)
                let of_late = |it: Option<Instant>| it.is_some_and(|it| now < it + audit * 2);
                let is_disturbed = of_late(self.failed_at) || of_late(self.held_at);
                let is_early = earliest.is_some_and(|it| it > now) && !is_disturbed;
                assert!(!is_early, "an audit comes too early");
                known.audited_at = Some(now);
            }
            known.read_at = now;
            taken.push(Asked {
                key,
                number: known.number,
                mark: known.known.mark,
                is_owed,
                excused,
            });
        }
        let ticket = Ticket {
            reading,
            is_audit,
            opens,
            number: self.begun,
            generation: self.generation,
            epoch: self.epoch,
            session: self.counts.sessions,
            keys: taken,
        };
        self.tickets.insert(number, ticket);
    }

    pub(super) fn read_returned(&mut self, ticket: Ticket, is_sound: bool, now: Instant) {
        if !is_sound {
            self.unread += 1;
            if self.failed_at != Some(now) {
                self.failed_at = Some(now);
                let failed = self.reads_failed.failed;
                self.reads_failed.pause(&self.config, now, failed);
                // The next one may be that of the next slice of an audit.
                let slice = if self.audits() {
                    self.config.audit
                } else {
                    Duration::ZERO
                };
                self.reads_failed.next = self.reads_failed.next.map(|it| (it.0, it.1 + slice));
                self.reads_failed.failed += 1;
            }
            self.again(&ticket);
            return self.progressed(now);
        }
        self.counts.reads += 1;
        self.unread = 0;
        let reading = &ticket.reading;
        let is_other = self.epoch.is_some_and(|epoch| epoch != reading.epoch);
        if self.generation != ticket.generation || is_other && self.epoch != ticket.epoch {
            // Which of two histories is later is not known.
            self.held_at = Some(now);
            self.again(&ticket);
            return self.progressed(now);
        }
        self.reads_failed = Attempts::default();
        let is_lower = |(mark, version): (u64, &Option<u64>)| {
            version.is_some_and(|it| it < mark) || reading.head.is_some_and(|head| head < mark)
        };
        let marks = ticket.keys.iter().map(|it| it.mark);
        if is_other || marks.zip(&reading.versions).any(is_lower) {
            self.reset(reading.epoch, now);
            let all = self.keys.keys().copied().collect::<Vec<_>>();
            all.into_iter().for_each(|key| self.want(key, false));
            if self.session.is_some() {
                self.session_failed("reset", now);
            }
            return self.again(&ticket);
        }
        self.epoch = Some(reading.epoch);
        self.head = self.head.max(reading.head.unwrap_or(0));
        for (asked, version) in ticket.keys.iter().zip(&reading.versions) {
            self.found(&ticket, *asked, *version, now);
            if asked.is_owed && ticket.session == self.counts.sessions {
                self.spare(asked.key);
            }
        }
        self.progressed(now);
    }

    pub(super) fn found(
        &mut self,
        ticket: &Ticket,
        asked: Asked,
        version: Option<u64>,
        now: Instant,
    ) {
        let reading = &ticket.reading;
        let found = version.unwrap_or(0);
        let present = self
            .keys
            .get_mut(&asked.key)
            .filter(|it| it.number == asked.number);
        let Some(it) = present.or_else(|| self.gone.get_mut(&asked.number)) else {
            return;
        };
        let is_raised = it.known.raise(found);
        if is_raised && it.known.read > 0 {
            self.counts.healed += 1;
        }
        if ticket.is_audit
            && it.heard < found
            && let Some(session) = self.session.as_mut().filter(|it| it.live_since.is_some())
        {
            session.finds.insert(now);
        }
        if asked.excused || ticket.is_audit {
            it.heard = it.heard.max(found);
        }
        it.known.read = it.known.read.max(ticket.number);
        let ends = version.or(reading.floor).zip(reading.head);
        let gap = ends.and_then(|ends| it.known.join(ends, it.baseline));
        self.told(
            asked.key,
            if is_raised { found } else { gap.unwrap_or(0) },
            now,
        );
    }

    pub(super) fn again(&mut self, ticket: &Ticket) {
        for &Asked {
            key,
            is_owed,
            excused,
            ..
        } in &ticket.keys
        {
            if !ticket.is_audit {
                self.want(key, excused);
                // No interest needs it any more.
                let is_over = is_owed && !self.keys.contains_key(&key);
                if is_over && ticket.session == self.counts.sessions {
                    self.spare(key);
                }
            } else if let Some(known) = self.keys.get_mut(&key) {
                known.audited_at = None;
            }
        }
    }

    /// The store has lost what was known: all that waits is told.
    pub(super) fn reset(&mut self, epoch: Epoch, now: Instant) {
        self.generation += 1;
        // (Audits as well.)
        self.held_at = Some(now);
        (self.epoch, self.head) = (Some(epoch), 0);
        self.counts.resets += 1;
        for key in self.keys.values_mut() {
            let Known { read, gaps, .. } = key.known;
            (key.heard, key.baseline) = (0, 0);
            key.known = Known {
                read,
                gaps,
                ..Known::default()
            };
        }
        let keys = self.keys.keys().copied().collect::<Vec<_>>();
        keys.into_iter()
            .for_each(|key| self.told(key, u64::MAX, now));
    }
}
