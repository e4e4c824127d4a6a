//! User code that the library calls: what such code may do, and what happens to its panics.
//!
//! * [`panics`]: containing panics, and letting them go on.
//! * [`trampoline`]: calls caused inside a callback run after the callback, not inside it.
//! * [`examining`]: which operation's `try_complete` a thread is inside.
//! * [`promise`]: values that a task awaits. A task's waker is user code.

pub(crate) mod examining;
pub(crate) mod panics;
pub(crate) mod promise;
pub(crate) mod trampoline;
