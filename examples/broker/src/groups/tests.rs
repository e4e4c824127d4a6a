//! The coordinator without sockets, on a clock that is moved by hand.

mod offsets;
mod rebalances;
mod sequences;
mod world;
