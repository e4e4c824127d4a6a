//! What the system says of a process, of a thread and of the machine: the one place that reads `/proc`. `None` where
//! there is none, and where the process has ended.

use procfs_core::{CpuInfo, FromRead, Meminfo, process::Schedstat, process::Stat, process::Status};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A process or a thread, by its folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process(PathBuf);

impl Process {
    /// This process.
    pub fn this() -> Self {
        Self("/proc/self".into())
    }

    /// The process with this number.
    pub fn of(number: u32) -> Self {
        Self(format!("/proc/{number}").into())
    }

    /// The calling thread.
    pub fn calling_thread() -> Self {
        Self("/proc/thread-self".into())
    }

    /// A thread of this process.
    pub fn thread(id: u64) -> Self {
        Self(format!("/proc/self/task/{id}").into())
    }

    /// The number of the process or the thread, if it was found by that.
    pub fn id(&self) -> Option<u64> {
        self.0.file_name()?.to_str()?.parse().ok()
    }

    /// At most 15 bytes are kept by the system.
    pub fn name(&self) -> Option<String> {
        let name = fs::read_to_string(self.0.join("comm")).ok()?;
        Some(name.trim_end().to_owned())
    }

    /// The threads of the process.
    pub fn threads(&self) -> impl Iterator<Item = Self> + use<> {
        // While threads end, the kernel may leave others out of a listing: so there are two.
        let listings = (0..2).flat_map(|_| fs::read_dir(self.0.join("task")));
        let threads = listings.flatten().flatten().map(|task| Self(task.path()));
        threads.collect::<BTreeSet<_>>().into_iter()
    }

    /// How many threads the process has, without the one by which a debug build of the library reports calls that do not
    /// return.
    pub fn count_threads(&self) -> Option<usize> {
        fs::metadata(self.0.join("task")).ok()?;
        let names = self.threads().filter_map(|thread| thread.name());
        Some(names.filter(|name| name != "stuck-calls").count())
    }

    pub fn status(&self) -> Option<Status> {
        Status::from_file(self.0.join("status")).ok()
    }

    pub fn stat(&self) -> Option<Stat> {
        Stat::from_file(self.0.join("stat")).ok()
    }

    /// Resident memory, in bytes.
    pub fn resident(&self) -> Option<u64> {
        Some(self.status()?.vmrss? * 1_024)
    }

    /// Resident memory that belongs to no file, in bytes.
    pub fn anonymous(&self) -> Option<u64> {
        Some(self.status()?.rssanon? * 1_024)
    }

    /// The size of the address space, in bytes.
    pub fn size(&self) -> Option<u64> {
        Some(self.status()?.vmsize? * 1_024)
    }

    /// How often the thread went to sleep by itself, which is how often it was woken.
    pub fn sleeps(&self) -> Option<u64> {
        self.status()?.voluntary_ctxt_switches
    }

    /// The processor time that a thread has used, or all threads of a process, to 10 ms.
    pub fn processor_time(&self) -> Option<Duration> {
        let stat = self.stat()?;
        Some(Duration::from_millis((stat.utime + stat.stime) * 10))
    }

    /// The processor time that a thread has used.
    pub fn thread_time(&self) -> Option<Duration> {
        let times = Schedstat::from_file(self.0.join("schedstat")).ok()?;
        Some(Duration::from_nanos(times.sum_exec_runtime))
    }
}

/// The name of the machine's processor.
pub fn processor() -> Option<String> {
    let processors = CpuInfo::from_file("/proc/cpuinfo").ok()?;
    processors.model_name(0).map(str::to_owned)
}

/// The memory of the machine, in bytes.
pub fn memory() -> Option<u64> {
    Some(Meminfo::from_file("/proc/meminfo").ok()?.mem_total)
}
