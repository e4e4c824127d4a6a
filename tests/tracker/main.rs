//! `Tracker` and `Requests`: the guarantees where each key has one value. `PROPTEST_CASES` says how many sequences the
//! property test tries.

#[path = "../support/mod.rs"]
mod support;

mod endings;
mod futures;
mod keys;
mod model;
mod requests;
mod shutdown;
mod stress;
