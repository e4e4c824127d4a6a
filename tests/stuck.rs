//! In debug builds, a check that waits for a lock of its own caller is reported, once. (Another process runs it: there
//! it hangs for ever.)
#![cfg(debug_assertions)]

use request_purgatory::{Completion, DelayedOperation, Purgatory};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Set in the process that hangs.
const HANGS: &str = "REQUEST_PURGATORY_TEST_HANGS";

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Partition(u32);

struct Fetch {
    log: Arc<Mutex<u64>>,
}

impl DelayedOperation for Fetch {
    type Key = Partition;

    fn try_complete(&mut self) -> bool {
        self.log.lock().is_ok_and(|end| *end > 0)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn on_complete(self, _: Completion) {}
}

#[test]
fn g03_a_check_that_waits_for_a_lock_of_its_caller_is_reported_once() {
    if std::env::var_os(HANGS).is_some() {
        return hang();
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--nocapture", "--test-threads=1"])
        .env(HANGS, "")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut report = String::new();
    stderr.read_line(&mut report).unwrap();
    // Two looks later there is no second report.
    std::thread::sleep(Duration::from_millis(2500));
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    for part in [
        "`fetches`",
        "stuck::Fetch",
        "stuck::Partition",
        "2 s",
        "predicate",
    ] {
        assert!(report.contains(part), "{report:?} does not name {part}");
    }
    assert_eq!(rest, "", "a second report");
}

fn hang() {
    let log = Arc::new(Mutex::new(0));
    let fetches = Purgatory::builder("fetches").build().unwrap();
    let fetch = Fetch { log: log.clone() };
    fetches
        .try_complete_else_watch(fetch, [Partition(1)])
        .unwrap();
    // If there is no report, the test fails, and does not hang as well.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(20));
        std::process::exit(1);
    });
    let _held = log.lock().unwrap();
    fetches.check_and_complete(&Partition(1));
    unreachable!("the check waits for the lock");
}
