//! User code that the library calls: what such code may do, and what happens to its panics.
//!
//! * [`panics`]: catches the panics of user code, and resumes or discards them.
//! * [`trampoline`]: a call of the library that is made inside a callback may have to wait. It runs after the callback
//!   has returned.
//! * [`examining`]: the operation whose `try_complete` a thread is inside.
//! * [`promise`]: values that a task awaits. Waking a task calls its waker, which is user code.

pub(crate) mod examining;
pub(crate) mod panics;
pub(crate) mod promise;
pub(crate) mod trampoline;
