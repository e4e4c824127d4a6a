//! CPU time used.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Whose CPU time a node reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cpu {
    /// The process is the node.
    Process,
    /// The thread that asks is the node: several run in one process.
    Thread,
}

impl Cpu {
    /// User and system time since the start.
    pub fn used(self) -> Duration {
        let used = clock_gettime(match self {
            Self::Process => ClockId::ProcessCPUTime,
            Self::Thread => ClockId::ThreadCPUTime,
        });
        // Neither is ever negative.
        Duration::new(
            u64::try_from(used.tv_sec).unwrap_or(0),
            u32::try_from(used.tv_nsec).unwrap_or(0),
        )
    }
}
