//! A thread that works on all purgatories of an epoch.

use crate::caller::Caller;
use crate::stage::{Operation, Stage};
use fastrand::Rng;
use request_purgatory::Purgatory;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of the calls of a purgatory that is shut down already, one in this many is made.
const LATE_CALLS: u64 = 16;

pub(crate) struct Actor {
    pub(crate) stages: Vec<(Arc<Stage>, Purgatory<Operation>)>,
    pub(crate) random: Rng,
    pub(crate) duration: Duration,
}

impl Actor {
    pub(crate) fn run(mut self) {
        let start = Instant::now();
        while start.elapsed() < self.duration {
            let place = self.random.usize(..self.stages.len());
            let (stage, purgatory) = &self.stages[place];
            if purgatory.is_shut_down() && self.random.u64(..LATE_CALLS) != 0 {
                match self.stages.iter().all(|(_, other)| other.is_shut_down()) {
                    true => break,
                    false => continue,
                }
            }
            let mut caller = Caller {
                stage,
                purgatory,
                random: &mut self.random,
                callback: None,
            };
            caller.act();
        }
    }
}
