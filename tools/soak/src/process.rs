//! What the system says about this process. `None` where there is no `/proc`.

use std::fs;

/// Resident memory in KiB: the field `resident` of `/proc/self/statm`, which `status` has in a unit that does not
/// depend on the size of a page.
pub(crate) fn resident_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

pub(crate) fn threads() -> Option<usize> {
    Some(fs::read_dir("/proc/self/task").ok()?.count())
}

/// What ran this, for the report: no names.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let model = fs::read_to_string("/proc/cpuinfo").ok().and_then(|info| {
        let line = info.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|info| {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kib = line
            .trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()?;
        Some(kib >> 20)
    });
    format!(
        "{}, {cores} cores, {} GiB, {} {}",
        model.as_deref().unwrap_or("unknown processor"),
        memory.unwrap_or(0),
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}
