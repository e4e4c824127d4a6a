//! G29 and G30: deadlines that move, and rechecks that find what no check announced.

mod moved;
pub(crate) mod recheck;
