//! The slots in which operations are parked, and the protocol that decides which thread may use an operation.
//!
//! * [`address`]: the 64-bit name of one parked operation. Watch lists and handles refer to an operation only by its
//!   name.
//! * [`state`]: the state word of a slot: an atomic integer that says whether an operation is parked in the slot,
//!   whether a thread has exclusive access to the operation, and what other threads ask of that thread.
//! * [`chunks`]: the memory of the slots. A slot never moves.
//! * [`blocks`]: which blocks have vacant slots, and when the memory of a block is freed. A block is a group of at most
//!   64 slots whose memory is allocated and freed as a whole.
//! * [`slab`]: the slots of one timer shard, behind a safe interface.
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
