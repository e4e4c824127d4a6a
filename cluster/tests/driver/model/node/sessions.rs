//! What sessions do.

use super::{Node, Session, Ticket};
use crate::model::engine::Event;
use request_purgatory_cluster::Change;
use std::collections::BTreeSet;
use tokio::time::Instant;

impl Node {
    pub fn happened(&mut self, now: Instant, watched: Option<usize>, event: Event) {
        self.take_orders();
        self.forget(now, watched);
        match event {
            Event::Opened => {
                self.sessions_failed.begin(now, "a session");
                (self.opens, self.asked_in) = (true, self.generation);
            }
            Event::Advises(advice) => {
                assert!(self.is_to_be_advised, "the feed is asked for nothing");
                (self.advice, self.is_to_be_advised) = (advice, false);
            }
            Event::Refused(word) => {
                self.is_to_be_advised = true;
                self.sessions_failed.begin(now, "an attempt");
                self.counts.failed += 1;
                self.session_failed(word, now);
            }
            Event::Began(number, keys, reading) => self.read_began(number, keys, reading, now),
            Event::Returned(number, is_sound) => {
                let ticket = self.tickets.remove(&number).expect("it began");
                match ticket.opens {
                    true => self.session_opens(&ticket, is_sound, now),
                    false => self.read_returned(ticket, is_sound, now),
                }
            }
            Event::Told(changes) => self.heard(&changes, now),
            Event::Watched(keys) => self.watched(&keys, now),
            Event::Unwatches(keys) => {
                assert!(
                    keys.len() <= self.config.read_batch,
                    "too many keys at once"
                );
            }
            Event::Failed(word) => self.session_failed(word, now),
            Event::Closed => {
                if self.session.is_some() && !self.is_shut_down {
                    let session = self.session.as_ref().expect("as seen");
                    assert!(session.finds.len() > 1, "the session has ended for nothing");
                    self.session_failed("unheard", now);
                }
                let is_gap = self.is_open && !self.is_shut_down;
                self.counts.gaps += u64::from(is_gap);
                self.is_open = false;
            }
        }
        self.note_step(now);
    }

    pub(super) fn session_opens(&mut self, ticket: &Ticket, is_sound: bool, now: Instant) {
        self.is_to_be_advised = true;
        if !is_sound {
            self.counts.failed += 1;
            return self.session_failed("unread", now);
        }
        self.counts.sessions += 1;
        self.is_open = true;
        if self.generation != self.asked_in {
            return self.session_failed("reset", now);
        }
        let epoch = ticket.reading.epoch;
        match self.epoch {
            None => self.epoch = Some(epoch),
            Some(known) if known != epoch => self.reset(epoch, now),
            Some(_) => {}
        }
        self.session = Some(Session {
            of: self.generation,
            owed: self.keys.keys().map(|key| (*key, false)).collect(),
            live_since: None,
            finds: BTreeSet::new(),
        });
        self.progressed(now);
    }

    pub(super) fn watched(&mut self, keys: &[u64], now: Instant) {
        let batch = self.config.read_batch;
        assert!(keys.len() <= batch, "too many keys at once");
        let Some(session) = &mut self.session else {
            return;
        };
        let owed = session.owed.iter_mut().filter(|it| keys.contains(it.0));
        owed.for_each(|it| *it.1 = true);
        session
            .owed
            .retain(|key, is_told| !*is_told || !keys.contains(key) || self.keys.contains_key(key));
        for &key in keys {
            self.want(key, true);
            if !self.is_exact && self.keys.contains_key(&key) {
                self.settles.insert(key, now + self.config.settle);
            }
        }
        self.progressed(now);
    }

    pub(super) fn heard(&mut self, changes: &[Change<u64>], now: Instant) {
        let Some(session) = &self.session else {
            return;
        };
        let of = session.of;
        for change in changes {
            if change.epoch.is_some_and(|epoch| Some(epoch) != self.epoch) {
                return self.session_failed("reset", now);
            }
            let Some(known) = self.keys.get_mut(&change.key) else {
                continue;
            };
            self.counts.heard += 1;
            if of == self.generation {
                known.heard = known.heard.max(change.version);
                self.announce(change.key, change.version, now);
            }
        }
    }
}
