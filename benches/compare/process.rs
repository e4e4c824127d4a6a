//! What the system says about this process and its threads.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use procfs_core::{FromRead, process::Schedstat, process::Status};

/// Processor time of all threads so far, of those that have ended too.
#[cfg(unix)]
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Zero where the system does not say: the ratios are then no numbers.
#[cfg(not(unix))]
pub(crate) fn cpu_time() -> Duration {
    Duration::ZERO
}

/// Nanoseconds that a reading of the clock takes now.
pub(crate) fn clock_reading() -> f64 {
    const TIMES: u32 = 100_000;
    let started = Instant::now();
    for _ in 0..TIMES {
        std::hint::black_box(Instant::now());
    }
    started.elapsed().as_nanos() as f64 / f64::from(TIMES)
}

/// Bytes of anonymous memory that are resident; `None` where the system does not say.
pub(crate) fn resident() -> Option<usize> {
    let kibibytes = status("/proc/self")?.rssanon?;
    Some(kibibytes as usize * 1024)
}

/// Threads of this process; `None` where the system does not say.
pub(crate) fn threads() -> Option<usize> {
    Some(status("/proc/self")?.threads as usize)
}

/// Of a process or a thread.
fn status(of: impl AsRef<Path>) -> Option<Status> {
    Status::from_file(of.as_ref().join("status")).ok()
}

/// What a thread has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    pub(crate) cpu: Duration,
    /// How often it went to sleep by itself, which is how often it was woken.
    pub(crate) sleeps: u64,
}

impl Used {
    /// By the calling thread; `None` where the system does not say.
    pub(crate) fn here() -> Option<Self> {
        Self::by(Path::new("/proc/thread-self"))
    }

    /// By the threads of this process whose names contain one of `names`, all that there have been since they were
    /// made: together, `None` if there is none.
    pub(crate) fn by_threads(names: &[&str]) -> Option<Self> {
        let threads = fs::read_dir("/proc/self/task").ok()?;
        let used = threads.filter_map(|thread| {
            let thread = thread.ok()?.path();
            let name = status(&thread)?.name;
            let is_meant = names.iter().any(|part| name.contains(part));
            is_meant.then(|| Self::by(&thread)).flatten()
        });
        used.reduce(Self::and)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            sleeps: self.sleeps + other.sleeps,
        }
    }

    fn by(thread: &Path) -> Option<Self> {
        let times = Schedstat::from_file(thread.join("schedstat")).ok()?;
        Some(Self {
            cpu: Duration::from_nanos(times.sum_exec_runtime),
            sleeps: status(thread)?.voluntary_ctxt_switches?,
        })
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            sleeps: self.sleeps - before.sleeps,
        }
    }
}
