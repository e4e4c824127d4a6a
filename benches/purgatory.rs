//! The library's single calls, each by itself. The comparison with other designs is in `compare`.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use request_purgatory::{
    Completion, DelayedOperation, Handle, Purgatory, purgatory::Admission, threads::Reaper,
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
    occupied_by(1)
}

/// The same with several of them under each of their keys.
fn occupied_by(watchers: u64) -> Purgatory<Waiting> {
    let purgatory = Purgatory::new("bench");
    for other in 0..watchers * OTHERS {
        park(&purgatory, LONG, OTHER_KEYS + other % OTHERS);
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
    assert_eq!(purgatory.stats().parked as u64, OTHERS);
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

fn check_in_vain(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("check that finds no operation ready");
    for watchers in [1, 10] {
        let purgatory = occupied_by(watchers);
        group.bench_function(format!("of {watchers}"), |bencher| {
            let mut key = 0;
            bencher.iter(|| {
                key = (key + 1) % OTHERS;
                purgatory.check_and_complete(black_box(&(OTHER_KEYS + key)))
            });
        });
        assert_eq!(purgatory.stats().parked as u64, watchers * OTHERS);
    }
    group.finish();
}

/// The calls of a handle alone, made by one thread, and by two at the same time with operations of their own.
fn handles(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handle");
    for threads in [1, 2] {
        let purgatory = occupied();
        group.bench_function(format!("cancel, {threads} at a time"), |bencher| {
            bencher.iter_custom(|calls| {
                on_handles(&purgatory, threads, calls, |handle| {
                    assert!(handle.cancel().is_some(), "no other thread ends it");
                })
            });
        });
        group.bench_function(format!("is_parked, {threads} at a time"), |bencher| {
            bencher.iter_custom(|calls| {
                on_handles(&purgatory, threads, calls, |handle| {
                    assert!(black_box(handle.is_parked()));
                })
            });
        });
        assert_eq!(purgatory.stats().parked as u64, OTHERS);
    }
    group.finish();
}

/// What a thread takes for `calls` calls, each on a handle of its own, while the other threads do the same.
fn on_handles(
    purgatory: &Purgatory<Waiting>,
    threads: u64,
    calls: u64,
    call: impl Fn(&Handle<Waiting>) + Sync,
) -> Duration {
    /// Few enough to stay in the processor's cache.
    const AT_ONCE: u64 = 1_000;
    let barrier = Barrier::new(threads as usize);
    let spend = |thread: u64| {
        let mut spent = Duration::ZERO;
        for begun in (0..calls).step_by(AT_ONCE as usize) {
            let keys = begun..calls.min(begun + AT_ONCE);
            let park = |key| park(purgatory, LONG, thread * AT_ONCE + key % AT_ONCE);
            let handles = keys.filter_map(|key| park(key).into_handle());
            let handles = handles.collect::<Vec<_>>();
            barrier.wait();
            let started = Instant::now();
            handles.iter().for_each(&call);
            spent += started.elapsed();
            // Where the call does not end it.
            for handle in &handles {
                handle.cancel();
            }
        }
        spent
    };
    let spent = thread::scope(|scope| {
        let threads = (0..threads).map(|thread| scope.spawn(move || spend(thread)));
        let threads = threads.collect::<Vec<_>>().into_iter();
        let spent = threads.map(|thread| thread.join().expect("a call has failed"));
        spent.sum::<Duration>()
    });
    spent / threads as u32
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
    assert_eq!(purgatory.stats().parked, 0);
}

criterion_group!(
    benches,
    park_and_cancel,
    check_unwatched,
    check_in_vain,
    handles,
    park_and_expire
);
criterion_main!(benches);
