//! CPU time used by this process, by kind of thread. Read from `/proc`; where there is none, there are no figures.

use std::fs;
use std::time::Duration;

/// CPU time used so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuTime {
    /// By the threads whose name starts with the prefix asked for.
    pub(crate) named: Duration,
    /// By all the others.
    pub(crate) others: Duration,
}

/// Linux counts in hundredths of a second, whatever the kernel's own tick is.
const TICK: Duration = Duration::from_millis(10);

impl CpuTime {
    /// Sums up over the threads that live now.
    pub(crate) fn now(prefix: &str) -> Option<Self> {
        let mut time = Self {
            named: Duration::ZERO,
            others: Duration::ZERO,
        };
        for thread in fs::read_dir("/proc/self/task").ok()? {
            let stat = fs::read_to_string(thread.ok()?.path().join("stat"));
            // A thread may end between the two reads.
            let Ok(stat) = stat else { continue };
            let (named, used) = parse(&stat, prefix)?;
            if named {
                time.named += used;
            } else {
                time.others += used;
            }
        }
        Some(time)
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            named: self.named.saturating_sub(earlier.named),
            others: self.others.saturating_sub(earlier.others),
        }
    }
}

/// `pid (name) state ...`, where the name may hold anything and user and system time are the 14th and 15th field.
fn parse(stat: &str, prefix: &str) -> Option<(bool, Duration)> {
    let (name, fields) = stat.split_once('(')?.1.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some((name.starts_with(prefix), TICK * (user + system)))
}
