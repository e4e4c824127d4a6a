//! What the system says about this process. `None` where there is no `/proc`.

use procfs_core::{CpuInfo, FromRead, Meminfo, process::Status};
use std::fs;

/// Resident memory in KiB.
pub(crate) fn resident_kib() -> Option<u64> {
    Status::from_file("/proc/self/status").ok()?.vmrss
}

pub(crate) fn threads() -> Option<usize> {
    let tasks = fs::read_dir("/proc/self/task").ok()?.flatten();
    // A debug build of the library keeps one that reports calls that do not return.
    let named = tasks.filter_map(|task| fs::read(task.path().join("comm")).ok());
    Some(named.filter(|name| name != b"stuck-calls\n").count())
}

/// What ran this, for the report: no names.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let processor = CpuInfo::from_file("/proc/cpuinfo").ok();
    let model = processor.as_ref().and_then(|info| info.model_name(0));
    let memory = Meminfo::from_file("/proc/meminfo");
    format!(
        "{}, {cores} cores, {} GiB, {} {}",
        model.unwrap_or("unknown processor"),
        memory.map_or(0, |memory| memory.mem_total >> 30),
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}
