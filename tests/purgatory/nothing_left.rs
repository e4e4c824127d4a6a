//! G6: nothing is left behind, whatever unwinds.

mod full_shard;
mod leftovers;
