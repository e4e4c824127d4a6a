//! An operation that no check completes, for test targets that measure the whole process.

use request_purgatory::{Completion, DelayedOperation};
use std::time::Duration;

/// It waits for its timeout.
pub struct Op(pub Duration);

impl DelayedOperation for Op {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.0
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(self, _: Completion) {}
}
