//! G24 with several servers of an engine, and with very many keys. `.ci/cluster-faults` runs these.
#![allow(unreachable_pub, reason = "a test has no users")]

mod herd;
#[path = "../faults/load.rs"]
mod load;
mod replicas;
#[path = "../support/mod.rs"]
mod support;
