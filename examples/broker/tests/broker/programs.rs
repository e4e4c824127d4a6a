//! Client programs that are not Rust, and what to do when they are not installed.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Longest that anything in these tests may take before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Longest that a client may run. Their own limits are shorter.
const LIMIT: Duration = Duration::from_secs(60);

/// The Python that has the clients.
pub(crate) fn python() -> String {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let installed = || package.join("../../.venv/bin/python").display().to_string();
    std::env::var("REQUEST_PURGATORY_PYTHON").unwrap_or_else(|_| installed())
}

/// Whether a program runs. If it does not, and clients are required, that fails the test.
pub(crate) fn available(program: &str, probe: &[&str]) -> bool {
    let ran = Command::new(program).args(probe).output();
    if ran.is_ok_and(|output| output.status.success()) {
        return true;
    }
    let asked = std::env::var_os("REQUEST_PURGATORY_REQUIRE_CLIENTS");
    let required = std::env::var_os("CI").is_some() || asked.is_some_and(|value| value == "1");
    let says = format!("{program} is not installed; .ci/install clients does it");
    assert!(!required, "{says}");
    eprintln!("skipped: {says}");
    false
}

/// Runs a client to its end with this input. One that does not end fails the test.
pub(crate) fn run(command: &mut Command, input: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn();
    let mut child = child.expect("start the client");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    // A client that ends early leaves input unread.
    thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let (sender, ended) = mpsc::channel();
    let id = child.id();
    thread::spawn(move || sender.send(child.wait_with_output()));
    let output = ended.recv_timeout(LIMIT).unwrap_or_else(|_| {
        signal(id, "KILL");
        panic!("{command:?} did not end")
    });
    output.expect("wait for the client")
}

pub(crate) fn signal(process: u32, signal: &str) {
    let id = process.to_string();
    let sent = Command::new("kill").args(["-s", signal, &id]).status();
    assert!(sent.expect("run kill").success());
}

/// Waits until `wanted` gives something.
pub(crate) fn eventually<T>(what: &str, mut wanted: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = wanted() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "no {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
