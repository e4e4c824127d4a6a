//! The ground rules of completing by handle.

use super::{LONG, with_fresh};
use crate::candidate::ByHandle;
use crate::request::{Flag, Request};

/// # Panics
///
/// If the candidate breaks a rule.
pub(crate) fn run<C: ByHandle>() {
    if C::EXPIRES {
        super::run::<C>();
        with_fresh(async |candidate: &C| force_ends_once(candidate).await);
    }
}

/// A forced request leaves all its keys, and a check that comes first makes the handle useless.
async fn force_ends_once<C: ByHandle>(candidate: &C) {
    let flags = Flag::board(40);
    let handles: Vec<_> = flags
        .iter()
        .map(|flag| candidate.park_for_handle(Request::new(0, flag, LONG), &[1, 2]))
        .collect();
    candidate.finish().await;
    for (number, (flag, handle)) in flags.iter().zip(handles).enumerate() {
        let handle = handle.expect("it was not ready");
        flag.mark_completable();
        if number % 2 == 1 {
            assert_eq!(candidate.check(1), 1, "{}: by key", C::NAME);
        }
        let forced = candidate.force_complete(handle);
        assert_eq!(forced, number % 2 == 0, "{}: by handle", C::NAME);
        candidate.finish().await;
        assert!(flag.is_satisfied());
    }
}
