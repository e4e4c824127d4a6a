//! What the system says about this process and its threads.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

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
    let kibibytes: usize = status("RssAnon:")?
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()?;
    Some(kibibytes * 1024)
}

/// Threads of this process; `None` where the system does not say.
pub(crate) fn threads() -> Option<usize> {
    status("Threads:")?.parse().ok()
}

fn status(name: &str) -> Option<String> {
    value_in(Path::new("/proc/self/status"), name)
}

fn value_in(status: &Path, name: &str) -> Option<String> {
    let status = fs::read_to_string(status).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
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
            let name = fs::read_to_string(thread.join("comm")).ok()?;
            let is_meant = names.iter().any(|part| name.contains(part));
            is_meant.then(|| Self::by(&thread)).flatten()
        });
        used.reduce(|all, one| Self {
            cpu: all.cpu + one.cpu,
            sleeps: all.sleeps + one.sleeps,
        })
    }

    fn by(thread: &Path) -> Option<Self> {
        let times = fs::read_to_string(thread.join("schedstat")).ok()?;
        let nanoseconds = times.split(' ').next()?.parse().ok()?;
        let sleeps = value_in(&thread.join("status"), "voluntary_ctxt_switches:")?;
        Some(Self {
            cpu: Duration::from_nanos(nanoseconds),
            sleeps: sleeps.parse().ok()?,
        })
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            sleeps: self.sleeps - before.sleeps,
        }
    }
}
