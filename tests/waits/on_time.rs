//! G21, G29 and G30: deadlines that move, and what is found that no check announced.

mod missed;
mod moved;
mod recheck;

use crate::support::bell::Bell;
use crate::{by_hand, pass};
use request_purgatory::future::WaitError;
use request_purgatory::time::ManualClock;
use request_purgatory::{Deadline, Handle, Listener, Waits, future::WaitOperation};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// What a listener's task is told.
pub(crate) type Told = Poll<Result<(), WaitError>>;

/// It is told of a check or a recheck.
pub(crate) const WOKEN: Told = Poll::Ready(Ok(()));
const EXPIRED: Told = Poll::Ready(Err(WaitError::Expired));
/// How long a check may be late that announces what a recheck has found.
const GRACE: Duration = Duration::from_millis(100);

/// One call of `checked`, polled once and then dropped.
pub(crate) fn told(bell: &Arc<Bell>, listener: &mut Listener<u64>) -> Told {
    bell.poll(&mut pin!(listener.checked()))
}

/// A listener whose task is polled by hand, in a purgatory whose time passes by hand.
pub(crate) struct Waiter {
    pub(crate) waits: Waits<u64>,
    pub(crate) clock: ManualClock,
    pub(crate) bell: Arc<Bell>,
    /// `None` once the task has left.
    listener: Option<Listener<u64>>,
}

impl Waiter {
    pub(crate) fn new(
        (waits, clock): (Waits<u64>, ManualClock),
        listen: impl FnOnce(&Waits<u64>) -> Listener<u64>,
    ) -> Self {
        Self {
            listener: Some(listen(&waits)),
            waits,
            clock,
            bell: Bell::new(),
        }
    }

    /// It listens to key 1, and is rechecked after each interval.
    pub(crate) fn rechecked(timeout: impl Into<Deadline>, interval: Duration) -> Self {
        Self::new(by_hand(), |waits| {
            waits.listen([1], timeout).recheck_every(interval)
        })
    }

    fn recheck_every(&mut self, interval: Duration) {
        let listener = self.listener.take();
        self.listener = listener.map(|it| it.recheck_every(interval));
    }

    pub(crate) fn listener(&mut self) -> &mut Listener<u64> {
        self.listener.as_mut().expect("the task has not left")
    }

    pub(crate) fn handle(&mut self) -> Handle<WaitOperation<u64>> {
        let handle = self.listener().handle();
        handle.expect("there is room").clone()
    }

    pub(crate) fn told(&mut self) -> Told {
        let bell = self.bell.clone();
        told(&bell, self.listener())
    }

    pub(crate) fn check(&self, key: u64) {
        let completed = self.waits.check_and_complete(&key);
        assert_eq!(completed, 0, "a listener stays parked");
    }

    pub(crate) fn pass(&self, time: Duration) {
        pass(&self.waits, &self.clock, time);
    }

    /// The task has found what it waited for.
    fn satisfied(&mut self) {
        let listener = self.listener.take();
        listener.expect("the task has not left").satisfied();
    }

    pub(crate) fn leave(&mut self) {
        self.listener = None;
    }

    /// How many operations are parked, and how many checks were missed.
    fn parked_and_missed(&self) -> (usize, u64) {
        let stats = self.waits.stats();
        (stats.parked, stats.missed_checks)
    }
}
