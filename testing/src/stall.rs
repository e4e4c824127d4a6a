//! An operation that a check examines for as long as the test wants.

use super::{NEVER_IN_A_TEST, Op, Probe};
use request_purgatory::Purgatory;
use request_purgatory::time::ManualClock;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The check that examines the operation.
pub struct Stall {
    entered: Receiver<()>,
    go_on: Sender<()>,
}

impl Probe {
    /// An operation that never completes by itself, and whose end this probe sees. Its third examination, which is that
    /// of the first check, lasts until the [`Stall`] ends.
    pub fn stalled_op<K>(self: &Arc<Self>, timeout: Duration) -> (Op<K>, Stall) {
        let ((entered, has_entered), (go_on, told)) = (channel(), channel());
        let (ending, mut examinations) = (self.clone(), 0);
        let op = Op::new(timeout)
            .when(move || {
                examinations += 1;
                if examinations == 3 {
                    entered.send(()).expect("the test waits");
                    told.recv().expect("the test says so");
                }
                false
            })
            .then(move |completion| ending.end(completion));
        let stall = Stall {
            entered: has_entered,
            go_on,
        };
        (op, stall)
    }
}

/// An operation on key 1 of a check that examines it as often as a holder does, since others ask for it each time.
/// During the last of these examinations `at_last` runs on another thread; what it leaves, the check finds beside the
/// wish for one more, which says what `further` says.
pub fn overasked_op(
    purgatory: &Purgatory<Op>,
    at_last: impl Fn(&Purgatory<Op>) + Send + Sync + 'static,
    mut further: impl FnMut() -> bool + Send + 'static,
) -> Op {
    // The park examines it twice, the check 16 times.
    const LAST: u32 = 2 + 16;
    let (others, mut examinations) = (purgatory.clone(), 0);
    Op::new(NEVER_IN_A_TEST).when(move || {
        examinations += 1;
        thread::scope(|scope| {
            if (3..=LAST).contains(&examinations) {
                scope.spawn(|| others.check_and_complete(&1));
            }
            if examinations == LAST {
                scope.spawn(|| at_last(&others));
            }
        });
        examinations > LAST && further()
    })
}

impl Stall {
    /// Checks `key` on another thread, and returns when that thread examines the operation.
    pub fn check<K: Eq + Hash + Clone + Send + Sync + 'static>(
        &self,
        purgatory: &Purgatory<Op<K>>,
        key: K,
    ) -> JoinHandle<usize> {
        let purgatory = purgatory.clone();
        self.examine(move || purgatory.check_and_complete(&key))
    }

    /// The same by any kind of check.
    pub fn examine(&self, check: impl FnOnce() -> usize + Send + 'static) -> JoinHandle<usize> {
        let check = thread::spawn(check);
        self.entered.recv().expect("the check examines it");
        check
    }

    /// Its deadline passes meanwhile: this thread drives the timer, finds it held, and leaves a mark. Then the examination
    /// goes on.
    pub fn end_after_the_deadline<K>(self, purgatory: &Purgatory<Op<K>>, clock: &ManualClock)
    where
        K: Eq + Hash + Clone + Send + Sync + 'static,
    {
        clock.advance(2 * NEVER_IN_A_TEST);
        assert_eq!(purgatory.advance(), 0, "the check holds it");
        self.end();
    }

    /// The examination goes on, and says no.
    pub fn end(self) {
        self.go_on.send(()).expect("the check waits");
    }
}
