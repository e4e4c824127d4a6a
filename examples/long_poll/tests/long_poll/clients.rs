//! Client programs that are not Rust, and what to do when they are not installed.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longest that a client may run. Their own limits are shorter.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether a program runs. If it does not, and clients are required, that fails the test.
pub(crate) fn available(program: &str, probe: &[&str]) -> bool {
    let ran = Command::new(program)
        .args(probe)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if ran.is_ok_and(|status| status.success()) {
        return true;
    }
    let asked = std::env::var_os("REQUEST_PURGATORY_REQUIRE_CLIENTS");
    let required = std::env::var_os("CI").is_some() || asked.is_some_and(|value| value == "1");
    assert!(
        !required,
        "{program} {} fails: run .ci/install clients",
        probe.join(" ")
    );
    eprintln!("skipped: {program} is not installed; .ci/install clients does it");
    false
}

/// Runs a client to its end with this input. One that does not end fails the test.
pub(crate) fn run(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start the client");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    // A client that ends early leaves input unread.
    thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let stdout = read(child.stdout.take().expect("piped"));
    let stderr = read(child.stderr.take().expect("piped"));

    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait for the client") {
            break Some(status);
        }
        if started.elapsed() > LIMIT {
            child.kill().expect("end the client");
            child.wait().expect("wait for the client");
            break None;
        }
        thread::sleep(Duration::from_millis(1));
    };
    let stdout = stdout.join().expect("not panicked");
    let stderr = stderr.join().expect("not panicked");
    let Some(status) = status else {
        panic!("did not end: {}", String::from_utf8_lossy(&stderr));
    };
    Output {
        status,
        stdout,
        stderr,
    }
}

fn read(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("read");
        bytes
    })
}
