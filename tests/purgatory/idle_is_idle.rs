//! G13, G19 and G28: what is idle costs nothing, and which code runs on which thread.

mod starts;
mod threads;

use crate::on_time::park;
use crate::support::{eventually, threads_named};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_millis(2);

fn eventually_threads(name: &str, count: usize) {
    let what = format!("{count} threads called {name}");
    eventually(&what, || threads_named(name).len() == count);
}

/// What so many threads return, which begin together.
fn together<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(threads);
    let begin = |number| {
        start.wait();
        work(number)
    };
    thread::scope(|scope| {
        let begin = &begin;
        let running = (0..threads).map(|number| scope.spawn(move || begin(number)));
        let running = running.collect::<Vec<_>>();
        let joined = running.into_iter().map(|thread| thread.join());
        joined.collect::<Result<_, _>>().expect("no panic")
    })
}
