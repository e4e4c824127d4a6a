//! G23 on random schedules: workers that take, give up at any moment and are cancelled, while jobs come and time
//! passes.
#![cfg(shuttle)]

use request_purgatory::future::{TakeFuture, WaitOperation};
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::{Bound, Purgatory, time::ManualClock};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;
use shuttle_tests::explore;
use shuttle_tests::operation::Hasher;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const JOBS: u32 = 6;
const TAKES: usize = 4;
const KEYS: u64 = 2;

#[derive(Clone)]
struct Stage {
    waits: Purgatory<WaitOperation<u64>, Hasher>,
    clock: ManualClock,
    jobs: Arc<Mutex<VecDeque<u32>>>,
    received: Arc<Mutex<Vec<u32>>>,
}

impl Stage {
    fn new() -> Self {
        let clock = ManualClock::new();
        let waits = Purgatory::<WaitOperation<u64>>::builder("shuttle")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(Dispatch::Inline)
            .hasher(Hasher::default())
            .build()
            .expect("the settings are sound");
        Self {
            waits,
            clock,
            jobs: Arc::default(),
            received: Arc::default(),
        }
    }

    fn take(&self) -> TakeFuture<u64, u32, Hasher> {
        let (takes, returns) = (self.jobs.clone(), self.jobs.clone());
        let timeout = Duration::from_millis(thread_rng().gen_range(0..4));
        self.waits.take(
            0..KEYS,
            timeout,
            move |_| takes.lock().unwrap().pop_front(),
            move |job| returns.lock().unwrap().push_front(job),
        )
    }

    /// Takes, polls a few times, and drops the futures in any order, received or not.
    fn work(&self) {
        let mut takes = Vec::new();
        for _ in 0..TAKES {
            takes.push(self.take());
            for _ in 0..thread_rng().gen_range(0..4) {
                let at = thread_rng().gen_range(0..takes.len());
                let polled = Pin::new(&mut takes[at]).poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(Ok(job)) = polled {
                    self.received.lock().unwrap().push(job);
                }
                thread::yield_now();
            }
            if thread_rng().gen_bool(0.5) {
                drop(takes.swap_remove(thread_rng().gen_range(0..takes.len())));
            }
        }
    }

    fn push(&self) {
        for job in 0..JOBS {
            self.jobs.lock().unwrap().push_back(job);
            let key = thread_rng().gen_range(0..KEYS);
            match thread_rng().gen_range(0..4) {
                0 => self.waits.check_later(key),
                _ => drop(self.waits.check_and_complete_with(&key, Bound::at_most(1))),
            }
        }
    }

    fn meddle(&self) {
        for _ in 0..TAKES {
            match thread_rng().gen_range(0..4) {
                0 => drop(self.waits.cancel_for_key(&0)),
                1 => drop(self.waits.force_complete_for_key(&1)),
                _ => {
                    self.clock.advance(Duration::from_millis(1));
                    self.waits.advance();
                }
            }
        }
    }
}

#[test]
fn g23_what_was_taken_is_received_or_given_back() {
    explore(|| {
        let stage = Stage::new();
        let parts: [fn(&Stage); 4] = [Stage::work, Stage::push, Stage::work, Stage::meddle];
        let threads = parts.map(|part| {
            let stage = stage.clone();
            thread::spawn(move || part(&stage))
        });
        for thread in threads {
            thread.join().expect("no call panics");
        }
        stage.waits.advance();
        stage.waits.shutdown();
        let mut all = stage.received.lock().unwrap().clone();
        all.extend(stage.jobs.lock().unwrap().iter());
        all.sort_unstable();
        assert_eq!(
            all,
            Vec::from_iter(0..JOBS),
            "each is received or there, once"
        );
        let stats = stage.waits.stats();
        assert_eq!((stats.parked, stats.panicked), (0, 0), "{stats:?}");
    });
}
