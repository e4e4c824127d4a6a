//! The slots of parked operations, and which thread may use an operation.
//!
//! * [`state`]: the state word of one slot: every transition of an operation's life, and nothing else.
//! * [`slab`]: the slots. All `unsafe` of the library is in that file, behind four safe entry points: insert, begin an
//!   examination, the timer fields under the slab's lock, and the return of an ended slot.

pub(crate) mod slab;
pub(crate) mod state;

#[cfg(all(test, not(loom)))]
mod tests;
