//! G6: nothing is left behind, whatever unwinds.

mod dropped_keys;
mod full_shard;
mod leftovers;
mod park_panics;
