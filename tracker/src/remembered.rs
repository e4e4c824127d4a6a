//! The requests that have most recently ended without a response, each by the hash of its id.

use hashbrown::HashMap;
use request_purgatory::purgatory::RandomState;
use std::collections::VecDeque;

/// The requests that have most recently ended without a response. A response to such a request is late, and not
/// unknown. Only hashes of ids are stored, so the size of an id does not matter.
pub(crate) struct Remembered {
    /// For each hash of an id: how many remembered requests with this hash still wait for a late response, and how many
    /// have received one.
    counts: HashMap<u64, Ended, RandomState>,
    /// The hash of each remembered request (one that has ended without a response). The request that ended first is at
    /// the front.
    order: VecDeque<u64>,
    /// The maximum length of `order`.
    max: usize,
    /// Whether a call that ends more than `max` requests may raise `max`, so that all of them are remembered. `false`
    /// if the user has chosen `max`.
    grows: bool,
}

/// The number of requests that are remembered if the user has not chosen a number. A call of
/// [`end_together`](Remembered::end_together) can raise the number.
const USUALLY: usize = 8_192;

#[derive(Default)]
struct Ended {
    waiting: u32,
    answered: u32,
}

impl Remembered {
    /// Remembers the last `chosen` requests. If `chosen` is `None`, remembers the last 8,192 requests, or more after a
    /// call of [`end_together`](Self::end_together) with a greater number.
    pub(crate) fn new(chosen: Option<usize>) -> Self {
        let mut remembered = Self {
            counts: HashMap::default(),
            order: VecDeque::new(),
            max: 0,
            grows: chosen.is_none(),
        };
        remembered.set_max(chosen.unwrap_or(USUALLY));
        remembered
    }

    fn set_max(&mut self, max: usize) {
        // The counts of one hash have 32 bits. With a limit of `u32::MAX` requests, they cannot overflow.
        self.max = max.min(u32::MAX as usize);
    }

    /// Raises `max` to `requests`, unless `max` is greater already or the user has chosen it. A call that ends many
    /// requests together calls this first, so that all of them are remembered. `requests` is their number, or a greater
    /// one.
    pub(crate) fn end_together(&mut self, requests: usize) {
        if self.grows && requests > self.max {
            self.set_max(requests);
        }
    }

    /// Remembers a request that has ended, by the hash of its id. If `max` requests are remembered already, first
    /// forgets the oldest.
    pub(crate) fn add(&mut self, hash: u64) {
        if self.max == 0 {
            return;
        }
        if self.order.len() == self.max {
            if let Some(oldest) = self.order.pop_front() {
                self.forget(oldest);
            }
        }
        self.counts.entry(hash).or_default().waiting += 1;
        self.order.push_back(hash);
    }

    /// Forgets the oldest request whose id has this hash.
    fn forget(&mut self, hash: u64) {
        let Some(ended) = self.counts.get_mut(&hash) else {
            return;
        };
        // Several remembered requests may have the same hash. `take` counts a late response for the oldest of them that
        // has had none. So those that have had a response are older than the others, and if there are any, the request
        // to forget is one of them.
        match ended.answered {
            0 => ended.waiting -= 1,
            _ => ended.answered -= 1,
        }
        if ended.waiting + ended.answered == 0 {
            self.counts.remove(&hash);
        }
    }

    /// Counts a late response for the oldest remembered request of this hash that has had no response yet. Returns
    /// `false` if there is no such request.
    pub(crate) fn take(&mut self, hash: u64) -> bool {
        let ended = self.counts.get_mut(&hash);
        let Some(ended) = ended.filter(|ended| ended.waiting > 0) else {
            return false;
        };
        ended.waiting -= 1;
        ended.answered += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Remembered;

    /// Compares `Remembered` with a list of all requests that have ended.
    #[test]
    fn g06_as_many_ends_are_remembered_as_are_asked_for() {
        let mut random = fastrand::Rng::with_seed(1);
        for max in [0, 1, 2, 7] {
            let (mut remembered, mut all) = (Remembered::new(Some(max)), Vec::<(u64, bool)>::new());
            for _ in 0..10_000 {
                let hash = random.u64(..4);
                if random.bool() {
                    remembered.add(hash);
                    all.push((hash, false));
                } else {
                    let last = all.len().saturating_sub(max);
                    let found = all[last..].iter_mut().find(|end| **end == (hash, false));
                    let expected = found.map(|end| end.1 = true).is_some();
                    assert_eq!(remembered.take(hash), expected);
                }
                assert!(remembered.order.len() <= max && remembered.counts.len() <= max);
            }
        }
    }
}
