//! Client programs that are not Rust, and what to do when they are not installed.

use std::process::{Command, Stdio};

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
        "{program} {} fails: run .ci/clients",
        probe.join(" ")
    );
    eprintln!("skipped: {program} is not installed; .ci/clients does it");
    false
}
