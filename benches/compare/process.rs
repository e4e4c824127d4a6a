//! What the system says about this process.

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
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}
