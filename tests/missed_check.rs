//! In debug builds, a check that was missed is reported, once for each purgatory. Another process misses it, so that
//! its stderr can be read.
#![cfg(debug_assertions)]

use request_purgatory::Waits;
use request_purgatory::future::block_on;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Set in the process that misses checks.
const MISSES: &str = "REQUEST_PURGATORY_TEST_MISSES";

#[test]
fn g21_a_missed_check_is_reported_once() {
    if std::env::var_os(MISSES).is_some() {
        return miss();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--nocapture", "--test-threads=1"])
        .env(MISSES, "1")
        .output()
        .unwrap();
    let reports = String::from_utf8(output.stderr).unwrap();
    let lines = reports.lines().collect::<Vec<_>>();
    assert!(output.status.success() && lines.len() == 3, "{reports}");
    for (line, purgatory) in lines.iter().zip(["`topics`", "`rooms`", "`predicates`"]) {
        for part in [purgatory, "(keys `u32`)", "`check_and_complete`"] {
            assert!(line.contains(part), "{line:?} does not name {part}");
        }
    }
}

fn miss() {
    let short = Duration::from_millis(1);
    let quiet = Waits::<u32>::new("quiet");
    let nothing = quiet.listen([7], short).until(async || None::<()>);
    block_on(nothing).unwrap_err();
    for name in ["topics", "topics", "rooms"] {
        let waits = Waits::<u32>::new(name);
        for _ in 0..2 {
            let mut evaluated = false;
            let found = waits.listen([7], short).until(|| {
                let found = std::mem::replace(&mut evaluated, true);
                async move { found.then_some(()) }
            });
            block_on(found).unwrap();
        }
        assert_eq!(waits.stats().missed_checks, 2);
    }
    let waits = Waits::<u32>::new("predicates");
    let ready = Arc::new(AtomicBool::new(false));
    let read = ready.clone();
    let wait = waits.wait([7], 20 * short, move || {
        read.load(Ordering::Acquire).then_some(())
    });
    ready.store(true, Ordering::Release);
    block_on(wait).unwrap();
    assert_eq!(waits.stats().missed_checks, 1);
}
