//! The bounds on the number and on the total weight of parked payloads. A payload counts from its park until its
//! completion has run.

use crate::cell::address::Address;
use crate::sync::{AtomicU64, Mutex, Ordering};
use std::collections::HashMap;

/// The weight of a payload for which no other weight is noted.
pub(crate) const ONE: u64 = 1;

/// When the table of weights becomes empty, it keeps its memory only if it has room for at most this many weights.
const KEPT: usize = 28;

/// The permits of an engine. A payload takes a permit (a place under the bounds) before it gets a slot. The permit is
/// freed when the user's code for the payload has run, or when the payload goes back to the caller.
///
/// Without a bound (`None`) nothing is counted, and a park pays for one branch. A bound on the number needs one
/// counter. A bound on the weight needs a lock, because a payload has to fit under both bounds at once. With two
/// counters, a payload that fits under the first bound but not under the second would take a place under the first for
/// a moment, and could keep out a payload that fits under both.
pub(crate) struct Permits(Option<Box<Bounds>>);

enum Bounds {
    Number {
        max: u64,
        taken: AtomicU64,
    },
    Weight {
        max_parked: u64,
        max_weight: u64,
        taken: Mutex<Taken>,
    },
}

#[derive(Default)]
struct Taken {
    payloads: u64,
    weight: u64,
    /// The weights other than [`ONE`], by the payload's address. They are kept because a payload is weighed only once,
    /// when it is parked, and its end must free exactly the weight that it took.
    weights: HashMap<Address, u64>,
}

impl Taken {
    fn free(&mut self, weight: u64) {
        self.payloads -= 1;
        self.weight -= weight;
    }
}

impl Permits {
    pub(crate) fn new(max_parked: Option<u64>, max_weight: Option<u64>) -> Self {
        let bounds = match (max_parked, max_weight) {
            (None, None) => None,
            (Some(max), None) => Some(Bounds::Number {
                max,
                taken: AtomicU64::new(0),
            }),
            (max_parked, Some(max_weight)) => Some(Bounds::Weight {
                max_parked: max_parked.unwrap_or(u64::MAX),
                max_weight,
                taken: Mutex::default(),
            }),
        };
        Self(bounds.map(Box::new))
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

    /// The sum of the weights of all permits that are taken; 0 if there is no bound on the weight.
    pub(crate) fn weight(&self) -> u64 {
        match self.0.as_deref() {
            Some(Bounds::Weight { taken, .. }) => taken.lock().weight,
            Some(Bounds::Number { .. }) | None => 0,
        }
    }
}

// These methods are cold and not inlined, so that a park without bounds keeps its values in registers.
impl Bounds {
    #[cold]
    #[inline(never)]
    fn take(&self, weight: u64) -> bool {
        match self {
            Self::Number { max, taken } => {
                // ORDERING: Relaxed: the counter guards no other memory, and the read-modify-write keeps the count
                // exact.
                let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
                let next = |taken| (taken < *max).then_some(taken + 1);
                taken.fetch_update(set, fetch, next).is_ok()
            }
            Self::Weight {
                max_parked,
                max_weight,
                taken,
            } => {
                let mut taken = taken.lock();
                // INVARIANT: the weight that is taken is at most `max_weight`, so the subtraction does not overflow.
                let fits = taken.payloads < *max_parked && weight <= max_weight - taken.weight;
                if fits {
                    taken.payloads += 1;
                    taken.weight += weight;
                }
                fits
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn park_at(&self, at: Address, weight: u64) {
        if let Self::Weight { taken, .. } = self {
            taken.lock().weights.insert(at, weight);
        }
    }

    #[cold]
    #[inline(never)]
    fn free(&self, at: Address) {
        match self {
            Self::Number { .. } => self.free_weight(ONE),
            Self::Weight { taken, .. } => {
                let mut taken = taken.lock();
                let weight = taken.weights.remove(&at).unwrap_or(ONE);
                taken.free(weight);
                if taken.weights.is_empty() && taken.weights.capacity() > KEPT {
                    taken.weights = HashMap::new();
                }
            }
        }
    }

    fn free_weight(&self, weight: u64) {
        match self {
            // ORDERING: Relaxed: the counter guards no other memory.
            Self::Number { taken, .. } => _ = taken.fetch_sub(1, Ordering::Relaxed),
            Self::Weight { taken, .. } => taken.lock().free(weight),
        }
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    fn at(index: u32) -> Address {
        Address::new(0, index, 0)
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

    #[test]
    fn g28_weights_that_have_gone_keep_no_memory() {
        let permits = Permits::new(None, Some(u64::MAX));
        for index in 0..1_000 {
            assert!(permits.take(2));
            permits.park_at(at(index), 2);
        }
        (0..1_000).for_each(|index| permits.free(at(index)));
        let Some(Bounds::Weight { taken, .. }) = permits.0.as_deref() else {
            unreachable!("it was built with a bound of the weight");
        };
        assert!(taken.lock().weights.capacity() <= KEPT);
    }
}
