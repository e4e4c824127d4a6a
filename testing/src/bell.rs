//! Wakers: one that counts, and one that calls.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Counts its wake-ups.
#[derive(Debug, Default)]
pub struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Polls `future` for this bell.
    pub fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        let waker = Waker::from(self.clone());
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }
}

/// A waker that calls `woken`, and owns it.
pub fn waker(woken: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Calls<W>(W);
    impl<W: Fn() + Send + Sync> Wake for Calls<W> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Waker::from(Arc::new(Calls(woken)))
}
