//! The bounds on the number and on the total weight of parked payloads. A payload counts from the moment when it is
//! parked until its completion has run.

use crate::cell::address::Address;
use crate::sync::{AtomicU64, MAX_TIMER_SHARDS, Mutex, MutexGuard, Ordering};
use std::collections::BTreeMap;

/// The weight of a payload for which no other weight is noted.
pub(crate) const ONE: u64 = 1;

/// The permits of an engine. A payload takes a permit (a place under the bounds) before it gets a slot. The permit is
/// freed when the user's code for the payload has run, or when the payload goes back to the caller.
///
/// Without a bound (`None`) nothing is counted, and a park pays for one branch. Each bound needs one counter. With both
/// bounds, a park and an ending take a lock as well.
pub(crate) struct Permits(Option<Box<Bounds>>);

struct Bounds {
    number: Option<Bound>,
    /// The bound on the sum of the weights, and the weights other than [`ONE`] in this sum.
    weight: Option<(Bound, Weights)>,
    /// Locked while both sums change, for a few instructions. A payload that fits under the number but not under the
    /// weight takes a place under the number for a moment. Without the lock, another thread could be rejected
    /// meanwhile, although its payload fits under both bounds. It could also be rejected while an ending has lowered
    /// one of the sums and not yet the other.
    both: Mutex<()>,
}

/// One bound, with the sum that it limits. The sum never exceeds the bound, and no addend that fits is rejected.
struct Bound {
    max: u64,
    taken: AtomicU64,
}

impl Bound {
    fn new(max: u64) -> Self {
        Self {
            max,
            taken: AtomicU64::new(0),
        }
    }

    /// Adds `addend` to the sum if the result is within the bound. Returns whether it is.
    fn take(&self, addend: u64) -> bool {
        // ORDERING: Acquire pairs with the Release in `free`: the user's code for the payload that has freed a place
        // happens before another payload gets the place. The read-modify-writes of other threads in between continue
        // the release sequence. Relaxed if `addend` does not fit: a caller that is rejected needs to see nothing that
        // other threads wrote.
        let (set, fetch) = (Ordering::Acquire, Ordering::Relaxed);
        // INVARIANT: the sum is at most `max`, so the subtraction does not overflow.
        let next = |taken| (addend <= self.max - taken).then(|| taken + addend);
        self.taken.fetch_update(set, fetch, next).is_ok()
    }

    fn free(&self, addend: u64) {
        // ORDERING: Release pairs with the Acquire in `take`: the user's code for this payload happens before another
        // payload gets the place.
        let taken = self.taken.fetch_sub(addend, Ordering::Release);
        debug_assert!(addend <= taken, "a place is freed that was not taken");
    }
}

/// The weights other than [`ONE`]. They are kept because a payload is weighed only once, when it is parked, and its end
/// must free exactly the weight that it took.
struct Weights(Box<[ShardWeights]>);

/// The weights of the payloads that were parked in one timer shard.
#[derive(Default)]
struct ShardWeights {
    /// The weights by the payload's address. A tree grows and shrinks by a node at a time, however many weights it has.
    /// A hash table moves all of them when it grows, and the threads that park or end payloads of the shard would have
    /// to wait.
    by_address: Mutex<BTreeMap<Address, u64>>,
    /// The number of weights in `by_address`, written under its lock. A thread that frees a payload's permit reads this
    /// number first. If it is 0, the payload weighs [`ONE`], for which no weight is kept, and the thread takes no lock.
    count: AtomicU64,
}

impl Weights {
    fn new() -> Self {
        let shards = (0..MAX_TIMER_SHARDS).map(|_| ShardWeights::default());
        Self(shards.collect())
    }

    fn note(&self, at: Address, weight: u64) {
        let shard = &self.0[at.shard()];
        let mut by_address = shard.by_address.lock();
        by_address.insert(at, weight);
        // ORDERING: Relaxed. The load in `remove` must not read 0 for this payload: its weight would stay in the tree.
        // This thread holds the payload now. Another thread can end it, and call `remove`, only after this thread has
        // released it. So this store happens before that load, which reads this store or a later one. Every later store
        // is made under this lock, and is not 0 as long as this weight is in the tree.
        let count = by_address.len() as u64;
        shard.count.store(count, Ordering::Relaxed);
    }

    /// Removes and returns the weight of the payload that was parked at `at`: [`ONE`] if none was noted.
    fn remove(&self, at: Address) -> u64 {
        let shard = &self.0[at.shard()];
        // ORDERING: Relaxed on the load and the store. If this payload has a weight in the tree, the load does not read
        // 0, because the store in `note` happens before it. Otherwise the weight is `ONE`, whatever the load reads.
        if shard.count.load(Ordering::Relaxed) == 0 {
            return ONE;
        }
        let mut by_address = shard.by_address.lock();
        let weight = by_address.remove(&at).unwrap_or(ONE);
        let count = by_address.len() as u64;
        shard.count.store(count, Ordering::Relaxed);
        weight
    }
}

impl Permits {
    pub(crate) fn new(max_parked: Option<u64>, max_weight: Option<u64>) -> Self {
        let is_bounded = max_parked.is_some() || max_weight.is_some();
        Self(is_bounded.then(|| {
            Box::new(Bounds {
                number: max_parked.map(Bound::new),
                weight: max_weight.map(|max| (Bound::new(max), Weights::new())),
                both: Mutex::default(),
            })
        }))
    }

    #[inline]
    pub(crate) fn is_bounded(&self) -> bool {
        self.0.is_some()
    }

    /// Takes a permit for a payload of this weight. Returns `false` if the payload would exceed a bound. The permit of
    /// a payload that gets no slot is freed by [`free_unparked`](Self::free_unparked), every other permit by
    /// [`free`](Self::free).
    #[inline]
    pub(crate) fn take(&self, weight: u64) -> bool {
        self.0.as_ref().is_none_or(|bounds| bounds.take(weight))
    }

    /// Notes that the payload parked at `at` has taken a permit for `weight`, so that [`free`](Self::free) finds the
    /// weight.
    #[inline]
    pub(crate) fn park_at(&self, at: Address, weight: u64) {
        if let Some(bounds) = self.0.as_ref().filter(|_| weight != ONE) {
            bounds.park_at(at, weight);
        }
    }

    /// Frees the permit of the payload that was parked at `at`.
    #[inline]
    pub(crate) fn free(&self, at: Address) {
        if let Some(bounds) = &self.0 {
            bounds.free(at);
        }
    }

    /// Frees the permit of a payload that has taken a permit for `weight`, but was not parked.
    #[cold]
    pub(crate) fn free_unparked(&self, weight: u64) {
        if let Some(bounds) = &self.0 {
            bounds.free_weight(weight);
        }
    }

    /// The sum of the weights of all permits that are taken; 0 if there is no bound on the weight. Takes no lock.
    pub(crate) fn weight(&self) -> u64 {
        let weight = self.0.as_ref().and_then(|bounds| bounds.weight.as_ref());
        // ORDERING: Relaxed: the sum is a statistic, and no thread reads other memory by it.
        weight.map_or(0, |(weight, _)| weight.taken.load(Ordering::Relaxed))
    }
}

// `take`, `park_at` and `free` are cold and not inlined. So in an engine that bounds neither number nor weight, and
// never calls them, a park keeps its values in registers.
impl Bounds {
    #[cold]
    #[inline(never)]
    fn take(&self, added: u64) -> bool {
        let _together = self.together();
        if self.number.as_ref().is_some_and(|number| !number.take(1)) {
            return false;
        }
        let weight = self.weight.as_ref();
        let fits = weight.is_none_or(|(weight, _)| weight.take(added));
        if let (false, Some(number)) = (fits, &self.number) {
            number.free(1);
        }
        fits
    }

    /// Locks `both`, if there are two bounds: the caller then changes both sums in one step.
    fn together(&self) -> Option<MutexGuard<'_, ()>> {
        let has_both = self.number.is_some() && self.weight.is_some();
        has_both.then(|| self.both.lock())
    }

    #[cold]
    #[inline(never)]
    fn park_at(&self, at: Address, weight: u64) {
        if let Some((_, noted)) = &self.weight {
            noted.note(at, weight);
        }
    }

    #[cold]
    #[inline(never)]
    fn free(&self, at: Address) {
        let noted = self.weight.as_ref().map(|(_, noted)| noted);
        self.free_weight(noted.map_or(ONE, |noted| noted.remove(at)));
    }

    fn free_weight(&self, freed: u64) {
        let _together = self.together();
        if let Some(number) = &self.number {
            number.free(1);
        }
        if let Some((weight, _)) = &self.weight {
            weight.free(freed);
        }
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    fn at(index: u32) -> Address {
        Address::new(0, index, 0)
    }

    fn noted(bounds: &Bounds) -> &[ShardWeights] {
        let (_, noted) = bounds.weight.as_ref().expect("the weight is bounded");
        &noted.0
    }

    /// A payload that is rejected for its weight does not count against the number. A payload that is rejected because
    /// of the number does not count against the weight.
    #[test]
    fn g17_a_payload_fits_under_both_bounds_or_takes_nothing() {
        let permits = Permits::new(Some(2), Some(10));
        assert!(permits.take(4) && !permits.take(7) && permits.take(6));
        assert!(!permits.take(0), "two are there");
        assert_eq!(permits.weight(), 10);
        permits.park_at(at(1), 4);
        permits.free(at(1));
        assert!(!permits.take(5) && permits.take(ONE));
        assert_eq!(permits.weight(), 7);
        permits.free_unparked(6);
        permits.free(at(2));
        assert_eq!(permits.weight(), 0);
        assert!(permits.take(10) && !permits.take(u64::MAX));
    }

    #[test]
    fn g17_without_a_bound_of_the_number_a_weight_of_none_always_fits() {
        let permits = Permits::new(None, Some(0));
        assert!(permits.take(0) && permits.take(0) && !permits.take(ONE));
        assert!(permits.take(0));
        permits.park_at(at(1), 0);
        permits.free(at(1));
        assert_eq!(permits.weight(), 0);
    }

    /// Whoever reads the statistics waits for no thread that parks or ends a payload.
    #[test]
    fn g20_the_sum_of_the_weights_is_read_without_a_lock() {
        for max_parked in [None, Some(9)] {
            let permits = Permits::new(max_parked, Some(9));
            assert!(permits.take(4));
            permits.park_at(at(1), 4);
            let bounds = permits.0.as_deref().expect("it is bounded");
            let trees = noted(bounds).iter().map(|shard| shard.by_address.lock());
            let locked = (bounds.both.lock(), trees.collect::<Vec<_>>());
            assert_eq!(permits.weight(), 4);
            drop(locked);
            permits.free(at(1));
            assert_eq!(permits.weight(), 0);
        }
    }

    /// The test covers these cases:
    ///
    /// * All payloads are of one timer shard.
    /// * Permits are freed in another order than they were taken.
    /// * Another payload is parked in a slot before the permit of the slot's earlier payload is freed.
    /// * Some payloads weigh [`ONE`]. Their weights are not stored.
    #[test]
    fn g17_each_permit_frees_the_weight_that_it_took() {
        let permits = Permits::new(None, Some(u64::MAX));
        let parked = |index: u32| (Address::new(3, index / 3, index % 3), u64::from(index % 5));
        for (at, weight) in (0..1_000).map(parked) {
            assert!(permits.take(weight));
            permits.park_at(at, weight);
        }
        let mut sum = permits.weight();
        assert_eq!(sum, 2_000);
        for (at, weight) in (0..1_000).map(|step| parked(step * 7 % 1_000)) {
            permits.free(at);
            sum -= weight;
            assert_eq!(permits.weight(), sum);
        }
        assert_eq!(sum, 0);
    }

    /// When all noted weights are removed, every count is 0 again. Then the end of a payload that weighs [`ONE`] takes
    /// no lock.
    #[test]
    fn g28_weights_that_have_gone_are_not_kept() {
        let permits = Permits::new(None, Some(u64::MAX));
        for index in 0..1_000 {
            assert!(permits.take(2));
            permits.park_at(at(index), 2);
        }
        (0..1_000).for_each(|index| permits.free(at(index)));
        for shard in noted(permits.0.as_deref().expect("it is bounded")) {
            assert!(shard.by_address.lock().is_empty());
            assert_eq!(shard.count.load(Ordering::Relaxed), 0);
        }
    }
}
