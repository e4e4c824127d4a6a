//! What the system says about this process and its threads.

use std::time::{Duration, Instant};

use testing::process::Process;

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
    Some(Process::this().anonymous()? as usize)
}

/// Threads of this process; `None` where the system does not say.
pub(crate) fn threads() -> Option<usize> {
    Process::this().count_threads()
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
        Self::by(&Process::calling_thread())
    }

    /// By the threads of this process whose names contain one of `names`, all that there have been since they were
    /// made: together, `None` if there is none.
    pub(crate) fn by_threads(names: &[&str]) -> Option<Self> {
        let used = Process::this().threads().filter_map(|thread| {
            let name = thread.name()?;
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

    fn by(thread: &Process) -> Option<Self> {
        Some(Self {
            cpu: thread.thread_time()?,
            sleeps: thread.sleeps()?,
        })
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            sleeps: self.sleeps - before.sleeps,
        }
    }
}
