//! G14: operations that end one another do not recurse. G3: no lock is held over user code.

mod ending_threads;
mod links;
mod locks;
mod nested;
pub(crate) mod scene;
