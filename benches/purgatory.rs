//! The library's single calls, each by itself. The comparison with other designs is in `compare`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, purgatory::Admission, threads::Reaper,
    time::ManualClock,
};

/// Never ready: it ends by being cancelled or by its timeout.
struct Waiting(Duration);

impl DelayedOperation for Waiting {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.0
    }

    fn try_complete(&mut self) -> bool {
        black_box(false)
    }

    fn on_complete(self, completion: Completion) {
        black_box(completion);
    }
}

const LONG: Duration = Duration::from_secs(30);

/// Parked beside the operation that is measured, each under a key of its own from here on.
const OTHERS: u64 = 1_000;
const OTHER_KEYS: u64 = 1 << 32;

/// With the defaults, and with others parked.
fn occupied() -> Purgatory<Waiting> {
    let purgatory = Purgatory::new("bench");
    for other in 0..OTHERS {
        park(&purgatory, LONG, OTHER_KEYS + other);
    }
    purgatory
}

fn park(purgatory: &Purgatory<Waiting>, timeout: Duration, key: u64) -> Admission<Waiting> {
    purgatory
        .try_complete_else_watch(Waiting(timeout), [key])
        .expect("neither full nor shut down, and it has a key")
}

fn park_and_cancel(criterion: &mut Criterion) {
    let purgatory = occupied();
    criterion.bench_function("park and cancel by handle", |bencher| {
        let mut key = 0;
        bencher.iter(|| {
            key = (key + 1) % OTHERS;
            let handle = park(&purgatory, LONG, key)
                .into_handle()
                .expect("it is never ready");
            handle.cancel().expect("no other thread ends it")
        });
    });
    assert_eq!(purgatory.len() as u64, OTHERS);
}

fn check_unwatched(criterion: &mut Criterion) {
    let purgatory = occupied();
    criterion.bench_function("check of a key that no operation watches", |bencher| {
        let mut key = 0;
        bencher.iter(|| {
            key = (key + 1) % OTHERS;
            purgatory.check_and_complete(black_box(&key))
        });
    });
}

fn check_unready(criterion: &mut Criterion) {
    let purgatory = occupied();
    criterion.bench_function("check that finds an operation not ready", |bencher| {
        let mut key = 0;
        bencher.iter(|| {
            key = (key + 1) % OTHERS;
            purgatory.check_and_complete(black_box(&(OTHER_KEYS + key)))
        });
    });
    assert_eq!(purgatory.len() as u64, OTHERS);
}

/// Driven by hand on a manual clock, so that the time is the calls' own and no thread's.
fn park_and_expire(criterion: &mut Criterion) {
    const BULK: u64 = 10_000;
    let mut group = criterion.benchmark_group("bulk");
    group.throughput(Throughput::Elements(BULK));
    let clock = ManualClock::new();
    let purgatory = Purgatory::builder("bench")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .build()
        .expect("no thread is needed");
    group.bench_function("park and expire", |bencher| {
        bencher.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            for _ in 0..iterations {
                let started = Instant::now();
                for key in 0..BULK {
                    // Over 100 ticks, so that many buckets are drained rather than one.
                    park(&purgatory, Duration::from_millis(1 + key % 100), key);
                }
                clock.advance(Duration::from_millis(101));
                assert_eq!(purgatory.advance() as u64, BULK);
                spent += started.elapsed();
            }
            spent
        });
    });
    group.finish();
    assert_eq!(purgatory.len(), 0);
}

criterion_group!(
    benches,
    park_and_cancel,
    check_unwatched,
    check_unready,
    park_and_expire
);
criterion_main!(benches);
