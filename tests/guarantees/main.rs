//! The promises of the library, each by tests that bear its number. (G1, G2, G4, G5 and G7 are model-checked in
//! `loom-tests` besides; here they are put under load on real threads.)

mod arrival;
mod bounds;
mod calls;
mod cascades;
mod causes;
mod chains;
mod clocks;
mod composite;
mod counts;
mod deadlines;
mod destructors;
mod drain;
mod dropped_keys;
mod endings;
mod errors;
mod fragile_keys;
mod full_shard;
mod handles;
mod idle;
mod itself;
mod key_code;
mod leftovers;
mod locks;
mod mixed_watches;
mod nested;
mod operators;
mod order;
mod panics;
mod park_panics;
mod ranked;
mod resolved;
mod shutdown;
mod siblings;
mod stalls;
mod storms;
mod threads;
mod time;
mod weights;

use testing as support;
