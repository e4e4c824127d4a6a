//! The case without workers: one of ten values is taken, which is there, and given back, as a connection of a pool. The
//! other nine are there meanwhile, and nobody waits.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bb8::{ManageConnection, Pool};
use tokio::runtime::Builder;

pub(super) const VALUES: u64 = 10;

/// The value of a future that has it at once.
pub(super) fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a value is there"),
    }
}

/// Nanoseconds that a call of `lend` takes, which takes a value and gives it back.
pub(super) fn measure(times: usize, lend: impl Fn()) -> f64 {
    let mut elapsed = Duration::ZERO;
    for times in [times / 10, times] {
        let begun = Instant::now();
        (0..times).for_each(|_| lend());
        elapsed = begun.elapsed();
    }
    elapsed.as_nanos() as f64 / times as f64
}

/// What that takes with the pool of `bb8`, as its builder's defaults are: a timeout of tokio's, and a test of each
/// connection that is taken.
pub(super) fn round_of_bb8(times: usize) -> f64 {
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime can start");
    // All connections are there from the start, as the values of the others.
    let connections = VALUES as u32;
    let builder = Pool::builder().max_size(connections).min_idle(connections);
    let pool = runtime.block_on(builder.build(Connections));
    let pool = pool.expect("nothing can fail");
    let _entered = runtime.enter();
    let each = measure(times, || lend_connection(&pool));
    assert_eq!(pool.state().idle_connections, connections, "all are back");
    each
}

#[inline(never)]
fn lend_connection(pool: &Pool<Connections>) {
    drop(at_once(pool.get()).expect("one is there"));
}

struct Connections;

impl ManageConnection for Connections {
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
