//! `Tracker` and `Requests`: the guarantees where each key has one value. `PROPTEST_CASES` says how many sequences the
//! property tests try.

#[path = "../support/mod.rs"]
mod support;

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

fn delivered<R>(responded: Responded<R>) -> bool {
    matches!(responded, Responded::Delivered)
}
