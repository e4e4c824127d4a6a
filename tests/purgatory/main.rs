//! The promises of the library, each by tests that bear its number. (G1, G2, G4, G5 and G7 are model-checked in
//! `loom-tests` besides; here they are put under load on real threads.)

mod chains;
mod idle_is_idle;
mod lost_completion;
mod nothing_left;
mod on_time;
mod one_ending;
mod order_and_bounds;
mod panics_contained;
mod shutdown;

use testing as support;
