//! G16: under load, every payload ends exactly once, and nothing is left.

use crate::support::{Mint, PATIENCE, Token, eventually, lock, within};
use crate::tested::{Tested, builder, log, manual};
use request_purgatory::{Timer, purgatory::Builder, timer::TimerId};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

const THREADS: u64 = 4;
const STARTS: u64 = 5_000;

type Ids = Mutex<Vec<TimerId>>;

/// Starts payloads, and stops and resets those of all threads. Returns the numbers it got back.
fn work<W: Tested>(timer: &Timer<Token, W>, ids: &Ids, mint: &Mint, seed: u64) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed + 1);
    let mut back = Vec::new();
    for number in 0..STARTS {
        let timeout = Duration::from_micros(random.u64(..20_000));
        let token = mint.token(seed * STARTS + number);
        let id = timer.start(timeout, token).expect("it fits");
        let pick = {
            let mut ids = lock(ids);
            ids.push(id);
            let recent = random.usize(..ids.len().min(200));
            ids[ids.len() - 1 - recent]
        };
        match random.u64(..4) {
            0 => back.extend(timer.stop(pick).map(|token| token.number)),
            1 => drop(timer.reschedule(pick, timeout)),
            2 => drop(timer.remaining(pick)),
            _ => {}
        }
    }
    back
}

/// Runs the workers beside `drive`, which is to see that the rest expires; then counts.
fn stress<W: Tested>(builder: Builder<Timer<Token, W>>, drive: impl Fn(&Timer<Token, W>)) {
    let (timer, expired) = log(builder, |token| token.number);
    let (ids, mint) = (Ids::default(), Mint::default());
    let mut ends = thread::scope(|scope| {
        let (timer, ids, mint) = (&timer, &ids, &mint);
        let worker = |seed| scope.spawn(move || work(timer, ids, mint, seed));
        let workers = (0..THREADS).map(worker).collect::<Vec<_>>();
        while workers.iter().any(|worker| !worker.is_finished()) {
            drive(timer);
        }
        let ends = workers.into_iter().map(|worker| worker.join());
        ends.flat_map(|ends| ends.expect("no call panics"))
            .collect::<Vec<_>>()
    });
    let stopped = ends.len() as u64;
    eventually("the expiry of the rest", || {
        drive(&timer);
        mint.living() == 0
    });
    ends.extend(lock(&expired).iter());
    ends.sort_unstable();
    let all = THREADS * STARTS;
    assert!(ends.into_iter().eq(0..all), "lost or ended twice");
    let stats = timer.stats();
    assert_eq!((stats.parked, stats.cancelled), (0, stopped));
    assert_eq!((stats.expired, stats.panicked), (all - stopped, 0));
    assert!(lock(&ids).iter().all(|id| timer.stop(*id).is_none()));
    assert!(timer.shutdown().is_empty());
}

pub(crate) fn g16_every_payload_ends_once_on_a_real_clock<W: Tested>() {
    within(PATIENCE, || {
        stress(builder::<Token, W>("g16"), |_| {
            thread::sleep(Duration::from_millis(1));
        });
    });
}

/// Two threads advance it, beside the workers; the clock jumps.
pub(crate) fn g16_every_payload_ends_once_by_hand<W: Tested>() {
    within(PATIENCE, || {
        let (builder, clock) = manual::<Token, W>();
        stress(builder, |timer| {
            clock.advance(Duration::from_micros(700));
            thread::scope(|scope| {
                scope.spawn(|| timer.advance());
                timer.advance();
            });
        });
    });
}
