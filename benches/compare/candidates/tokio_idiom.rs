//! The tokio idiom: a task per request that waits for a oneshot under `timeout`.
//!
//! A check that can complete a request sends it through its oneshot; the task wakes, takes itself
//! off its keys and completes the request.
//!
//! | name | where the tasks run |
//! |---|---|
//! | `tokio_idiom` | on a current-thread runtime that the workload itself runs in, so that their work is measured and nothing but it: `turn` yields to them. Each thread of a workload has a runtime of its own, as a broker with one runtime per core |
//! | `tokio_threads` | on the threads of one runtime, as many as tokio makes by default. They end requests while the workload goes on |
//! | `tokio_alt_timer` | the same with tokio's alternative timer, which is there if the benchmark is built with `--cfg tokio_unstable` |

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::watch_lists::WatchLists;
use crate::candidate::{ByHandle, Candidate};
use crate::request::{Ending, Request};

pub(crate) struct TokioIdiom<F = OfEachThread> {
    /// Those that no thread drives right now; or the one that all threads share.
    idle: Mutex<Vec<Arc<Runtime>>>,
    lists: Arc<WatchLists<Waiter>>,
    flavour: PhantomData<fn() -> F>,
}

/// The request and the way to its task; empty once someone has taken it to end it.
pub(crate) struct Waiter(Mutex<Option<(Request, oneshot::Sender<Satisfied>)>>);

/// What a check sends: the request, and where the task notes that it has ended.
struct Satisfied(Request, Option<Woken>);

/// Tasks that the checks of one thread have woken and that have not ended.
type Woken = &'static AtomicUsize;

thread_local! {
    static WOKEN: Woken = Box::leak(Box::default());
}

/// A kind of runtime.
pub(crate) trait Flavour: 'static {
    const NAME: &'static str;

    /// Whether its tasks run on threads of its own, which all threads of a workload use.
    const HAS_THREADS: bool;

    fn builder() -> Builder;
}

pub(crate) struct OfEachThread;

impl Flavour for OfEachThread {
    const NAME: &'static str = "tokio_idiom";
    const HAS_THREADS: bool = false;

    fn builder() -> Builder {
        Builder::new_current_thread()
    }
}

pub(crate) struct OnThreads;

impl Flavour for OnThreads {
    const NAME: &'static str = "tokio_threads";
    const HAS_THREADS: bool = true;

    fn builder() -> Builder {
        Builder::new_multi_thread()
    }
}

#[cfg(tokio_unstable)]
pub(crate) struct AltTimer;

#[cfg(tokio_unstable)]
impl Flavour for AltTimer {
    const NAME: &'static str = "tokio_alt_timer";
    const HAS_THREADS: bool = true;

    fn builder() -> Builder {
        let mut builder = Builder::new_multi_thread();
        builder.enable_alt_timer();
        builder
    }
}

/// Waits for one request's end. The thread or task that takes the request out of the waiter ends it: a check by
/// sending it here, the timeout by finding it still there.
async fn wait(
    lists: Arc<WatchLists<Waiter>>,
    waiter: Arc<Waiter>,
    keys: SmallVec<[u64; 4]>,
    limit: Duration,
    mut satisfied: oneshot::Receiver<Satisfied>,
) {
    let in_time = timeout(limit, &mut satisfied).await;
    for &key in &keys {
        lists.unwatch(key, &waiter);
    }
    let satisfied = match in_time {
        Ok(satisfied) => satisfied,
        Err(_elapsed) => {
            let taken = waiter.0.lock().take();
            if let Some((request, _)) = taken {
                return request.on_complete(Ending::Expired);
            }
            // A check was faster after all; the request is in the channel or about to be.
            satisfied.await
        }
    };
    let Satisfied(request, woken) = satisfied.expect("the sender sends");
    request.on_complete(Ending::Satisfied);
    if let Some(woken) = woken {
        // ORDERING: with `finish`, which then sees what the task did.
        woken.fetch_sub(1, Ordering::Release);
    }
}

impl Waiter {
    fn complete_if(
        &self,
        may_complete: impl FnOnce(&mut Request) -> bool,
        woken: Option<Woken>,
    ) -> bool {
        let mut waiting = self.0.lock();
        let Some((request, _)) = waiting.as_mut() else {
            return false;
        };
        if !may_complete(request) {
            return false;
        }
        let taken = waiting.take();
        drop(waiting);
        taken.is_some_and(|(request, task)| {
            if let Some(woken) = woken {
                woken.fetch_add(1, Ordering::Relaxed);
            }
            task.send(Satisfied(request, woken)).is_ok()
        })
    }
}

impl<F: Flavour> TokioIdiom<F> {
    /// Where the calling thread counts the tasks that it wakes, if they do not run on itself.
    fn woken() -> Option<Woken> {
        F::HAS_THREADS.then(|| WOKEN.with(|woken| *woken))
    }

    fn try_complete(waiter: &Waiter) -> bool {
        waiter.complete_if(Request::try_complete, Self::woken())
    }
}

impl<F: Flavour> Candidate for TokioIdiom<F> {
    const NAME: &'static str = F::NAME;

    const HAS_EXECUTOR: bool = !F::HAS_THREADS;

    const ENDS_LATER: bool = F::HAS_THREADS;

    fn new() -> Self {
        Self {
            idle: Mutex::default(),
            lists: Arc::new(WatchLists::new()),
            flavour: PhantomData,
        }
    }

    #[inline(always)]
    fn park(&self, request: Request, keys: &[u64]) -> bool {
        self.park_for_handle(request, keys).is_none()
    }

    #[inline(never)]
    fn check(&self, key: u64) -> usize {
        self.lists
            .watchers(key)
            .iter()
            .filter(|waiter| Self::try_complete(waiter))
            .count()
    }

    fn parked(&self) -> usize {
        self.lists.distinct()
    }

    fn watched(&self) -> usize {
        self.lists.len()
    }

    async fn turn(&self) {
        if !F::HAS_THREADS {
            tokio::task::yield_now().await;
        }
    }

    async fn finish(&self) {
        self.turn().await;
        if let Some(woken) = Self::woken() {
            while woken.load(Ordering::Acquire) > 0 {
                thread::yield_now();
            }
        }
    }

    async fn rest(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    fn drive<T>(&self, body: impl Future<Output = T>) -> T {
        debug_assert!(Handle::try_current().is_err(), "one runtime at a time");
        let mut idle = self.idle.lock();
        let runtime = idle.pop().unwrap_or_else(|| {
            let runtime = F::builder().enable_time().build();
            Arc::new(runtime.expect("a runtime can start"))
        });
        if F::HAS_THREADS {
            idle.push(Arc::clone(&runtime));
            drop(idle);
            return runtime.block_on(body);
        }
        drop(idle);
        let value = runtime.block_on(body);
        self.idle.lock().push(runtime);
        value
    }
}

impl<F: Flavour> ByHandle for TokioIdiom<F> {
    type Handle = Arc<Waiter>;

    #[inline(never)]
    fn park_for_handle(&self, mut request: Request, keys: &[u64]) -> Option<Arc<Waiter>> {
        if request.try_complete() {
            request.on_complete(Ending::Satisfied);
            return None;
        }
        let limit = request.timeout();
        let (task, satisfied) = oneshot::channel();
        let waiter = Arc::new(Waiter(Mutex::new(Some((request, task)))));
        for &key in keys {
            self.lists.watch(key, &waiter);
        }
        tokio::spawn(wait(
            Arc::clone(&self.lists),
            Arc::clone(&waiter),
            keys.into(),
            limit,
            satisfied,
        ));
        // The event may have come before the keys were registered.
        (!Self::try_complete(&waiter)).then_some(waiter)
    }

    fn force_complete(&self, waiter: Arc<Waiter>) -> bool {
        waiter.complete_if(|_| true, Self::woken())
    }
}
