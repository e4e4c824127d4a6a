//! G13, G19 and G28: what is idle costs nothing, and which code runs on which thread.

mod starts;
mod threads;

use crate::support::{Op, eventually, sleeps, threads_named};
use request_purgatory::{Handle, Purgatory};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_millis(2);

fn park(purgatory: &Purgatory<Op>, op: Op) -> Handle<Op> {
    let parked = purgatory.try_complete_else_watch(op, [1]);
    let parked = parked.expect("there is room").into_handle();
    parked.expect("it cannot complete yet")
}

/// Parks one that may have expired when this returns.
fn park_for_a_moment(purgatory: &Purgatory<Op>, op: Op) {
    let parked = purgatory.try_complete_else_watch(op, [1]);
    assert!(parked.is_ok());
}

fn eventually_threads(name: &str, count: usize) {
    let what = format!("{count} threads called {name}");
    eventually(&what, || threads_named(name).len() == count);
}

/// How often all of these threads went to sleep.
fn slept(threads: &[u64]) -> u64 {
    threads.iter().map(|thread| sleeps(*thread)).sum()
}

/// What so many threads return, which begin together.
fn together<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (start, work) = (Barrier::new(threads), &work);
    thread::scope(|scope| {
        let begin = |number| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                work(number)
            })
        };
        let running = (0..threads).map(begin).collect::<Vec<_>>();
        let joined = running.into_iter().map(|thread| thread.join());
        joined.collect::<Result<_, _>>().expect("no panic")
    })
}
