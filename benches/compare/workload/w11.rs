//! W11: one who listens: listen on some keys, be woken by one of them, look, end. And listening in vain: listen, end.
//!
//! Beside it the library's `wait`, whose predicate the checking thread asks, and what others build from
//! `event_listener` or tokio's `Notify`: one event for each key, listened to before the look, and a timeout of tokio's
//! around it. Others have no map from keys to events here, and are given each event; the library finds its listeners by
//! key. As many others as are parked listen to other keys. One thread does all of it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use event_listener::{Event, EventListener};
use request_purgatory::Waits;
use request_purgatory::future::Listener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, futures::OwnedNotified};
use tokio::time::{Sleep, sleep};

use super::{Case, Contender, Workload, contenders};
use crate::options::Options;
use crate::outcome::{Metric, Values};

const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct W11 {
    parked: u64,
    keys: u64,
    lives: u64,
}

trait Wakes {
    const NAME: &'static str;

    type Waiter;

    fn new(keys: u64) -> Self;

    /// Waits from now on for any of `keys` and until the event is past `last`; polled once.
    fn listen(&self, keys: std::ops::Range<u64>, last: u64) -> Self::Waiter;

    fn event(&self) -> &Arc<AtomicU64>;

    /// Makes a change of the event known.
    fn wake(&self, key: u64);

    /// What is found after the wake-up; then it is over.
    fn look(&self, waiter: Self::Waiter) -> u64;

    /// Waits for executors to do what is left.
    fn settle(&self) {}
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

struct Listens(Waits<u64>, Arc<AtomicU64>);

impl Wakes for Listens {
    const NAME: &'static str = "request_purgatory";

    type Waiter = Listener<u64>;

    fn new(_: u64) -> Self {
        Self(Waits::new("compare"), Arc::default())
    }

    #[inline(never)]
    fn listen(&self, keys: std::ops::Range<u64>, last: u64) -> Listener<u64> {
        let mut listener = self.0.listen(keys, TIMEOUT);
        assert!(self.1.load(Ordering::Acquire) <= last);
        assert!(poll(pin!(listener.checked())).is_pending());
        listener
    }

    fn event(&self) -> &Arc<AtomicU64> {
        &self.1
    }

    #[inline(never)]
    fn wake(&self, key: u64) {
        self.0.check_and_complete(&key);
    }

    #[inline(never)]
    fn look(&self, mut listener: Listener<u64>) -> u64 {
        assert_eq!(poll(pin!(listener.checked())), Poll::Ready(Ok(())));
        let now = self.1.load(Ordering::Acquire);
        listener.satisfied();
        now
    }
}

struct WaitsFor(Waits<u64>, Arc<AtomicU64>);

impl Wakes for WaitsFor {
    const NAME: &'static str = "wait";

    type Waiter =
        request_purgatory::future::WaitFuture<request_purgatory::future::WaitOperation<u64>, u64>;

    fn new(_: u64) -> Self {
        Self(Waits::new("compare"), Arc::default())
    }

    #[inline(never)]
    fn listen(&self, keys: std::ops::Range<u64>, last: u64) -> Self::Waiter {
        let event = self.1.clone();
        let mut wait = self.0.wait(keys, TIMEOUT, move || {
            let now = event.load(Ordering::Acquire);
            (now > last).then_some(now)
        });
        assert!(poll(Pin::new(&mut wait)).is_pending());
        wait
    }

    fn event(&self) -> &Arc<AtomicU64> {
        &self.1
    }

    #[inline(never)]
    fn wake(&self, key: u64) {
        self.0.check_and_complete(&key);
    }

    #[inline(never)]
    fn look(&self, mut wait: Self::Waiter) -> u64 {
        match poll(Pin::new(&mut wait)) {
            Poll::Ready(Ok(now)) => now,
            other => panic!("{other:?}"),
        }
    }
}

/// One key's part of what is not the library's.
trait Source: Default {
    const NAME: &'static str;

    type Wake: Future;

    fn listen(&self) -> Self::Wake;

    fn wake(&self);
}

#[derive(Default)]
struct OfEvent(Event);

impl Source for OfEvent {
    const NAME: &'static str = "event_listener";

    type Wake = EventListener;

    fn listen(&self) -> EventListener {
        self.0.listen()
    }

    fn wake(&self) {
        self.0.notify(usize::MAX);
    }
}

#[derive(Default)]
struct OfNotify(Arc<Notify>);

impl Source for OfNotify {
    const NAME: &'static str = "tokio_notify";

    type Wake = OwnedNotified;

    fn listen(&self) -> OwnedNotified {
        self.0.clone().notified_owned()
    }

    fn wake(&self) {
        self.0.notify_waiters();
    }
}

/// Sources with a timeout of tokio's.
struct Timed<S> {
    runtime: Runtime,
    sources: Vec<S>,
    event: Arc<AtomicU64>,
}

impl<S: Source> Wakes for Timed<S> {
    const NAME: &'static str = S::NAME;

    type Waiter = (Vec<Pin<Box<S::Wake>>>, Pin<Box<Sleep>>);

    fn new(keys: u64) -> Self {
        let runtime = Builder::new_current_thread().enable_time().build();
        Self {
            runtime: runtime.expect("a timer"),
            sources: (0..keys).map(|_| S::default()).collect(),
            event: Arc::default(),
        }
    }

    #[inline(never)]
    fn listen(&self, keys: std::ops::Range<u64>, last: u64) -> Self::Waiter {
        let _inside = self.runtime.enter();
        let listen = |key| Box::pin(self.sources[key as usize].listen());
        let mut wakes = Vec::from_iter(keys.map(listen));
        assert!(self.event.load(Ordering::Acquire) <= last);
        for wake in &mut wakes {
            assert!(poll(wake.as_mut()).is_pending());
        }
        let mut timeout = Box::pin(sleep(TIMEOUT));
        assert!(poll(timeout.as_mut()).is_pending());
        (wakes, timeout)
    }

    fn event(&self) -> &Arc<AtomicU64> {
        &self.event
    }

    #[inline(never)]
    fn wake(&self, key: u64) {
        self.sources[key as usize].wake();
    }

    #[inline(never)]
    fn look(&self, (mut wakes, timeout): Self::Waiter) -> u64 {
        assert!(wakes.iter_mut().any(|wake| poll(wake.as_mut()).is_ready()));
        let now = self.event.load(Ordering::Acquire);
        drop(timeout);
        now
    }

    fn settle(&self) {
        self.runtime.block_on(tokio::task::yield_now());
    }
}

impl W11 {
    fn round<W: Wakes>(&self) -> Values {
        let others = self.parked * self.keys;
        let wakes = W::new(others + self.keys);
        let listen_to = |at| {
            let first = at * self.keys;
            wakes.listen(first..first + self.keys, u64::MAX)
        };
        let parked = Vec::from_iter((0..self.parked).map(listen_to));
        let own = others..others + self.keys;
        let mut elapsed = [Duration::ZERO; 2];
        for lives in [self.lives / 10, self.lives] {
            let begun = Instant::now();
            for life in 0..lives {
                let last = wakes.event().load(Ordering::Relaxed);
                let waiter = wakes.listen(own.clone(), last);
                wakes.event().store(last + 1, Ordering::Release);
                wakes.wake(own.start + life % self.keys);
                assert_eq!(wakes.look(waiter), last + 1, "{}", W::NAME);
            }
            elapsed[0] = begun.elapsed();
            let last = wakes.event().load(Ordering::Relaxed);
            let begun = Instant::now();
            for _ in 0..lives {
                drop(wakes.listen(own.clone(), last));
            }
            elapsed[1] = begun.elapsed();
            wakes.settle();
        }
        drop(parked);
        let each = |elapsed: Duration| elapsed.as_nanos() as f64 / self.lives as f64;
        elapsed.map(each).to_vec()
    }

    /// Each wake-up comes, for each of three keys (the round asserts it).
    fn check<W: Wakes>() {
        let small = Self {
            parked: 10,
            keys: 3,
            lives: 100,
        };
        small.round::<W>();
    }
}

impl Workload for W11 {
    const NAME: &'static str = "W11";

    const TITLE: &'static str = "one life of a listener on one thread: listen, wake, look, end";

    const METRICS: &'static [Metric] = &[
        Metric::less("life", "ns"),
        Metric::less("listen and drop", "ns"),
    ];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let lives = (options.lives() / options.rounds_of(Self::ROUNDS)).min(200_000) as u64;
        let case = |keys: u64| Case {
            parameters: vec![("keys", keys as usize), ("parked", 1_000)],
            workload: Self {
                parked: 1_000,
                keys,
                lives,
            },
        };
        [1, 10].map(case).into_iter().collect()
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![check and round:
            Listens,
            WaitsFor,
            Timed<OfEvent>,
            Timed<OfNotify>,
        ]
    }
}
