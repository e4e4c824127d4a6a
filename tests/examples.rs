//! The small examples, run as their users run them. (The broker and the long-poll server are packages of their own.)
//!
//! `cargo test` builds them; `cargo test --test examples` alone takes those that were built last.

mod support;

use std::process::Output;
use support::program;

fn run(name: &str, arguments: &[&str]) -> Output {
    let output = program::example(name).args(arguments).output();
    output.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The number after `name` in what a successful run printed.
fn figure(output: &Output, name: &str) -> u64 {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = stdout
        .lines()
        .find_map(|line| line.trim().strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {stdout}"))
}

fn assert_success(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), &*stderr),
        (Some(0), ""),
        "{output:?}"
    );
}

#[test]
fn the_client_ends_every_call() {
    let output = run("rpc_client", &["--calls", "2000", "--timeout-ms", "300"]);
    assert_success(&output);
    let (answered, timed_out) = (figure(&output, "answered"), figure(&output, "timed out"));
    assert_eq!(answered + timed_out, 2_000);
    // One in ten is never answered, one in twenty too late; a machine under load is slower.
    assert!(timed_out >= 300 - 20, "{output:?}");
    assert!(figure(&output, "responses too late") >= 100 - 20);
}

#[test]
fn every_silent_session_is_reported() {
    let arguments = [
        "--sessions",
        "5000",
        "--timeout-ms",
        "1000",
        "--rounds",
        "4",
    ];
    let output = run("sessions", &arguments);
    assert_success(&output);
    assert_eq!(figure(&output, "silent sessions reported"), 50);
}

#[test]
fn they_explain_themselves() {
    for name in ["rpc_client", "sessions"] {
        let output = run(name, &["--help"]);
        assert_success(&output);
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("usage: "));
        for wrong in [
            &["--nonsense", "1"][..],
            &["--timeout-ms"],
            &["--timeout-ms", "no"],
        ] {
            let output = run(name, wrong);
            assert_eq!(output.status.code(), Some(2), "{wrong:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("usage: "));
        }
    }
}
