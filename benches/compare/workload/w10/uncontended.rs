//! The case without workers: one of ten values is taken, which is there, and given back when its guard goes, as a
//! connection of a pool. The same nine values are there meanwhile, and nobody waits.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bb8::{ManageConnection, Pool};
use tokio::runtime::{Builder, Runtime};

use super::{Channel, JobQueue, Listeners, Notified, Takes};

const VALUES: u64 = 10;

/// Values that are taken and given back.
pub(super) trait Lends {
    fn with_values() -> Self;

    fn take_and_give_back(&self);

    /// How many are there.
    fn left(&self) -> usize;

    /// Runs `body` where callers run.
    fn with<T>(&self, body: impl FnOnce() -> T) -> T {
        body()
    }
}

/// Nanoseconds to take and give back.
pub(super) fn round<L: Lends>(times: usize) -> f64 {
    let lends = L::with_values();
    let mut elapsed = Duration::ZERO;
    lends.with(|| {
        for times in [times / 10, times] {
            let begun = Instant::now();
            (0..times).for_each(|_| lends.take_and_give_back());
            elapsed = begun.elapsed();
        }
    });
    assert_eq!(lends.left(), VALUES as usize, "all are back");
    elapsed.as_nanos() as f64 / times as f64
}

/// The value of a future that has it at once.
fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a value is there"),
    }
}

/// With all values in it.
fn filled<Q: JobQueue>() -> Q {
    let queue = Q::new();
    (0..VALUES).for_each(|value| queue.push(value));
    queue
}

/// Gives a value back when it goes.
struct Guard<F: FnMut()>(F);

impl<F: FnMut()> Drop for Guard<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Lends for Takes {
    fn with_values() -> Self {
        filled()
    }

    #[inline(never)]
    fn take_and_give_back(&self) {
        drop(at_once(self.taken()).expect("it is there"));
    }

    fn left(&self) -> usize {
        self.jobs.lock().len()
    }
}

impl Lends for Channel {
    fn with_values() -> Self {
        filled()
    }

    #[inline(never)]
    fn take_and_give_back(&self) {
        let value = at_once(self.1.recv()).expect("it is open");
        drop(Guard(|| self.push(value)));
    }

    fn left(&self) -> usize {
        self.0.len()
    }
}

impl Lends for Notified {
    fn with_values() -> Self {
        filled()
    }

    #[inline(never)]
    fn take_and_give_back(&self) {
        let value = at_once(self.next());
        drop(Guard(|| self.push(value)));
    }

    fn left(&self) -> usize {
        self.1.lock().len()
    }
}

impl Lends for Listeners {
    fn with_values() -> Self {
        filled()
    }

    #[inline(never)]
    fn take_and_give_back(&self) {
        let value = at_once(self.next());
        drop(Guard(|| self.push(value)));
    }

    fn left(&self) -> usize {
        self.1.lock().len()
    }
}

/// The pool of `bb8`, as its builder's defaults are: a timeout of tokio's, and a test of each connection that is taken.
pub(super) struct Bb8 {
    runtime: Runtime,
    pool: Pool<Numbers>,
}

pub(super) struct Numbers;

impl ManageConnection for Numbers {
    type Connection = u64;
    type Error = Infallible;

    async fn connect(&self) -> Result<u64, Infallible> {
        Ok(0)
    }

    async fn is_valid(&self, _: &mut u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _: &mut u64) -> bool {
        false
    }
}

impl Bb8 {
    pub(super) const NAME: &'static str = "bb8";
}

impl Lends for Bb8 {
    fn with_values() -> Self {
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime can start");
        let values = VALUES as u32;
        // All connections are there from the start, as those of the others.
        let builder = Pool::builder().max_size(values).min_idle(values);
        let pool = runtime.block_on(builder.build(Numbers));
        Self {
            pool: pool.expect("nothing can fail"),
            runtime,
        }
    }

    #[inline(never)]
    fn take_and_give_back(&self) {
        drop(at_once(self.pool.get()).expect("it is there"));
    }

    fn left(&self) -> usize {
        self.pool.state().idle_connections as usize
    }

    fn with<T>(&self, body: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        body()
    }
}
