//! Pools of numbers. One pool numbers the threads, and others number the resolved keys (`ResolvedKey`). A pool gives
//! out the lowest number that is not in use.
#![allow(unreachable_pub, reason = "the models see it")]

use super::Mutex;
use std::collections::BTreeSet;

#[derive(Default)]
pub struct Numbers(Mutex<Pool>);

#[derive(Default)]
struct Pool {
    given_back: BTreeSet<u32>,
    /// The lowest number that was never given out.
    fresh: u32,
}

impl Numbers {
    pub fn take(&self) -> u32 {
        let mut pool = self.0.lock();
        if let Some(number) = pool.given_back.pop_first() {
            return number;
        }
        pool.fresh += 1;
        pool.fresh - 1
    }

    /// Gives back a number that is not used any more.
    ///
    /// ORDERING: what a user of the number did before this call happens before what the next user does after `take`:
    /// both calls take the lock of the pool.
    pub fn put_back(&self, number: u32) {
        self.0.lock().given_back.insert(number);
    }
}
