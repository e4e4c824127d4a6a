//! `Tracker` and `Requests`: the guarantees where each key has one value. `PROPTEST_CASES` says how many sequences the
//! property tests try.

mod chains;
mod endings;
mod futures;
mod keys;
mod model;
mod remembered;
mod requests;
mod requests_model;
mod shutdown;
mod stress;

use request_purgatory::tracker::Responded;
use testing as support;

fn delivered<R>(responded: Responded<R>) -> bool {
    matches!(responded, Responded::Delivered)
}
