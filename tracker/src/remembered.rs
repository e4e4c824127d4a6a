//! The most recent requests that ended without a response, by the hashes of their ids.

use hashbrown::HashMap;
use request_purgatory::purgatory::RandomState;
use std::collections::VecDeque;

/// The remembered requests, in the order of their ends. Ids are not stored, so their size does not matter.
pub(crate) struct Remembered {
    /// For each hash: how many requests wait for a late response, and how many have received one.
    counts: HashMap<u64, Ended, RandomState>,
    /// The hashes of all these requests, oldest first.
    order: VecDeque<u64>,
    /// The maximum length of `order`.
    max: usize,
    /// Whether `max` grows with the number of requests that end together.
    grows: bool,
}

/// The least number that is remembered, unless a user has chosen the number.
const USUALLY: usize = 8_192;

#[derive(Default)]
struct Ended {
    waiting: u32,
    answered: u32,
}

impl Remembered {
    /// Remembers exactly `chosen` requests, or else as many as [end together](Self::end_together).
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
        // At most `u32::MAX`, so that the count of one hash cannot overflow.
        self.max = max.min(u32::MAX as usize);
    }

    /// Makes sure that the requests which are about to end together are all remembered, unless a user has chosen the
    /// number.
    pub(crate) fn end_together(&mut self, requests: usize) {
        if self.grows && requests > self.max {
            self.set_max(requests);
        }
    }

    /// Remembers that a request with an id of this hash has ended. If `max` requests are remembered, first forgets the
    /// oldest.
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

    /// Forgets the oldest request of this hash.
    fn forget(&mut self, hash: u64) {
        let Some(ended) = self.counts.get_mut(&hash) else {
            return;
        };
        // Each response counts for the oldest waiting request of its hash. So if any request of this hash has been
        // answered, the oldest has been answered.
        match ended.answered {
            0 => ended.waiting -= 1,
            _ => ended.answered -= 1,
        }
        if ended.waiting + ended.answered == 0 {
            self.counts.remove(&hash);
        }
    }

    /// Counts a late response for the oldest waiting request of this hash. `false` if no request of this hash waits.
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

    /// Compares `Remembered` with a list of all ends.
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
