//! Calls that wait for their responses.

use crate::builder::{Builder, Built, sound};
use crate::error::{BuildError, Rejected};
use crate::handle::{Handle, WeakRef, handle};
use crate::panics::{Panics, resume_first, try_drop};
use crate::promise::{Answer, Responder};
use crate::remembered::Remembered;
use crate::shared::Shared;
use crate::values::{Entry, Expiring, Reading, Values};
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

/// What has become of a response that was passed to [`Requests::respond`].
///
/// [`Late`](Self::Late) and [`Unknown`](Self::Unknown) return the response to the caller, which drops it. If the
/// response's destructor calls `respond`, and that call returns another response with such a destructor, the
/// destructors nest: a long chain overflows the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a response to an id that is unknown may mean that the connection is broken"]
pub enum Responded<R> {
    /// A pending request got the response. If its future is dropped at the same time, the response is dropped as well.
    Delivered,
    /// The request had ended without a response: its deadline had passed, its future had been dropped, or the request
    /// had been ended by [`fail_where`](Requests::fail_where), by `fail_all_with`, or by the shutdown. A second
    /// response to the same request is [`Unknown`](Self::Unknown).
    Late(R),
    /// The response belongs to no request, for one of these reasons:
    ///
    /// * No request had this id.
    /// * The request had already got a response.
    /// * The request had ended without a response, but is not [remembered](Builder::remembered_ids) any more, because
    ///   too many other requests have ended without a response since.
    Unknown(R),
}

type Inner<K, R, S> = Shared<K, Responder<R>, S>;

/// The pending requests of a client: matches each response to its request by id, and lets requests expire.
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
/// An id may be used again when its request has ended. If the ids come from a counter that wraps around, the counter
/// may reach the id of a request that is still pending. Then skip this id:
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
/// The deadline of a request is a point of the clock, as for a [value](crate::Tracker#when-a-value-has-expired) of a
/// tracker: a response that comes after the deadline is late. The future of an expired request is woken a little later
/// than the deadline, when the thread that drives the timer has fired the request's timer.
///
/// `Eq` and `Clone` of ids run under the lock of one map shard. They must not call a method of these requests: in a
/// debug build such a call panics, in a release build it may hang. A panic of `Hash`, `Eq`, `Clone` or the clock is
/// passed on to the caller, and the call has changed nothing. Panics of wakers are caught and counted. So are panics of
/// the destructors of ids and responses in a call of these requests. The drop of a [`ResponseFuture`] passes on the
/// first panic of the destructors that it runs.
///
/// By default each `Requests` starts a thread at its first request with a timeout, and a second thread when a request
/// expires. In a client with many connections, all `Requests` can share one
/// [`ReaperThread`](request_purgatory::threads::ReaperThread).
///
/// Cloning is cheap, and all clones are the same requests. When the last clone is dropped, pending requests end with
/// [`WaitError::ShutDown`].
pub struct Requests<K: Key, R: Send + 'static, S: KeyHasher = RandomState> {
    shared: Arc<Inner<K, R, S>>,
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Requests<K, R, S> {
    // More methods are in `src/handle.rs`, because `Tracker` and `Requests` share them: `len`, `stats`, `advance`,
    // `point` and others.

    /// Registers request `id`, to which a response is expected within `timeout` or before a [point in time](Deadline).
    /// Call this method before you send the request: a response that arrives before this call is unknown. Drop the
    /// [`ResponseFuture`] to end the request without a response.
    ///
    /// Reads the clock once, by [`Timer::soon`](request_purgatory::Timer::soon), or twice if the id belongs to a
    /// request that seems to have expired. Takes the lock of the id's map shard and, inside it, the lock of a timer
    /// shard.
    ///
    /// # Errors
    /// The id comes back in a [`Rejected`] if a request with this id is pending
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
                id,
                request: Pending {
                    promise: Some(promise),
                    requests: Arc::downgrade(&self.shared),
                    place: tracked.place,
                },
            }),
            Err(rejected) => Err(Rejected::new(rejected.reason(), id)),
        }
    }

    /// Answers request `id` with `response`. Returns what has become of the response. The id may be given in a borrowed
    /// form: `str` for `String`, or a type with [`Equivalent`].
    ///
    /// Reads the clock once, by [`Timer::soon`](request_purgatory::Timer::soon), whose result may be a moment ahead. If
    /// the request has expired by that reading, reads the clock again, by `now`, which is exact. Takes the lock of the
    /// id's map shard, and inside it another lock. For a pending request, this is the lock of a timer shard, for which
    /// the call does not wait. Otherwise it is the lock of the remembered ids (the ids of requests that ended without a
    /// response). Then wakes the future's task on this thread, with no lock held. If the waker calls this method for
    /// another request, that request's task is woken only after the waker has returned. So a chain of responses needs
    /// no deep stack.
    pub fn respond<Q: Hash + Equivalent<K> + ?Sized>(&self, id: &Q, response: R) -> Responded<R> {
        match self.shared.complete(id, None) {
            Ok(entry) => {
                run_unnested_on(&self.shared, move |shared| {
                    answer(&shared.values.panics, entry, Ok(response));
                });
                Responded::Delivered
            }
            Err(true) => Responded::Late(response),
            Err(false) => Responded::Unknown(response),
        }
    }

    /// Ends every pending request, for example because the connection is lost. `response` is called with the id of each
    /// request, and returns the response with which this request ends. New requests are still accepted. Returns how
    /// many requests this call has ended.
    ///
    /// * Every request that was pending when the call began has ended when the call returns.
    /// * A request that another thread makes during the call may end as well. So make the requests of the next
    ///   connection after this call.
    /// * If the server responds to an ended request, the response is [late](Responded::Late), as long as the request is
    ///   [remembered](Builder::remembered_ids).
    /// * A request whose deadline has passed by the second reading is not ended by this call, but expires.
    ///
    /// `response` is called with no lock held, so it may call every method. All calls of `response` come before the end
    /// of the first request: if one of them panics, no request has ended.
    ///
    /// Reads the clock when it begins, and again when all calls of `response` have returned. Takes the lock of one map
    /// shard after another, and clones the ids of a shard under its lock. Then takes, for each request, the lock of the
    /// request's map shard. When all requests have ended, wakes their futures on this thread, with no lock held. If a
    /// waker drops another [`ResponseFuture`], the destructors of that future's response and waker run when all wakers
    /// have returned. If such a destructor panics, this call passes the panic on.
    pub fn fail_all_with(&self, response: impl FnMut(&K) -> R) -> usize {
        self.fail_where(|_| true, response)
    }

    /// Ends every pending request for whose id `is_wanted` returns `true`, for example because one of several servers
    /// is lost. Apart from that, works as [`fail_all_with`](Self::fail_all_with). Both closures may call every method;
    /// if one of them panics, no request has ended.
    pub fn fail_where(
        &self,
        mut is_wanted: impl FnMut(&K) -> bool,
        mut response: impl FnMut(&K) -> R,
    ) -> usize {
        // This call takes three steps. First it calls the closures, which tell the *wanted* requests: those for which
        // `is_wanted` returns `true`. Then it ends the wanted requests. Then it wakes their futures. A woken task may
        // make a new request. This request is not a wanted one, so the call does not end it.
        let shared = &self.shared;
        let mut pending = Vec::new();
        shared.each_live(|entry| {
            let place = (entry.hash(), entry.token);
            pending.push((entry.key.clone(), place));
        });
        let mut wanted = Vec::new();
        for (id, place) in &pending {
            if is_wanted(id) {
                wanted.push((*place, response(id)));
            }
        }
        shared.values.end_together(pending.len());
        shared.values.panics.discard(pending);
        // Read the clock, which is user code, before the first request ends.
        let reading = Reading::exact(&shared.timer);
        let mut answers = Vec::with_capacity(wanted.len());
        for ((hash, token), response) in wanted {
            // `None` if the request has ended since this call copied its id. No future needs the response then.
            answers.push((shared.withdraw_live(reading, hash, token), response));
        }
        let count = answers.iter().filter(|(ended, _)| ended.is_some()).count();
        // Give all answers inside one call of `run_unnested_on`. A waker may call `run_unnested`, for example by
        // dropping a `ResponseFuture`. Such calls are queued on this thread, and run after the last answer. If one
        // panics, no request is left without its answer.
        run_unnested_on(shared, move |shared| {
            let panics = &shared.values.panics;
            for (ended, response) in answers {
                match ended {
                    Some(ended) => answer(panics, ended, Ok(response)),
                    None => panics.discard(response),
                }
            }
        });
        count
    }

    /// Moves the deadline of request `id` to `timeout` from now, or to a [point in time](Deadline), for example because
    /// the server has said that it is still at work. Returns `false` if no such request is pending, or if this would be
    /// the first deadline of these requests and the system refuses a thread for it. Reads the clock and takes locks as
    /// [`Tracker::reschedule`] does.
    ///
    /// [`Tracker::reschedule`]: crate::Tracker::reschedule
    #[must_use = "a request whose deadline has passed cannot be rescheduled, and expires"]
    pub fn reschedule<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        id: &Q,
        timeout: impl Into<Deadline>,
    ) -> bool {
        let rescheduled = self.shared.reschedule(id, None, timeout.into(), |_| ());
        rescheduled.is_ok()
    }

    /// The number of responses so far that were [late](Responded::Late).
    pub fn late(&self) -> u64 {
        self.shared.values.late()
    }

    /// The number of responses so far whose id was [unknown](Responded::Unknown).
    pub fn unknown(&self) -> u64 {
        self.shared.values.unknown()
    }

    /// Rejects requests from now on. Ends the pending requests with [`WaitError::ShutDown`], and wakes their futures on
    /// this thread. Then joins the threads, as [`Tracker::shutdown`](crate::Tracker::shutdown) does. Passes on no panic
    /// of your code: catches and counts it.
    pub fn shutdown(&self) {
        let remains = self.shared.close();
        let answers = move |shared: &Arc<Inner<K, R, S>>| {
            for entry in remains {
                answer(&shared.values.panics, entry, Err(WaitError::ShutDown));
            }
        };
        // Each answer calls a waker, which may drop a `ResponseFuture`, which calls `run_unnested`. Inside another call
        // of this kind, `run_unnested` only queues its closure. The outermost call, here `run_unnested_on`, runs the
        // queued closures after the last answer, and passes on their first panic. So catch it here.
        let panics = &self.shared.values.panics;
        panics.contain(|| run_unnested_on(&self.shared, answers));
        self.shared.timer.shutdown();
    }
}

/// Sets the answer of a request that has ended, which wakes the task of its future. Then drops the id of the request.
/// Both steps run user code, so the panic of each step is caught and counted on its own.
fn answer<K, R>(panics: &Panics, ended: Entry<K, Responder<R>>, answer: Answer<R>) {
    let (id, responder) = (ended.key, ended.value);
    panics.contain(|| responder.answer(answer));
    panics.discard(id);
}

handle!(
    [K: Key, R: Send + 'static, S: KeyHasher] Requests<K, R, S>, "Requests", Inner<K, R, S>,
    "requests that are pending"
);

/// The requests' own settings are the hasher, and the number of remembered requests, which is `None` unless the user
/// has chosen it.
impl<K: Key, R: Send + 'static, S: KeyHasher> Built for Requests<K, R, S> {
    type Own = (S, Option<usize>);
}

/// A [`Future`] of the response to one request, or of the reason why there is no response.
///
/// The future resolves to [`WaitError::Expired`] if the deadline passes without a response, and to
/// [`WaitError::ShutDown`] if the requests are shut down or dropped.
///
/// Any executor can poll the future. Dropping the future ends the request, and a later response is late. The future
/// does not keep the [`Requests`] alive.
#[must_use = "a request that is dropped is forgotten"]
pub struct ResponseFuture<K: Key, R: Send + 'static, S: KeyHasher = RandomState> {
    /// Declared before `request`, so that it is dropped first. The destructor of `request` may panic. If the id were
    /// dropped after that, its destructor would run while the thread unwinds, and a second panic there would abort the
    /// process.
    id: K,
    request: Pending<K, R, S>,
}

/// The part of a [`ResponseFuture`] that ends the request when it is dropped, unless a poll has returned the answer.
struct Pending<K: Key, R: Send + 'static, S: KeyHasher> {
    /// `None` once a poll has returned the answer.
    promise: Option<Arc<Promise<Answer<R>>>>,
    requests: Weak<Inner<K, R, S>>,
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
        let this = &mut self.get_mut().request;
        // After the answer has been returned, every further poll is pending.
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

/// No field is ever pinned, so the future may move between two polls.
impl<K: Key, R: Send + 'static, S: KeyHasher> Unpin for ResponseFuture<K, R, S> {}

impl<K: Key, R: Send + 'static, S: KeyHasher> Drop for Pending<K, R, S> {
    fn drop(&mut self) {
        let Some(promise) = self.promise.take() else {
            return;
        };
        // Close the promise first. From then on the promise takes no answer, so the end of the request wakes no task.
        let (unreceived, waker) = promise.close();
        let requests = self.requests.upgrade();
        let ended = requests.and_then(|requests| requests.withdraw(self.place));
        // An unreceived response, or the waker, may own another `ResponseFuture`. That future is then dropped inside
        // the closure below. There, an inner `run_unnested` puts off its own closure until the outer closure has
        // returned. So a long chain of futures needs no deep stack.
        run_unnested(move || {
            // The promise is closed, so the drop of the responder in `ended` wakes no task.
            resume_first([try_drop(unreceived), try_drop(waker), try_drop(ended)]);
        });
    }
}

impl<K: Key + fmt::Debug, R: Send + 'static, S: KeyHasher> fmt::Debug for ResponseFuture<K, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ResponseFuture");
        shown.field("id", &self.id);
        let answered = self.request.promise.is_none();
        shown.field("answered", &answered).finish_non_exhaustive()
    }
}

impl<K: Key, R: Send + 'static> Requests<K, R> {
    /// Requests with a tick of 1 ms, a reaper thread, and a completion thread on which futures of expired requests are
    /// woken. The threads start when they are first needed.
    pub fn new(name: impl Into<String>) -> Self {
        sound(Self::builder(name).build())
    }

    /// Begins to build requests with other settings: clock, reaper, dispatch, bounds, hasher, number of remembered ids.
    /// Each setting is a method of [`Builder`].
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        Builder::new(name, (RandomState::default(), None))
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

    /// The number of requests that are *remembered*: those that have most recently ended without a response. A response
    /// to a remembered request is [`Late`](Responded::Late) and not [`Unknown`](Responded::Unknown). Estimate how many
    /// requests may end while one response is on its way, and choose that number.
    ///
    /// Default: 8,192. If a call of [`fail_all_with`](Requests::fail_all_with) or [`fail_where`](Requests::fail_where)
    /// finds more pending requests than that, the default rises to their number.
    ///
    /// Only the hashes of the ids are stored: about 40 bytes for each id, however large the id is. If an unknown id has
    /// the same hash as the id of a remembered request, a response with the unknown id counts as late. With the default
    /// hasher, two ids have the same hash with a probability of one in 2^64.
    pub fn remembered_ids(mut self, count: usize) -> Self {
        self.own.1 = Some(count);
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
        // The timer, which calls this closure, catches and counts one panic. But the waker and the destructor of the id
        // may both panic, so `answer` catches each panic separately.
        let on_expiry = |values: &Values<K, Responder<R>, S>, expired| {
            answer(&values.panics, expired, Err(WaitError::Expired));
        };
        Ok(Requests {
            shared: Shared::new(self.settings, values, on_expiry)?,
        })
    }
}
