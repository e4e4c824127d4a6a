//! Code of the user's that the library calls: what it may do meanwhile, and what becomes of its panics.
//!
//! * [`panics`]: containing panics, and letting them go on.
//! * [`trampoline`]: what user code causes while the library calls it runs after that call, not inside it.
//! * [`examining`]: which operation's `try_complete` a thread is in.
//! * [`promise`]: values that a task awaits: its waker is user code.

pub(crate) mod examining;
pub(crate) mod panics;
pub(crate) mod promise;
pub(crate) mod trampoline;
