//! The slots of parked operations, and which thread may use an operation.
//!
//! * [`address`]: the name of one parked operation, as watch lists and handles keep it.
//! * [`state`]: the state word of one slot: every transition of an operation's life, and nothing else.
//! * [`chunks`]: the memory of the slots, which never moves.
//! * [`blocks`]: which blocks of slots have vacant slots, and when the memory of a block is freed.
//! * [`slab`]: the slots, behind a safe interface.
//! * [`remote`]: the free list for threads that do not have the slab's lock.
//!
//! All `unsafe` code of this module is in `chunks` and `slab`. Each of these files begins with its rules.

pub(crate) mod address;
mod blocks;
mod chunks;
mod remote;
pub(crate) mod slab;
pub(crate) mod state;

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests;
