//! In debug builds, a call of an operation that waits for a lock of its own caller is reported, once. (Other processes
//! run it: there it hangs for ever.)
#![cfg(debug_assertions)]

use request_purgatory::Purgatory;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use testing::Op;

/// Says which hook hangs, in the process in which it does.
const HANGS: &str = "REQUEST_PURGATORY_TEST_HANGS";
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Partition(u32);

#[test]
fn g03_a_check_that_waits_for_a_lock_of_its_caller_is_reported_once() {
    if let Ok(hook) = std::env::var(HANGS) {
        return hang(hook == "on_complete");
    }
    let children = ["try_complete", "on_complete"].map(|hook| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--nocapture", "--test-threads=1"])
            .env(HANGS, hook)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        (hook, child, stderr)
    });
    let children = children.map(|(hook, child, mut stderr)| {
        let mut report = String::new();
        stderr.read_line(&mut report).unwrap();
        for part in [
            "`fetches`",
            "`testing::Op<stuck::Partition>`",
            "keys `stuck::Partition`",
            "2 s",
            "predicate",
        ] {
            let names = report.contains(part);
            assert!(names, "{hook}: {report:?} does not name {part}");
        }
        (child, stderr)
    });
    // Two looks later there is no second report.
    thread::sleep(Duration::from_millis(2500));
    for (mut child, mut stderr) in children {
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "a second report");
    }
}

/// Parks an operation that completes at its third examination, which is that of the first check.
fn park(
    name: &str,
    mut at_third: impl FnMut() + Send + 'static,
    at_end: impl FnOnce() + Send + 'static,
) -> Purgatory<Op<Partition>> {
    let mut examinations = 0;
    let op = Op::<Partition>::new(MINUTE).when(move || {
        examinations += 1;
        if examinations == 3 {
            at_third();
        }
        examinations == 3
    });
    let purgatory = Purgatory::new(name);
    let parked = purgatory.try_complete_else_watch(op.then(|_| at_end()), [Partition(1)]);
    parked.unwrap();
    purgatory
}

fn hang(at_end: bool) {
    // If there is no report, the test fails, and does not hang as well.
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(20));
        std::process::exit(1);
    });
    // A completion may take its time on a thread of the library: it is not reported.
    let (began, begun) = channel();
    let late = Op::new(Duration::from_millis(1)).then(move |_| {
        began.send(()).unwrap();
        thread::sleep(MINUTE);
    });
    let slow = Purgatory::<Op>::new("slow");
    slow.try_complete_else_watch(late, [1]).unwrap();
    begun.recv().unwrap();
    // By then the thread that reports has gone to sleep. The next call wakes it.
    thread::sleep(Duration::from_millis(2500));
    // Another thread is inside a call already, and makes the next one when the one that hangs has begun.
    let ((entered, inside), (hangs, go_on)) = (channel(), channel());
    let wait = move || {
        entered.send(()).unwrap();
        go_on.recv().unwrap();
    };
    let other = park("other", wait, || ());
    thread::spawn(move || other.check_and_complete(&Partition(1)));
    inside.recv().unwrap();
    let log = Arc::new(Mutex::new(0));
    let locked = log.clone();
    let wait = move || {
        hangs.send(()).unwrap();
        drop(locked.lock());
    };
    let fetches = match at_end {
        true => park("fetches", || (), wait),
        false => park("fetches", wait, || ()),
    };
    let _held = log.lock().unwrap();
    fetches.check_and_complete(&Partition(1));
    unreachable!("it waits for the lock");
}
