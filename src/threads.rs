//! The threads that work for a purgatory: the thread that drives its timer, and the thread that runs completions.

pub(crate) mod alarm;
pub(crate) mod dispatch;
pub(crate) mod manual_clock;
pub(crate) mod reaper;
pub(crate) mod worker;

pub use crate::callbacks::trampoline::{run_unnested, run_unnested_on};
pub use dispatch::Dispatch;
pub use reaper::{Reaper, ReaperThread};
