//! On any executor, beside any number of tasks, and with keys that come later.

mod executors;
mod further_keys;
