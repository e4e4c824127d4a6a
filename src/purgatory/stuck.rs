//! Debug builds report a call of an operation that does not return: mostly it waits for a lock that its own caller
//! holds, and the program would hang without a word. (Release builds have none of this.)
//!
//! The thread that calls notes when it began. A thread of its own, one for the process, looks at these notes once a
//! second; while no operation is called, it sleeps.

use crate::worker::Worker;
use parking_lot::{Condvar, Mutex};
use std::any::type_name;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// A call that lasts longer is reported.
const LIMIT: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_secs(1);

/// Those in progress on threads of the user, by a number of their own: two may begin at the same instant.
static CALLS: Mutex<BTreeMap<u64, Call>> = Mutex::new(BTreeMap::new());
static BEGUN: Condvar = Condvar::new();

struct Call {
    began: Instant,
    purgatory: Arc<str>,
    operation: &'static str,
    key: &'static str,
    reported: bool,
}

/// While it exists, the calling thread is inside an operation's code.
pub(super) struct NotedCall(Option<u64>);

impl NotedCall {
    /// Notes a call of an operation `Op` with keys `K`. Threads of the library are left out: completions are theirs to
    /// run, however long they take.
    pub(super) fn begin<Op, K>(purgatory: &Arc<str>) -> Self {
        static STARTED: Once = Once::new();
        if Worker::is_current() {
            return Self(None);
        }
        // If the system refuses the thread, there are no reports.
        STARTED.call_once(|| {
            let thread = std::thread::Builder::new().name("stuck-calls".into());
            _ = thread.spawn(look);
        });
        let call = Call {
            began: Instant::now(),
            purgatory: purgatory.clone(),
            operation: type_name::<Op>(),
            key: type_name::<K>(),
            reported: false,
        };
        let mut calls = CALLS.lock();
        let number = calls.last_key_value().map_or(0, |(last, _)| last + 1);
        calls.insert(number, call);
        BEGUN.notify_one();
        Self(Some(number))
    }
}

impl Drop for NotedCall {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            CALLS.lock().remove(&number);
        }
    }
}

/// The thread's whole life.
fn look() {
    loop {
        let mut calls = CALLS.lock();
        if calls.is_empty() {
            // For one that begins: the next look, a second later, shows whether it is over.
            BEGUN.wait(&mut calls);
        }
        let mut reports = Vec::new();
        for call in calls.values_mut() {
            if !call.reported && call.began.elapsed() >= LIMIT {
                call.reported = true;
                reports.push((call.purgatory.clone(), call.operation, call.key));
            }
        }
        drop(calls);
        for (purgatory, operation, key) in reports {
            // A stderr that is closed can be told nothing.
            let _ = writeln!(
                std::io::stderr(),
                "request-purgatory: in the purgatory `{purgatory}`, a call of `{operation}` (keys `{key}`) has run for \
                 {} s. Does its `try_complete` (of a wait: its predicate) or `on_complete` wait for a lock that the \
                 caller of the check holds? (Only debug builds report this.)",
                LIMIT.as_secs()
            );
        }
        std::thread::sleep(LOOK);
    }
}
