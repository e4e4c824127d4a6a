//! What it ran on.

use std::fmt;
use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

pub(crate) struct Machine {
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) system: String,
    pub(super) compiler: String,
}

impl Machine {
    pub(crate) fn here() -> Self {
        Self {
            processor: processor(),
            cores: available_parallelism().map_or(0, usize::from),
            system: system(),
            compiler: compiler(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} cores, {}, {}",
            self.processor, self.cores, self.system, self.compiler
        )
    }
}

/// The processor's name where the system tells it.
fn processor() -> String {
    testing::process::processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn system() -> String {
    match fs::read_to_string("/proc/sys/kernel/osrelease") {
        Ok(release) => format!("Linux {}", release.trim()),
        Err(_) => std::env::consts::OS.to_owned(),
    }
}

/// The one on the path, which Cargo has just built this with.
fn compiler() -> String {
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    Command::new(compiler)
        .arg("--version")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "rustc".to_owned(), |version| version.trim().to_owned())
}
