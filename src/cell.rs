//! The slots of parked operations, and which thread may use an operation.
//!
//! * [`address`]: the name of one parked operation. Watch lists and handles refer to an operation only by its name.
//! * [`state`]: the state word of one slot, with all transitions of the word.
//! * [`chunks`]: the memory of the slots. A slot never moves.
//! * [`blocks`]: which blocks of slots have vacant slots, and when the memory of a block is freed.
//! * [`slab`]: the slots, behind a safe interface.
//! * [`remote`]: the free list to which a thread returns a slot if it does not have the slab's lock.
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
