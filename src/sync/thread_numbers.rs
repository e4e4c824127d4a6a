//! Numbers for threads: none that another living thread has, low ones first.

use super::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(crate) struct ThreadNumbers(Mutex<Pool>);

struct Pool {
    given_back: BinaryHeap<Reverse<u32>>,
    /// The first that was never taken.
    fresh: u32,
}

impl ThreadNumbers {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Pool::new()))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Pool::new()))
    }

    pub(crate) fn take(&self) -> u32 {
        let mut pool = self.0.lock();
        match pool.given_back.pop() {
            Some(Reverse(number)) => number,
            None => {
                pool.fresh += 1;
                pool.fresh - 1
            }
        }
    }

    /// The thread does nothing more under this number.
    ///
    /// ORDERING: the lock orders what it did under the number before what the next one does that takes it.
    pub(crate) fn give_back(&self, number: u32) {
        self.0.lock().given_back.push(Reverse(number));
    }
}

impl Pool {
    const fn new() -> Self {
        Self {
            given_back: BinaryHeap::new(),
            fresh: 0,
        }
    }
}
