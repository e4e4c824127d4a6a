//! The operation that is parked, checked and ended: it keeps its own record, and misbehaves as decided when it was made.

use super::Stage;
use crate::key::Key;
use crate::ledger::Ending;
use crate::misbehaviour::{At, Misbehaviour};
use crate::panics::{self, lock};
use crate::record::Record;
use request_purgatory::{Completion, DelayedOperation};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Something worth dropping: a lost operation shows in the memory.
const PAYLOAD: usize = 256;

#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) record: Arc<Record>,
    stage: Arc<Stage>,
    misbehaviour: Misbehaviour,
    timeout: Duration,
    /// The number of operations that were parked by callbacks of one another before this one.
    depth: u32,
    payload: Box<[u8; PAYLOAD]>,
}

impl Operation {
    pub(crate) fn new(
        record: Arc<Record>,
        stage: &Arc<Stage>,
        misbehaviour: Misbehaviour,
        timeout: Duration,
        depth: u32,
    ) -> Self {
        stage.accounts.made.add(1);
        Self {
            record,
            stage: stage.clone(),
            misbehaviour,
            timeout,
            depth,
            payload: Box::new([depth as u8; PAYLOAD]),
        }
    }

    /// The library has handed it back.
    pub(crate) fn returned(mut self, ending: Ending) {
        self.end(ending);
        // From here on a panic of its destructor would be ours.
        self.misbehaviour = Misbehaviour::calm();
    }

    fn end(&self, ending: Ending) {
        if let Err(earlier) = self.record.end(ending, &self.stage.accounts) {
            let what = format!("ended twice: {earlier:?}, then {ending:?}");
            self.stage.complain(what, &self.record);
        }
    }

    fn enter(&self, hook: &str) {
        self.stage.ledger.heartbeat.add(1);
        if !self.record.enter() {
            let what = format!("{hook} while another hook was running");
            self.stage.complain(what, &self.record);
        }
    }

    fn misbehave(&self, at: At) {
        if self.misbehaviour.locks == Some(at) {
            drop(lock(&self.stage.door));
        }
        match self.misbehaviour.sleeps {
            Some((when, time)) if when == at => sleep(time),
            _ => {}
        }
        match self.misbehaviour.reenters {
            Some((when, seed)) if when == at => (self.stage.reenter)(&self.stage, seed, self.depth),
            _ => {}
        }
    }
}

fn sleep(time: Duration) {
    if time >= Duration::from_millis(1) {
        return std::thread::sleep(time);
    }
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

impl DelayedOperation for Operation {
    type Key = Key;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.enter("try_complete");
        if !self.record.is_open() {
            let what = "try_complete after the end".to_owned();
            self.stage.complain(what, &self.record);
        }
        let look = self.record.look();
        let reenters =
            matches!(self.misbehaviour.reenters, Some((at, _)) if at == At::Examination(look));
        // What happens while this sleeps must be seen by another examination. But where it calls the library itself, its
        // answer is the last word on what it does there.
        let mut answer = self.stage.is_satisfied(&self.record);
        self.misbehave(At::Examination(look));
        if reenters {
            answer = self.stage.is_satisfied(&self.record);
        }
        self.record.answered(answer);
        self.record.leave();
        if self.misbehaviour.panics == Some(At::Examination(look)) {
            panics::raise(|| {
                self.stage.accounts.panics.add(1);
                // What panics at its first look is not parked yet, and is refused.
                self.end(match look {
                    1 => Ending::Rejected,
                    _ => Ending::Aborted,
                });
            });
        }
        answer
    }

    fn on_complete(self, completion: Completion) {
        self.enter("on_complete");
        let ending = match completion {
            Completion::Satisfied if self.record.looks() == 1 => Ending::AtOnce,
            Completion::Satisfied => Ending::Completed,
            Completion::Expired => Ending::Expired,
            Completion::Cancelled => Ending::Cancelled,
            Completion::ShutDown => Ending::ShutDown,
            other => panic!("{other:?} is unknown"),
        };
        match ending {
            Ending::Expired => self.stage.expired(&self.record),
            Ending::ShutDown => self.stage.ended_by_shutdown(&self.record),
            _ => {}
        }
        self.end(ending);
        self.misbehave(At::Completion);
        if self.misbehaviour.shuts_down {
            self.stage.shut_down();
        }
        self.record.leave();
        if self.misbehaviour.panics == Some(At::Completion) {
            panics::raise(|| self.stage.accounts.panics.add(1));
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        std::hint::black_box(&self.payload);
        if self.record.is_open() {
            let what = "dropped without an ending".to_owned();
            self.stage.complain(what, &self.record);
        }
        self.stage.accounts.dropped.add(1);
        if self.misbehaviour.panics == Some(At::Drop) {
            panics::raise(|| self.stage.accounts.panics.add(1));
        }
    }
}
