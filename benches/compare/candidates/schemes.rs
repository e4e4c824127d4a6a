//! Each timer scheme of the library under its name, as the paper describes it.

#[cfg(feature = "reference-schemes")]
use request_purgatory::scheme::reference::{
    OrderedList, SimpleWheel, SortedHashedWheel, UnorderedList,
};
use request_purgatory::scheme::{HashedWheel, Heap, HierarchicalWheel, Scheme, SteppedWheel};

use crate::timer_queue::Tick;

/// Slots of a wheel of a single level.
const ONE_LEVEL: u32 = 4096;

/// Slots of each of several levels: the library's default.
const MANY_LEVELS: u32 = 64;

/// A scheme, and what a workload must know to measure it fairly.
pub(crate) trait Named: Scheme {
    const NAME: &'static str;

    /// Slots of each level; ignored by schemes without.
    const SLOTS: u32 = MANY_LEVELS;

    /// The longest timeout that it takes.
    const SPAN: Tick = Tick::MAX;

    /// Whether a start goes through the timers with later deadlines, and so should find few of them in the
    /// preparations that are not measured.
    const SORTS: bool = false;

    /// The most timers with which one operation does not take milliseconds.
    const MOST: usize = usize::MAX;
}

#[cfg(feature = "reference-schemes")]
impl Named for UnorderedList {
    const NAME: &'static str = "unordered_list";
}

#[cfg(feature = "reference-schemes")]
impl Named for OrderedList {
    const NAME: &'static str = "ordered_list";
    const SORTS: bool = true;
    const MOST: usize = 100_000;
}

impl Named for Heap {
    const NAME: &'static str = "heap";
}

#[cfg(feature = "reference-schemes")]
impl Named for SimpleWheel {
    const NAME: &'static str = "simple_wheel";
    const SLOTS: u32 = ONE_LEVEL;
    const SPAN: Tick = ONE_LEVEL as Tick - 1;
}

#[cfg(feature = "reference-schemes")]
impl Named for SortedHashedWheel {
    const NAME: &'static str = "sorted_hashed_wheel";
    const SLOTS: u32 = ONE_LEVEL;
    const SORTS: bool = true;
}

impl Named for HashedWheel {
    const NAME: &'static str = "hashed_wheel";
    const SLOTS: u32 = ONE_LEVEL;
}

impl Named for SteppedWheel {
    const NAME: &'static str = "stepped_wheel";
}

impl Named for HierarchicalWheel {
    const NAME: &'static str = "hierarchical_wheel";
}

/// Enters every scheme that there is with its instance of the round.
#[cfg(feature = "reference-schemes")]
macro_rules! all_schemes {
    ($round:ident) => {{
        use request_purgatory::scheme::{reference::*, *};
        $crate::contest::contenders![scheme, $round:
            UnorderedList,
            OrderedList,
            Heap,
            SimpleWheel,
            SortedHashedWheel,
            HashedWheel,
            SteppedWheel,
            HierarchicalWheel,
        ]
    }};
}

/// Enters every scheme that there is with its instance of the round.
#[cfg(not(feature = "reference-schemes"))]
macro_rules! all_schemes {
    ($round:ident) => {{
        use request_purgatory::scheme::*;
        $crate::contest::contenders![scheme, $round:
            Heap,
            HashedWheel,
            SteppedWheel,
            HierarchicalWheel,
        ]
    }};
}
pub(crate) use all_schemes;
