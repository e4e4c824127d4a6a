//! Calls that wait for their responses.

use crate::builder::{Builder, Built, sound};
use crate::error::{BuildError, Rejected};
use crate::handle::{Handle, WeakRef, handle};
use crate::promise::{Answer, Responder};
use crate::remembered::Remembered;
use crate::shared::Shared;
use crate::values::{Expiring, Values};
use equivalent::Equivalent;
use request_purgatory::future::Promise;
use request_purgatory::purgatory::{Key, KeyHasher, RandomState, Stats};
use request_purgatory::threads::{run_unnested, run_unnested_on};
use request_purgatory::time::Timestamp;
use request_purgatory::{Deadline, WaitError};
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

/// The outcome of a response that was given to [`Requests::respond`].
///
/// A returned response is the caller's to drop. If its destructor calls `respond` and gets a response back in turn, the
/// destructors nest on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a response to an id that is unknown may mean that the connection is broken"]
pub enum Responded<R> {
    /// A pending request got the response. Its future may be dropped at this very moment.
    Delivered,
    /// The request has ended without a response: its deadline has passed, its future was dropped, it was failed, or it
    /// ended with the shutdown. A second response to the same request is [`Unknown`](Self::Unknown).
    Late(R),
    /// No request had this id; or the request has had a response already; or it ended without one, and so did
    /// [`remembered_ids`](Builder::remembered_ids) others since.
    Unknown(R),
}

type Inner<K, R, S> = Shared<K, Responder<R>, S>;

/// The pending requests of a client: matches responses to them by id, and lets them expire.
///
/// [`request`](Self::request) returns a [`Future`], which needs no runtime; a thread can also
/// [block on it](request_purgatory::future::block_on). The code that reads responses passes them to
/// [`respond`](Self::respond).
///
/// ```
/// use request_purgatory::{WaitError, future::block_on};
/// use request_purgatory_tracker::{Requests, Responded};
/// use std::time::Duration;
///
/// let calls = Requests::<u64, String>::new("calls");
/// let answered = calls.request(1, Duration::from_secs(5))?;
/// let forgotten = calls.request(2, Duration::from_millis(5))?;
/// assert_eq!(calls.respond(&1, "pong".into()), Responded::Delivered);
/// assert_eq!(block_on(answered)?, "pong");
/// assert_eq!(block_on(forgotten), Err(WaitError::Expired));
/// // One response to each request is expected, in time or not. Any other is a fault of the server's.
/// assert_eq!(calls.respond(&2, "pong".into()), Responded::Late("pong".into()));
/// assert_eq!(calls.respond(&2, "pong".into()), Responded::Unknown("pong".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An id may be used again once its request has ended. If a counter makes the ids and wraps around, it may meet a
/// request that is still pending, and skips that id:
///
/// ```
/// use request_purgatory_tracker::{RejectReason, Requests, ResponseFuture};
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
///
/// fn request(calls: &Requests<u32, String>, next: &AtomicU32) -> Option<ResponseFuture<u32, String>> {
///     loop {
///         let id = next.fetch_add(1, Ordering::Relaxed);
///         match calls.request(id, Duration::from_secs(5)) {
///             Ok(pending) => return Some(pending),
///             Err(rejected) if rejected.reason() == RejectReason::Duplicate => {}
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
/// The deadline of a request is a moment of the clock, as that of a [value](crate::Tracker#when-a-value-has-expired): a
/// response after that moment is late, even if the thread that drives the timer has not come to the request yet. The
/// future is told when that thread has.
///
/// `Eq` and `Clone` of ids run under the lock of one map shard, and must not call the requests. A panic of `Hash`,
/// `Eq`, `Clone` or the clock goes to the caller, and nothing has changed. Panics of wakers are caught and counted.
///
/// By default each `Requests` starts a thread with its first timeout, and a second thread when a request expires. A
/// client with many connections gives all its `Requests` one
/// [`ReaperThread`](request_purgatory::threads::ReaperThread).
///
/// Cloning is cheap, and all clones are the same requests. When the last clone is dropped, pending requests end with
/// [`WaitError::ShutDown`].
pub struct Requests<K: Key, R: Send + 'static, S: KeyHasher = RandomState> {
    shared: Arc<Inner<K, R, S>>,
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Requests<K, R, S> {
    // `len`, `is_empty`, `stats`, `advance`, `next_deadline`, `is_shut_down`, `downgrade`: in `src/handle.rs`.

    /// Expects a response to request `id` within `timeout`, or until a [point in time](Deadline). Call it before you
    /// send the request: a response that arrives before this call is unknown. Dropping the [`ResponseFuture`] forgets
    /// the request.
    ///
    /// Reads the clock once, by [`Timer::soon`](request_purgatory::Timer::soon); twice if an expired request has this
    /// id. Takes the lock of the id's map shard and, within it, that of a timer shard.
    ///
    /// # Errors
    /// The id comes back in a [`Rejected`]: a request with this id is pending
    /// ([`Duplicate`](crate::RejectReason::Duplicate)), [`max_parked`](Builder::max_parked) is reached, the requests
    /// are shut down, or the system refused a thread.
    pub fn request(
        &self,
        id: K,
        timeout: impl Into<Deadline>,
    ) -> Result<ResponseFuture<K, R, S>, Rejected<K>> {
        let promise = Arc::new(Promise::new());
        let responder = Responder::of(&promise);
        match self
            .shared
            .track(id.clone(), responder, timeout.into(), false)
        {
            Ok(tracked) => Ok(ResponseFuture {
                promise: Some(promise),
                requests: Arc::downgrade(&self.shared),
                id,
                place: tracked.place,
            }),
            Err(rejected) => Err(Rejected::new(rejected.reason(), id)),
        }
    }

    /// Answers request `id` with `response`. Returns what has become of the response. The id may be given in a borrowed
    /// form: `str` for `String`, or a type with [`Equivalent`].
    ///
    /// Reads the clock once, by [`Timer::soon`](request_purgatory::Timer::soon); once more, exactly, if the request may
    /// have expired. Takes the lock of the id's map shard, and within it that of a timer shard only if it is free; if
    /// no such request is pending, that of the ended ones. Then wakes the future on this thread, with no lock held.
    pub fn respond<Q: Hash + Equivalent<K> + ?Sized>(&self, id: &Q, response: R) -> Responded<R> {
        match self.shared.complete(id, None) {
            Ok(entry) => {
                self.answer(entry.value, Ok(response));
                Responded::Delivered
            }
            Err(true) => Responded::Late(response),
            Err(false) => Responded::Unknown(response),
        }
    }

    /// Sets the answer of a future. A waker that responds to the next request does not nest.
    fn answer(&self, responder: Responder<R>, answer: Answer<R>) {
        run_unnested_on(&self.shared, move |shared| {
            shared.contained(|| responder.answer(answer));
        });
    }

    /// Ends every pending request with a response that `response` makes from its id, because the connection is lost for
    /// instance, and still accepts new requests. Returns how many requests this call ended.
    ///
    /// Every request that was pending when the call began has ended when it returns. A request that another thread
    /// makes meanwhile may end as well, so make the requests of the next connection after this call. A response of the
    /// server to an ended request is [late](Responded::Late). A request whose deadline has passed expires instead.
    ///
    /// `response` is called with no lock held, before the first request ends: it may call every method, and if it
    /// panics, no request has ended. Reads the clock once. Takes the lock of one map shard after another, and clones
    /// the ids of a shard under its lock; then, for each request, the lock of its map shard. When all have ended, wakes
    /// the futures on this thread, with no lock held.
    pub fn fail_all_with(&self, response: impl FnMut(&K) -> R) -> usize {
        self.fail_where(|_| true, response)
    }

    /// Ends every pending request whose id `is_wanted` picks, as [`fail_all_with`](Self::fail_all_with) ends all:
    /// because one of several servers is lost, for instance. Both closures may call every method; if one panics, no
    /// request has ended.
    pub fn fail_where(
        &self,
        mut is_wanted: impl FnMut(&K) -> bool,
        mut response: impl FnMut(&K) -> R,
    ) -> usize {
        let shared = &self.shared;
        let pending = shared.copies(|entry| (entry.key.clone(), entry.hash(), entry.token));
        let wanted = pending
            .into_iter()
            .filter_map(|(id, hash, token)| is_wanted(&id).then(|| (hash, token, response(&id))));
        // Call the closures for all requests before the first one ends, and end all before the first future is woken:
        // so a request that a woken task makes is not ended here.
        let wanted = wanted.collect::<Vec<_>>();
        let (mut failed, mut spare) = (Vec::new(), Vec::new());
        for (hash, token, response) in wanted {
            match shared.withdraw_live(hash, token) {
                Some(ended) => failed.push((ended.value, response)),
                // The request has ended meanwhile.
                None => spare.push(response),
            }
        }
        let count = failed.len();
        for (responder, response) in failed {
            self.answer(responder, Ok(response));
        }
        run_unnested(move || drop(spare));
        count
    }

    /// Lets the request `id` expire `timeout` from now, or at a [point in time](Deadline), instead: for instance, the
    /// server has said that it is still at work. `false` if no such request is pending. Locks, and reads the clock, as
    /// [`Tracker::reschedule`] does.
    ///
    /// [`Tracker::reschedule`]: crate::Tracker::reschedule
    #[must_use = "a request whose deadline has passed cannot be rescheduled, and expires"]
    pub fn reschedule<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        id: &Q,
        timeout: impl Into<Deadline>,
    ) -> bool {
        self.shared.reschedule(id, None, timeout.into())
    }

    /// The number of responses so far that were [late](Responded::Late).
    pub fn late(&self) -> u64 {
        self.shared.values.late()
    }

    /// The number of responses so far whose id was [unknown](Responded::Unknown).
    pub fn unknown(&self) -> u64 {
        self.shared.values.unknown()
    }

    /// From now on rejects requests, and ends pending ones with [`WaitError::ShutDown`]: their futures are woken on
    /// this thread. Then joins the threads; see [`Tracker::shutdown`](crate::Tracker::shutdown).
    pub fn shutdown(&self) {
        for entry in self.shared.close() {
            self.answer(entry.value, Err(WaitError::ShutDown));
        }
        self.shared.timer.shutdown();
    }
}

handle!(
    [K: Key, R: Send + 'static, S: KeyHasher] Requests<K, R, S>, "Requests", Inner<K, R, S>,
    "requests that are pending"
);

/// The own settings are the hasher, and how many ended requests are remembered.
impl<K: Key, R: Send + 'static, S: KeyHasher> Built for Requests<K, R, S> {
    type Own = (S, usize);
}

/// A [`Future`] of the response to one request, or of the reason why there is none.
///
/// The future ends without a response with [`WaitError::Expired`] if the deadline passes, and with
/// [`WaitError::ShutDown`] if the requests are shut down or dropped.
///
/// Any executor can poll the future. Dropping it forgets the request, and a later response is late. The future does not
/// keep the [`Requests`] alive.
#[must_use = "a request that is dropped is forgotten"]
pub struct ResponseFuture<K: Key, R: Send + 'static, S: KeyHasher = RandomState> {
    /// `None` once the answer was handed out.
    promise: Option<Arc<Promise<Answer<R>>>>,
    requests: Weak<Inner<K, R, S>>,
    id: K,
    place: Expiring,
}

impl<K: Key, R: Send + 'static, S: KeyHasher> ResponseFuture<K, R, S> {
    /// The id of the request.
    pub fn id(&self) -> &K {
        &self.id
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Future for ResponseFuture<K, R, S> {
    type Output = Answer<R>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<R>> {
        let this = self.get_mut();
        // After the answer was handed out, every poll is pending.
        let Some(promise) = &this.promise else {
            return Poll::Pending;
        };
        let poll = promise.poll(cx);
        if poll.is_ready() {
            this.promise = None;
        }
        poll
    }
}

/// No field is ever pinned.
impl<K: Key, R: Send + 'static, S: KeyHasher> Unpin for ResponseFuture<K, R, S> {}

impl<K: Key, R: Send + 'static, S: KeyHasher> Drop for ResponseFuture<K, R, S> {
    fn drop(&mut self) {
        let Some(promise) = self.promise.take() else {
            return;
        };
        // Close first, so that the end of the request wakes no task.
        let unreceived = promise.close();
        let requests = self.requests.upgrade();
        let ended = requests.and_then(|requests| requests.withdraw(self.place));
        // A response that was not received, or the waker, may own the next future: that future is dropped after this
        // one, not inside it.
        run_unnested(move || drop((unreceived, ended)));
    }
}

impl<K: Key + fmt::Debug, R: Send + 'static, S: KeyHasher> fmt::Debug for ResponseFuture<K, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ResponseFuture");
        shown.field("id", &self.id);
        let answered = self.promise.is_none();
        shown.field("answered", &answered).finish_non_exhaustive()
    }
}

impl<K: Key, R: Send + 'static> Requests<K, R> {
    /// Requests with a tick of 1 ms, a reaper thread, and a completion thread on which futures of expired requests are
    /// woken. The threads start when they are first needed.
    pub fn new(name: impl Into<String>) -> Self {
        sound(Self::builder(name).build())
    }

    /// Begins to build requests with other choices: clock, reaper, dispatch, bounds, hasher, number of remembered ids.
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        Builder::new(name, (RandomState::default(), 8_192))
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Builder<Requests<K, R, S>> {
    /// The hasher of ids. Default: [`RandomState`], a fast hash with a random seed.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Requests<K, R, H>> {
        Builder {
            settings: self.settings,
            own: (hasher, self.own.1),
        }
    }

    /// The number of requests without a response that are remembered, the most recent ones. A response to a remembered
    /// request is [`Late`](Responded::Late) and not [`Unknown`](Responded::Unknown). Choose as many as may expire while
    /// one response is under way. Default: 8,192.
    ///
    /// Only the hashes of the ids are stored, about 40 bytes for each, however large the ids are. So an id whose hash
    /// equals that of an ended request is taken for that request: one in 2^64 with the default hasher.
    pub fn remembered_ids(mut self, count: usize) -> Self {
        self.own.1 = count;
        self
    }

    /// Builds the requests.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread that is to [start at once](Self::threads_at_once).
    ///
    /// # Panics
    /// A panic of the clock is passed on.
    pub fn build(self) -> Result<Requests<K, R, S>, BuildError> {
        let (hasher, remembered) = self.own;
        let values = Values::new(hasher, 1, Some(Remembered::new(remembered)));
        // Called by the timer, which catches and counts a panic of the waker.
        let on_expiry = |_, responder: Responder<R>, _| responder.answer(Err(WaitError::Expired));
        Ok(Requests {
            shared: Shared::new(self.settings, values, on_expiry)?,
        })
    }
}
