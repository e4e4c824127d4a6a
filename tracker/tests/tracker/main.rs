//! `Tracker` and `Requests`: the guarantees where each key has one value. `PROPTEST_CASES` says how many sequences the
//! property tests try.

mod chains;
mod closures;
mod deadlines;
mod endings;
mod futures;
mod keys;
mod model;
mod panics;
mod points;
mod requests;
mod requests_model;
mod shutdown;
mod stress;

use request_purgatory_tracker::{RejectReason, Rejected, Responded};
use testing as support;

/// Why it was refused, if it was.
fn refusal<T, V>(result: &Result<T, Rejected<V>>) -> Option<RejectReason> {
    result.as_ref().err().map(Rejected::reason)
}

fn delivered<R>(responded: Responded<R>) -> bool {
    matches!(responded, Responded::Delivered)
}
