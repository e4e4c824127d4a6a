//! G14: operations that end one another do not recurse. G3: no lock is held over user code.

mod cascades;
mod completions;
mod destructors;
mod locks;
