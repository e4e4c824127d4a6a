//! Clocks, memory, quantiles.

use procfs_core::{FromRead, process::Status};
use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Neither clock is ever negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of the system's monotonic clock: the same in all processes.
pub fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// Nanoseconds of CPU time, user and system, that all threads of this process have used.
pub fn cpu() -> u64 {
    read(ClockId::ProcessCPUTime)
}

/// Resident memory, in bytes.
pub fn memory() -> u64 {
    let status = Status::from_file("/proc/self/status").expect("this is Linux");
    status.vmrss.expect("it is resident") * 1_024
}

/// What else the machine does.
pub fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").expect("this is Linux")
}

/// Of nanoseconds.
pub fn quantiles(mut samples: Vec<u64>) -> String {
    samples.sort_unstable();
    let at = |part: usize| samples[(samples.len() - 1) * part / 1_000] as f64 / 1e3;
    format!("p50 {:.0} us, p99 {:.0} us", at(500), at(990))
}
