//! Calls that wait for their responses: a [`Tracker`] whose values are promises.

mod builder;

pub use builder::RequestsBuilder;

use builder::Report;

use super::entries::Place;
use super::{Tracker, TrackerBuilder, WeakTracker};
use crate::error::{BuildError, RejectReason, Rejected};
use crate::hash::{Key, KeyHasher, RandomState};
use crate::panics::Panics;
use crate::promise::{Promise, block_on};
use crate::stats::{Count, Stats};
use crate::sync::Arc;
use crate::time::Timestamp;
use crate::trampoline::{Trampoline, drop_user_value};
use equivalent::Equivalent;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Why a request has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestError {
    /// Its timeout passed first.
    TimedOut,
    /// The connection was lost before the response came: see [`Requests::fail_all`].
    ConnectionLost,
    /// The [`Requests`] were shut down, or dropped.
    ShutDown,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "no response came within the timeout",
            Self::ConnectionLost => "the connection was lost before a response came",
            Self::ShutDown => "the requests were shut down before a response came",
        })
    }
}

impl Error for RequestError {}

/// The side of a promise that answers. Its destructor ends the request with a shutdown.
struct Caller<R>(Arc<Promise<Result<R, RequestError>>>);

impl<R> Caller<R> {
    fn answer(self, answer: Result<R, RequestError>) {
        // Nothing else keeps this promise while the caller exists.
        let _ = self.0.keep(answer);
    }
}

impl<R> Drop for Caller<R> {
    fn drop(&mut self) {
        // The promise refuses this if there is an answer. A shutdown drops many callers, and the waker of one may
        // panic: the others must be told all the same. The panic hook has reported it.
        Panics::contain(|| drop(self.0.keep(Err(RequestError::ShutDown))));
    }
}

/// The pending requests of a client: matches responses to them by id, and times them out.
///
/// [`request`](Self::request) returns a [`Future`], which needs no runtime; a thread can also
/// [block on it](ResponseFuture::wait_blocking). The code that reads responses passes them to
/// [`respond`](Self::respond).
///
/// ```
/// use request_purgatory::tracker::{RequestError, Requests};
/// use std::time::Duration;
///
/// let calls = Requests::<u64, String>::new("calls");
/// let answered = calls.request(1, Duration::from_secs(5))?;
/// let forgotten = calls.request(2, Duration::from_millis(5))?;
/// assert!(calls.respond(&1, "pong".into()));
/// assert_eq!(answered.wait_blocking()?, "pong");
/// assert_eq!(forgotten.wait_blocking(), Err(RequestError::TimedOut));
/// assert!(!calls.respond(&2, "too late".into()));
/// assert_eq!(calls.late(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Ids may be used again once their request has ended. A counter makes them; where it wraps around, it may meet a
/// request that is still pending, and goes on:
///
/// ```
/// use request_purgatory::RejectReason;
/// use request_purgatory::tracker::{Requests, ResponseFuture};
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
///
/// fn request(calls: &Requests<u32, String>, next: &AtomicU32) -> Option<ResponseFuture<u32, String>> {
///     loop {
///         let id = next.fetch_add(1, Ordering::Relaxed);
///         match calls.request(id, Duration::from_secs(5)) {
///             Ok(pending) => return Some(pending),
///             Err(refused) if refused.reason() == RejectReason::Duplicate => {}
///             Err(_) => return None, // too many are pending, or shut down
///         }
///     }
/// }
///
/// let (calls, next) = (Requests::new("calls"), AtomicU32::new(u32::MAX));
/// let kept = calls.request(0, Duration::MAX)?; // as if it had been pending since the last time around
/// assert_eq!(request(&calls, &next).map(|pending| *pending.id()), Some(u32::MAX));
/// assert_eq!(request(&calls, &next).map(|pending| *pending.id()), Some(1));
/// # drop(kept);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// By default each `Requests` starts two threads. A client with many connections gives all of theirs one
/// [`ReaperThread`](crate::threads::ReaperThread).
///
/// Cloning is cheap, and clones are the same requests. When the last one is dropped, pending requests end with
/// [`RequestError::ShutDown`].
pub struct Requests<K: Key, R: Send + 'static, S: KeyHasher = RandomState> {
    tracker: Tracker<K, Caller<R>, S>,
    late: Arc<Late<K, R>>,
}

/// Responses to requests that are not pending.
struct Late<K, R> {
    count: Count,
    report: Option<Report<K, R>>,
}

impl<K: Key, R: Send + 'static> Requests<K, R> {
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

impl<K: Key, R: Send + 'static, S: KeyHasher> Requests<K, R, S> {
    /// Expects a response to request `id` within `timeout`. Call it before you send the request: a response that
    /// arrives before this call is late. Dropping the [`ResponseFuture`] forgets the request.
    ///
    /// Takes the lock of the id's map shard and, within it, that of a timer shard. Reads the clock once.
    ///
    /// # Errors
    /// The id comes back in a [`Rejected`]: a request with this id is pending ([`Duplicate`](RejectReason::Duplicate)),
    /// [`max_parked`](RequestsBuilder::max_parked) is reached, the requests are shut down, or `Hash`, `Eq` or `Clone`
    /// of an id or the clock panicked.
    pub fn request(
        &self,
        id: K,
        timeout: Duration,
    ) -> Result<ResponseFuture<K, R, S>, Rejected<K>> {
        let promise = Arc::new(Promise::new());
        let timers = &self.tracker.shared.inner;
        let copy = match timers.engine.guarded(|| id.clone()) {
            Ok(copy) => copy,
            Err(_) => {
                timers.count_rejected();
                return Err(Rejected::new(RejectReason::Panicked, id));
            }
        };
        match timers
            .extra
            .track(timers, copy, Caller(promise.clone()), timeout, false)
        {
            Ok((place, _)) => Ok(ResponseFuture {
                promise,
                tracker: self.tracker.downgrade(),
                id,
                place,
                answered: false,
            }),
            Err(rejected) => Err(rejected.map(|_| id)),
        }
    }

    /// Answers request `id` with `response`. Returns whether the request was pending. If not, the response is counted
    /// as [late](Self::late) and reported to [`on_late`](RequestsBuilder::on_late).
    ///
    /// Takes the lock of the id's map shard, and then that of a timer shard only if it is free. Wakes the future on
    /// this thread, or calls `on_late`, with no lock held; if that panics, so does this call.
    pub fn respond(&self, id: &K, response: R) -> bool {
        let trampoline = Trampoline::enter();
        let late = self.answer(id, response, &trampoline);
        late.map_err(|response| {
            if let Some(report) = &self.late.report {
                report(id, response);
            }
        })
        .is_ok()
    }

    /// The same by a borrowed form of the id: `str` for `String`, or a type with [`Equivalent`]. Locks and wakes as
    /// [`respond`](Self::respond) does.
    ///
    /// # Errors
    /// The response to a request that is not pending comes back. It is counted as [late](Self::late), and not reported.
    pub fn respond_by<Q>(&self, id: &Q, response: R) -> Result<(), R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.answer(id, response, &Trampoline::enter())
    }

    fn answer<Q>(&self, id: &Q, response: R, trampoline: &Trampoline) -> Result<(), R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        match self.tracker.complete(id) {
            // A waker that responds to the next request does not nest.
            Some(caller) if trampoline.is_outermost() => {
                caller.answer(Ok(response));
                Ok(())
            }
            Some(caller) => {
                trampoline.run(Box::new(move || caller.answer(Ok(response))));
                Ok(())
            }
            None => {
                self.late.count.add(1);
                Err(response)
            }
        }
    }

    /// Ends every pending request with [`RequestError::ConnectionLost`], and takes new requests as before, for the next
    /// connection. Returns how many requests this call ended.
    ///
    /// Every request that was pending when the call began has ended when it returns. A request that another thread
    /// makes meanwhile may end as well, so make the requests of the next connection after this call. A response to an
    /// ended request is late.
    ///
    /// Takes for each request the lock of the id's map shard, and that of a timer shard only if it is free. Then wakes
    /// the futures on this thread, with no lock held; a waker's panic is caught and counted.
    pub fn fail_all(&self) -> usize {
        let _trampoline = Trampoline::enter();
        // All requests end before the first future is woken, so a request that its task makes is not ended here.
        let callers = self.tracker.withdraw_all();
        let failed = callers.len();
        let engine = &self.tracker.shared.inner.engine;
        // Wakers, and the destructor of an id, are the user's: a panic is counted.
        for (id, caller) in callers {
            let _ = engine.guarded(|| caller.answer(Err(RequestError::ConnectionLost)));
            let _ = engine.guarded(|| drop(id));
        }
        failed
    }

    /// Lets the request `id` time out `timeout` from now instead: for instance, the server has said that it is still at
    /// work. `false` if no such request is pending. Locks, and reads the clock, as [`Tracker::touch`] does.
    pub fn touch<Q>(&self, id: &Q, timeout: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.tracker.touch(id, timeout)
    }

    /// The number of requests pending now. Exact when no call is in progress. Takes no lock.
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    /// Whether no request is pending now. Takes no lock.
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }

    /// The number of responses to requests that were not pending: they had timed out, were dropped, or were never made.
    pub fn late(&self) -> u64 {
        self.late.count.read()
    }

    /// The counts so far: `parked` requests are pending now, `completed` were answered, `expired` timed out and
    /// `cancelled` were dropped or ended by [`fail_all`](Self::fail_all). Takes no lock.
    pub fn stats(&self) -> Stats {
        self.tracker.stats()
    }

    /// Times out requests whose deadline has passed; for use without a reaper. See [`Tracker::advance`].
    pub fn advance(&self) -> usize {
        self.tracker.advance()
    }

    /// The time of the next call of [`advance`](Self::advance); see [`Tracker::next_deadline`].
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.tracker.next_deadline()
    }

    /// Refuses requests from now on, and ends pending ones with [`RequestError::ShutDown`]: their futures are woken on
    /// this thread. Then joins the threads; see [`Tracker::shutdown`].
    pub fn shutdown(&self) {
        let remains = self.tracker.shutdown();
        let _trampoline = Trampoline::enter();
        let engine = &self.tracker.shared.inner.engine;
        for (id, caller) in remains {
            // Dropping it tells its request. (The destructor of an id is the user's.)
            drop(caller);
            let _ = engine.guarded(|| drop(id));
        }
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Clone for Requests<K, R, S> {
    fn clone(&self) -> Self {
        Self {
            tracker: self.tracker.clone(),
            late: self.late.clone(),
        }
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> fmt::Debug for Requests<K, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests")
            .field("name", &self.tracker.name())
            .field("stats", &self.stats())
            .field("late", &self.late())
            .finish_non_exhaustive()
    }
}

/// A [`Future`] of the response to one request, or of the reason why there is none.
///
/// Any executor can poll it. Dropping it forgets the request, and a response is then late. It does not keep the
/// [`Requests`] alive.
#[must_use = "a request that is dropped is forgotten"]
pub struct ResponseFuture<K: Key, R: Send + 'static, S: KeyHasher = RandomState> {
    promise: Arc<Promise<Result<R, RequestError>>>,
    tracker: WeakTracker<K, Caller<R>, S>,
    id: K,
    place: Place,
    answered: bool,
}

impl<K: Key, R: Send + 'static, S: KeyHasher> ResponseFuture<K, R, S> {
    /// The id of the request.
    pub fn id(&self) -> &K {
        &self.id
    }

    /// Blocks this thread until the response comes.
    ///
    /// # Errors
    /// [`RequestError`], if the timeout passes, the connection is lost or the requests are shut down.
    ///
    /// # Panics
    /// If it is called from a callback of the library: the response may need the thread that is blocked.
    pub fn wait_blocking(self) -> Result<R, RequestError> {
        assert!(
            !Trampoline::in_progress(),
            "a callback of the library must not block in `wait_blocking`"
        );
        block_on(self)
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Future for ResponseFuture<K, R, S> {
    type Output = Result<R, RequestError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let poll = this.promise.poll(cx);
        this.answered |= poll.is_ready();
        poll
    }
}

/// Nothing in it is ever pinned.
impl<K: Key, R: Send + 'static, S: KeyHasher> Unpin for ResponseFuture<K, R, S> {}

impl<K: Key, R: Send + 'static, S: KeyHasher> Drop for ResponseFuture<K, R, S> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let _trampoline = Trampoline::enter();
        // The task that drops the future is not woken.
        let (response, waker) = self.promise.close();
        let mut panics = Panics::default();
        let withdraw = || Some(self.tracker.upgrade()?.withdraw(self.place));
        let withdrawn = panics.catch(withdraw);
        // Destructors of the user's, after the request has ended.
        panics.catch(|| drop_user_value(withdrawn));
        panics.catch(|| drop_user_value(response));
        panics.catch(|| drop_user_value(waker));
        panics.resume();
    }
}

impl<K: Key + fmt::Debug, R: Send + 'static, S: KeyHasher> fmt::Debug for ResponseFuture<K, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("id", &self.id)
            .field("answered", &self.answered)
            .finish_non_exhaustive()
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> RequestsBuilder<K, R, S> {
    /// Builds them and starts the threads.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread.
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(self) -> Result<Requests<K, R, S>, BuildError> {
        let tracker = TrackerBuilder::with(self.settings, self.hasher, 1);
        Ok(Requests {
            tracker: tracker.build(|_, caller: Caller<R>| {
                caller.answer(Err(RequestError::TimedOut));
            })?,
            late: Arc::new(Late {
                count: Count::default(),
                report: self.on_late,
            }),
        })
    }
}
