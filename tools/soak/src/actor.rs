//! A thread that works on all purgatories of an epoch.

use crate::caller::Caller;
use crate::random::Random;
use crate::stage::{Operation, Stage};
use request_purgatory::Purgatory;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of the calls of a purgatory that is shut down already, one in this many is made.
const LATE_CALLS: u64 = 16;

pub(crate) struct Actor {
    pub(crate) stages: Vec<(Arc<Stage>, Purgatory<Operation>)>,
    pub(crate) random: Random,
    pub(crate) duration: Duration,
}

impl Actor {
    pub(crate) fn run(mut self) {
        let start = Instant::now();
        while start.elapsed() < self.duration {
            let place = self.random.below(self.stages.len() as u64) as usize;
            let (stage, purgatory) = &self.stages[place];
            if purgatory.is_shut_down() && !self.random.once_in(LATE_CALLS) {
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
