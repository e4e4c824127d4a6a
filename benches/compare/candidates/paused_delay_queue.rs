//! tokio-util's `DelayQueue` alone, on tokio's paused clock.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use crate::timer_queue::{Tick, TimerQueue};

pub(crate) struct PausedDelayQueue<V> {
    runtime: Arc<Runtime>,
    origin: Instant,
    now: Tick,
    queue: DelayQueue<V>,
}

impl<V> PausedDelayQueue<V> {
    fn on(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            origin: Instant::now(),
            now: 0,
            queue: DelayQueue::new(),
        }
    }
}

fn runtime() -> Arc<Runtime> {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    Arc::new(runtime.expect("a runtime can start"))
}

impl<V> TimerQueue<V> for PausedDelayQueue<V> {
    const NAME: &'static str = "delay_queue";

    /// tokio rounds up to its own ticks, twice.
    const LATE: Tick = 2;

    type Token = Key;

    fn new() -> Self {
        Self::on(runtime())
    }

    /// The queue needs its runtime around every call.
    fn with<T>(body: impl FnOnce(Self) -> T) -> T {
        let runtime = runtime();
        let _entered = runtime.enter();
        body(Self::on(Arc::clone(&runtime)))
    }

    fn start(&mut self, value: V, deadline: Tick) -> Key {
        let deadline = self.origin + Duration::from_millis(deadline);
        self.queue.insert_at(value, deadline)
    }

    /// Its keys are used again, so only what has not fired may be stopped.
    fn stop(&mut self, token: Key) {
        self.queue.remove(&token);
    }

    fn advance(&mut self, now: Tick, fire: &mut impl FnMut(V)) {
        let span = Duration::from_millis(now - self.now);
        self.now = now;
        let queue = &mut self.queue;
        self.runtime.block_on(async {
            tokio::time::advance(span).await;
            // All that is due now: no task waits for its turn here.
            let all = poll_fn(|context| {
                while let Poll::Ready(Some(expired)) = queue.poll_expired(context) {
                    fire(expired.into_inner());
                }
                Poll::Ready(())
            });
            tokio::task::unconstrained(all).await;
        });
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    /// Moving tokio's clock and entering its runtime: what an advance costs with nothing queued.
    fn overhead() -> f64 {
        static MEASURED: OnceLock<f64> = OnceLock::new();
        const TRIES: Tick = 20_000;
        *MEASURED.get_or_init(|| {
            Self::with(|mut empty| {
                let started = std::time::Instant::now();
                (1..=TRIES).for_each(|now| empty.advance(now, &mut |_| {}));
                started.elapsed().as_nanos() as f64 / TRIES as f64
            })
        })
    }
}
