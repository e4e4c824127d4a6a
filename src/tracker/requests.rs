//! Calls that wait for their responses: a [`Tracker`] whose values are promises.

mod builder;

pub use builder::RequestsBuilder;

use super::core::Core;
use super::{TrackedKey, Tracker};
use crate::RandomState;
use crate::address::Address;
use crate::engine::owner::WeakFace;
use crate::error::Rejected;
use crate::operation::KeyHasher;
use crate::promise::{Promise, block_on};
use crate::stats::{Count, Stats};
use crate::sync::Arc;
use crate::time::Timestamp;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Why a request has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unanswered {
    /// Its timeout passed first.
    TimedOut,
    /// The [`Requests`] were shut down, or dropped.
    ShutDown,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "no response within the timeout",
            Self::ShutDown => "shut down before a response came",
        })
    }
}

impl Error for Unanswered {}

/// The side of a promise that answers. If it is lost, the request is not: it learns of a shutdown.
struct Caller<R>(Arc<Promise<Result<R, Unanswered>>>);

impl<R> Caller<R> {
    fn answer(self, answer: Result<R, Unanswered>) {
        // (Nothing else keeps this promise while the caller exists.)
        let _ = self.0.keep(answer);
    }
}

impl<R> Drop for Caller<R> {
    fn drop(&mut self) {
        // Refused, and rightly so, if there is an answer. (A shutdown drops many, and the waker of one may panic: the
        // others must hear of it. The panic hook has reported it.)
        let _ = catch_unwind(AssertUnwindSafe(|| self.0.keep(Err(Unanswered::ShutDown))));
    }
}

/// The pending requests of a client: matches responses to them by id, and times them out.
///
/// [`request`](Self::request) gives a [`Future`], which needs no runtime, and can [wait](Request::wait) on a thread as
/// well. Whoever reads responses hands them to [`respond`](Self::respond).
///
/// ```
/// use request_purgatory::{Requests, Unanswered};
/// use std::time::Duration;
///
/// let calls = Requests::<u64, String>::new("calls");
/// let answered = calls.request(1, Duration::from_secs(5))?;
/// let forgotten = calls.request(2, Duration::from_millis(5))?;
/// assert!(calls.respond(&1, "pong".into()));
/// assert_eq!(answered.wait()?, "pong");
/// assert_eq!(forgotten.wait(), Err(Unanswered::TimedOut));
/// assert!(!calls.respond(&2, "too late".into()));
/// assert_eq!(calls.late(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cloning is cheap, and clones are the same requests. When the last one is dropped, those that wait end with
/// [`Unanswered::ShutDown`].
pub struct Requests<K: TrackedKey, R: Send + 'static, S: KeyHasher = RandomState> {
    tracker: Tracker<K, Caller<R>, S>,
    late: Arc<Late<K, R>>,
}

/// Responses that nobody waits for.
struct Late<K, R> {
    count: Count,
    report: Option<Report<K, R>>,
}

type Report<K, R> = Box<dyn Fn(&K, R) + Send + Sync>;

impl<K: TrackedKey, R: Send + 'static> Requests<K, R> {
    /// With a tick of 1 ms, a reaper thread and a completion thread, on which futures that time out are woken.
    ///
    /// # Panics
    /// If the system refuses a thread. [`RequestsBuilder::build`] returns that as an error.
    pub fn new(name: impl Into<String>) -> Self {
        match Self::builder(name).build() {
            Ok(requests) => requests,
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins to build them with other choices.
    pub fn builder(name: impl Into<String>) -> RequestsBuilder<K, R> {
        RequestsBuilder::new(name.into())
    }
}

impl<K: TrackedKey, R: Send + 'static, S: KeyHasher> Requests<K, R, S> {
    /// Expects a response to request `id` within `timeout`. Call it before the request is sent: a response that
    /// overtakes it is late. Dropping the [`Request`] forgets it.
    ///
    /// Takes the lock of the id's shard and, within it, that of a home. Reads the clock once.
    ///
    /// # Errors
    /// The id comes back in a [`Rejected`]: a request with this id is pending
    /// ([`Duplicate`](Rejected::Duplicate)), there are too many, they are shut down, or `Hash`, `Eq` or `Clone` of an
    /// id or the clock panicked.
    pub fn request(&self, id: K, timeout: Duration) -> Result<Request<K, R, S>, Rejected<K>> {
        let promise = Arc::new(Promise::new());
        let core = &self.tracker.face.core;
        let copy = match core.engine.guarded(|| id.clone()) {
            Ok(copy) => copy,
            Err(_) => {
                core.engine.my_home().events.rejected.add(1);
                return Err(Rejected::Panicked(id));
            }
        };
        match core.track(copy, Caller(promise.clone()), timeout, false) {
            Ok((address, _)) => Ok(Request {
                promise,
                tracker: self.tracker.face.downgrade(),
                id,
                address,
                answered: false,
            }),
            Err(rejected) => Err(rejected.map(|_| id)),
        }
    }

    /// Hands over the response to request `id`. Returns whether somebody was waiting for it; if not, it is counted
    /// as [late](Self::late) and reported to [`on_late`](RequestsBuilder::on_late).
    ///
    /// Takes the lock of the id's shard, and then that of a home only if it is free. Wakes the future on this thread,
    /// or calls `on_late`, with no lock held; if that panics, so does this call.
    pub fn respond(&self, id: &K, response: R) -> bool {
        match self.tracker.complete(id) {
            Some(caller) => {
                caller.answer(Ok(response));
                true
            }
            None => {
                self.late.count.add(1);
                if let Some(report) = &self.late.report {
                    report(id, response);
                }
                false
            }
        }
    }

    /// Lets the request `id` time out `timeout` from now instead: the server says that it is still at work. `false`
    /// if there is none. Locks, and reads the clock, as [`Tracker::touch`] does.
    pub fn touch(&self, id: &K, timeout: Duration) -> bool {
        self.tracker.touch(id, timeout)
    }

    /// Requests that wait now. Exact when no call is in progress. Takes no lock.
    pub fn pending(&self) -> usize {
        self.tracker.len()
    }

    /// Responses so far that nobody waited for: their requests had timed out, were dropped, or never were.
    pub fn late(&self) -> u64 {
        self.late.count.read()
    }

    /// What happened so far: of requests, `parked` are pending now, `completed` were answered, `expired` timed out
    /// and `cancelled` were dropped. Takes no lock.
    pub fn stats(&self) -> Stats {
        self.tracker.stats()
    }

    /// Times out what is due, for requests without a reaper; see [`Tracker::advance`].
    pub fn advance(&self) -> usize {
        self.tracker.advance()
    }

    /// When [`advance`](Self::advance) has something to do next; see [`Tracker::next_deadline`].
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.tracker.next_deadline()
    }

    /// Refuses requests from now on, and ends those that wait with [`Unanswered::ShutDown`]: futures are woken on this
    /// thread. Then joins the threads; see [`Tracker::shutdown`].
    pub fn shutdown(&self) {
        // Dropping them tells their requests.
        drop(self.tracker.shutdown());
    }
}

impl<K: TrackedKey, R: Send + 'static, S: KeyHasher> Clone for Requests<K, R, S> {
    fn clone(&self) -> Self {
        Self {
            tracker: self.tracker.clone(),
            late: self.late.clone(),
        }
    }
}

impl<K: TrackedKey, R: Send + 'static, S: KeyHasher> fmt::Debug for Requests<K, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests")
            .field("name", &self.tracker.name())
            .field("stats", &self.stats())
            .field("late", &self.late())
            .finish_non_exhaustive()
    }
}

/// One request that waits for its response: a [`Future`] of it, or of why there is none.
///
/// Any executor will do; dropping it forgets the request, so that a response is late. It does not keep the
/// [`Requests`] alive.
#[must_use = "a request that is dropped is forgotten"]
pub struct Request<K: TrackedKey, R: Send + 'static, S: KeyHasher = RandomState> {
    promise: Arc<Promise<Result<R, Unanswered>>>,
    tracker: WeakFace<Core<K, Caller<R>, S>>,
    id: K,
    address: Address,
    answered: bool,
}

impl<K: TrackedKey, R: Send + 'static, S: KeyHasher> Request<K, R, S> {
    /// Its id.
    pub fn id(&self) -> &K {
        &self.id
    }

    /// Waits on this thread, which sleeps meanwhile.
    ///
    /// Not in a callback of the library: what answers may be due on the very thread that sleeps, which then does so for
    /// ever. (Nothing looks out for that.)
    ///
    /// # Errors
    /// [`Unanswered`], when the timeout has passed or the requests were shut down.
    pub fn wait(self) -> Result<R, Unanswered> {
        block_on(self)
    }
}

impl<K: TrackedKey, R: Send + 'static, S: KeyHasher> Future for Request<K, R, S> {
    type Output = Result<R, Unanswered>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let poll = this.promise.poll(cx);
        this.answered |= poll.is_ready();
        poll
    }
}

/// Nothing in it is ever pinned.
impl<K: TrackedKey, R: Send + 'static, S: KeyHasher> Unpin for Request<K, R, S> {}

impl<K: TrackedKey, R: Send + 'static, S: KeyHasher> Drop for Request<K, R, S> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // The task that drops it need not be woken to hear that it is gone.
        self.promise.forget();
        if let Some(face) = self.tracker.upgrade() {
            drop(face.core.withdraw(&self.id, self.address));
        }
    }
}

impl<K: TrackedKey + fmt::Debug, R: Send + 'static, S: KeyHasher> fmt::Debug for Request<K, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("id", &self.id)
            .field("answered", &self.answered)
            .finish_non_exhaustive()
    }
}
