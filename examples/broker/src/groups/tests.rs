//! The coordinator without sockets, on a clock that is moved by hand.

mod limits;
mod offsets;
mod rebalances;
mod sequences;
mod static_members;
mod threads;
mod world;
