//! The tokio idiom: a task per request that waits for a oneshot under `timeout`.
//!
//! A check that can complete a request sends it through its oneshot; the task wakes, takes itself
//! off its keys and completes the request. The tasks run on a current-thread runtime that the
//! workload itself runs in, so that their work is measured and nothing but it: `turn` yields to
//! them. Each thread of a workload has a runtime of its own. A broker with one runtime per core
//! works like that; on a runtime of several threads the same code costs more.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::watch_lists::WatchLists;
use crate::candidate::{ByHandle, Candidate};
use crate::request::{Ending, Request};

pub(crate) struct TokioIdiom {
    /// Those that no thread drives right now.
    idle: Mutex<Vec<Runtime>>,
    all: Mutex<Vec<Handle>>,
    lists: Arc<WatchLists<Waiter>>,
}

/// The request and the way to its task; empty once someone has taken it to end it.
pub(crate) struct Waiter(Mutex<Option<(Request, oneshot::Sender<Request>)>>);

/// Waits for one request's end. The thread or task that takes the request out of the waiter ends it: a check by
/// sending it here, the timeout by finding it still there.
async fn wait(
    lists: Arc<WatchLists<Waiter>>,
    waiter: Arc<Waiter>,
    keys: SmallVec<[u64; 4]>,
    limit: Duration,
    mut satisfied: oneshot::Receiver<Request>,
) {
    let in_time = timeout(limit, &mut satisfied).await;
    for &key in &keys {
        lists.unwatch(key, &waiter);
    }
    match in_time {
        Ok(request) => {
            request
                .expect("the sender sends")
                .on_complete(Ending::Satisfied);
        }
        Err(_elapsed) => {
            let taken = waiter.0.lock().take();
            match taken {
                Some((request, _)) => request.on_complete(Ending::Expired),
                // A check was faster after all; the request is in the channel or about to be.
                None => satisfied
                    .await
                    .expect("the sender sends")
                    .on_complete(Ending::Satisfied),
            }
        }
    }
}

impl Waiter {
    fn try_complete(&self) -> bool {
        self.complete_if(Request::try_complete)
    }

    fn complete_if(&self, may_complete: impl FnOnce(&mut Request) -> bool) -> bool {
        let mut waiting = self.0.lock();
        let Some((request, _)) = waiting.as_mut() else {
            return false;
        };
        if !may_complete(request) {
            return false;
        }
        let taken = waiting.take();
        drop(waiting);
        taken.is_some_and(|(request, task)| task.send(request).is_ok())
    }
}

impl Candidate for TokioIdiom {
    const NAME: &'static str = "tokio_idiom";

    const HAS_EXECUTOR: bool = true;

    fn new() -> Self {
        Self {
            idle: Mutex::default(),
            all: Mutex::default(),
            lists: Arc::new(WatchLists::new()),
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
            .filter(|waiter| waiter.try_complete())
            .count()
    }

    fn parked(&self) -> usize {
        let all = self.all.lock();
        all.iter()
            .map(|runtime| runtime.metrics().num_alive_tasks())
            .sum()
    }

    fn watched(&self) -> usize {
        self.lists.len()
    }

    async fn turn(&self) {
        tokio::task::yield_now().await;
    }

    async fn rest(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    fn drive<T>(&self, body: impl Future<Output = T>) -> T {
        debug_assert!(Handle::try_current().is_err(), "one runtime at a time");
        let idle = self.idle.lock().pop();
        let runtime = idle.unwrap_or_else(|| {
            let runtime = Builder::new_current_thread()
                .enable_time()
                .build()
                .expect("a runtime can start");
            self.all.lock().push(runtime.handle().clone());
            runtime
        });
        let value = runtime.block_on(body);
        self.idle.lock().push(runtime);
        value
    }
}

impl ByHandle for TokioIdiom {
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
        (!waiter.try_complete()).then_some(waiter)
    }

    fn force_complete(&self, waiter: Arc<Waiter>) -> bool {
        waiter.complete_if(|_| true)
    }
}
