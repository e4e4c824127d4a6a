//! Two purgatories and the model of them, side by side.

use super::call::{Call, Setup};
use super::operation::Event;
use super::real::Real;
use super::sorted_map::{Calls, Model};
use crate::support::spans::LAST_READING;
use request_purgatory::time::Clock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) struct Pair {
    pub(crate) model: Model,
    pub(crate) real: Arc<Real>,
}

impl Pair {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            model: Model::new(setup),
            real: Real::new(setup),
        }
    }

    /// Makes the call on the purgatories. Then the model makes it, and follows the log.
    pub(crate) fn call(&mut self, call: &Call) {
        let (real, model) = (&self.real, &mut self.model);
        match call {
            Call::Do(act) => {
                real.act(act, None);
                model.follow(real.take_log(), |model| model.act(act, None));
            }
            Call::Pass(span) => {
                let time = span.of(model.setup.choices.tick);
                self.pass(time);
            }
        }
        self.real.poll_all();
        self.model.follow(self.real.take_log(), Model::poll_all);
    }

    fn pass(&mut self, time: Duration) {
        self.real.clock.advance(time);
        self.model.now = self.model.now.saturating_add(time).min(LAST_READING);
        assert_eq!(self.real.clock.now().since_origin(), self.model.now);
    }

    /// The last strong handles go, and what refers to the purgatories stays a while.
    pub(crate) fn finish(mut self) {
        self.real.calm.store(true, Ordering::Relaxed);
        self.model.calm = true;
        for side in 0..2 {
            let weak = self.real.side(side).downgrade();
            let parked = self.model.sides[side].parked.len();
            assert_eq!(weak.upgrade().map(|real| real.stats().parked), Some(parked));
            // Another handle takes its place, so that the rest can be asked.
            let spare = Real::new(&self.model.setup).side(side);
            drop(self.real.replaced(side, spare));
            let log = self.real.take_log();
            self.model.follow(log, |model| model.shut_down(side));
            assert!(weak.upgrade().is_none());
        }
        self.real.poll_all();
        self.model.follow(self.real.take_log(), Model::poll_all);
        for number in 0..self.model.known.len() {
            if let Some(handle) = self.real.handle(number) {
                assert!(!handle.is_parked() && !handle.check() && handle.cancel().is_none());
            }
        }
        assert!(self.real.resolved_are_empty());
    }
}

impl Model {
    /// Does what the log says, all of it and nothing else.
    fn follow(&mut self, log: Vec<Event>, act: impl FnOnce(&mut Self)) {
        (self.followed.log, self.followed.at) = (log, 0);
        act(self);
        assert_eq!(self.followed.next(), None, "after {:?}", self.followed.log);
    }
}
