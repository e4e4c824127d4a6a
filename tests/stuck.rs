//! In debug builds, a call of an operation that waits for a lock of its own caller is reported, once. (Other processes
//! run it: there it hangs for ever.)
#![cfg(debug_assertions)]

use request_purgatory::{Completion, DelayedOperation, Purgatory};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Says which hook hangs, in the process in which it does.
const HANGS: &str = "REQUEST_PURGATORY_TEST_HANGS";

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Partition(u32);

type Hook = Box<dyn Fn() + Send>;

/// Completes at its third examination, which is that of the first check.
struct Fetch {
    timeout: Duration,
    examinations: u32,
    at_third: Hook,
    at_end: Hook,
}

impl DelayedOperation for Fetch {
    type Key = Partition;

    fn try_complete(&mut self) -> bool {
        self.examinations += 1;
        if self.examinations == 3 {
            (self.at_third)();
        }
        self.examinations == 3
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn on_complete(self, _: Completion) {
        (self.at_end)();
    }
}

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
            "stuck::Fetch",
            "stuck::Partition",
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

fn park(name: &str, fetch: Fetch) -> Purgatory<Fetch> {
    let purgatory = Purgatory::new(name);
    let parked = purgatory.try_complete_else_watch(fetch, [Partition(1)]);
    parked.unwrap();
    purgatory
}

fn hang(at_end: bool) {
    let minute = Duration::from_secs(60);
    let nothing = || -> Hook { Box::new(|| ()) };
    let fetch = |at_third, at_end| Fetch {
        timeout: minute,
        examinations: 0,
        at_third,
        at_end,
    };
    // If there is no report, the test fails, and does not hang as well.
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(20));
        std::process::exit(1);
    });
    // A completion may take its time on a thread of the library: it is not reported.
    let (began, begun) = channel();
    let slow = Box::new(move || {
        began.send(()).unwrap();
        thread::sleep(minute);
    });
    let late = Fetch {
        timeout: Duration::from_millis(1),
        // Past its third: the condition is not true at the deadline, so no check was missed.
        examinations: 3,
        ..fetch(nothing(), slow)
    };
    let _slow = park("slow", late);
    begun.recv().unwrap();
    // Another thread is inside a call already, and makes the next one when the one that hangs has begun.
    let ((entered, inside), (hangs, go_on)) = (channel(), channel());
    let wait = Box::new(move || {
        entered.send(()).unwrap();
        go_on.recv().unwrap();
    });
    let other = park("other", fetch(wait, nothing()));
    thread::spawn(move || other.check_and_complete(&Partition(1)));
    inside.recv().unwrap();
    let log = Arc::new(Mutex::new(0));
    let locked = log.clone();
    let wait = Box::new(move || {
        hangs.send(()).unwrap();
        drop(locked.lock());
    });
    let fetches = match at_end {
        true => park("fetches", fetch(nothing(), wait)),
        false => park("fetches", fetch(wait, nothing())),
    };
    let _held = log.lock().unwrap();
    fetches.check_and_complete(&Partition(1));
    unreachable!("it waits for the lock");
}
