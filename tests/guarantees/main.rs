//! The promises of the library, each by tests that bear its number. (G1, G2, G4, G5 and G7 are model-checked in
//! `loom-tests` besides; here they are put under load on real threads.)

#[path = "../support/mod.rs"]
mod support;

mod counts;
mod endings;
mod errors;
mod leftovers;
mod locks;
mod panics;
mod threads;
mod time;
