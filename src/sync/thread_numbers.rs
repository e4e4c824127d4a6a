//! Numbers for threads: none that another living thread has, low ones first.
#![allow(unreachable_pub, reason = "the models see it")]

use super::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Default)]
pub struct ThreadNumbers(Mutex<Pool>);

#[derive(Default)]
struct Pool {
    given_back: BinaryHeap<Reverse<u32>>,
    /// The first that was never taken.
    fresh: u32,
}

impl ThreadNumbers {
    pub fn take(&self) -> u32 {
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
    pub fn give_back(&self, number: u32) {
        self.0.lock().given_back.push(Reverse(number));
    }
}
