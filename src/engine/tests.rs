//! How long a home's lock is held.

use super::Span;
use super::home::{Admission, Home};
use crate::address::SLOTS;
use crate::cell::slab::Released;
use crate::observe::Since;
use crate::scheme::HierarchicalWheel;
use crate::sync::SLICE;

/// A bucket of so many slices, that first cascades and then drains: whoever wants the lock gets it between any two.
#[test]
fn g20_one_hold_of_the_lock_drains_one_slice() {
    const SLICES: usize = 100;
    // Two levels up from the present.
    const DEADLINE: u64 = 64 * 64;
    let home = Home::<usize, HierarchicalWheel>::new(0, 64);
    for number in 0..SLICES * SLICE {
        let span = Span {
            start: 0,
            deadline: DEADLINE + 1,
            present: 0,
            since: Since::default(),
        };
        let Admission::Admitted(held, _) = home.park(home.lock(), number, 0, span, SLOTS) else {
            panic!("there is room");
        };
        assert!(matches!(held.release(false), Released::Parked { .. }));
    }
    home.begin_pass(DEADLINE + 1);
    let (mut holds, mut fired) = (0, 0);
    loop {
        let due = home.drain(DEADLINE + 1);
        assert!(due.fired.len() <= SLICE, "{} in one hold", due.fired.len());
        assert!(home.try_lock().is_some());
        holds += 1;
        fired += due.fired.len();
        if !due.more {
            break;
        }
    }
    assert_eq!(fired, SLICES * SLICE);
    assert!(
        holds >= 2 * SLICES,
        "{holds} holds for {SLICES} slices that cascade and fire"
    );
}
