//! Calls that wait for their responses: a tracker of promises.

mod pending;

use crate::address::Address;
use crate::engine::Engine;
use crate::engine::settings::{Builder, sound};
use crate::engine::shared_handle::{SharedHandle, WeakRef, shared_methods, shared_type};
use crate::engine::shutdown::shut_down;
use crate::error::{BuildError, RejectReason, Rejected};
use crate::future::WaitError;
use crate::future::reply::end_awaited;
use crate::hash::{Key, KeyHasher, RandomState};
use crate::promise::Promise;
use crate::scheme::HierarchicalWheel;
use crate::stats::{Ending, Statistic};
use crate::sync::Arc;
use crate::timer;
use crate::tracker::entries::Values;
use crate::trampoline::{Trampoline, drop_user_value};
use equivalent::Equivalent;
use pending::{Failed, Pending, Responder};
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// What has become of a response that was given to [`Requests::respond`].
///
/// A response that comes back is the caller's to drop. If its destructor calls `respond`, and gets a response back in
/// turn, the destructors nest on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a response to an id that is unknown may mean that the connection is broken"]
pub enum Responded<R> {
    /// A request was waiting for it, and has it. (Or had it: its future may be dropped at this moment.)
    Delivered,
    /// The request has ended without a response: it has expired, was dropped, was failed or ended with the shutdown. (Or
    /// another thread is making a request with this id at this moment.) A second response to it is unknown, unless the
    /// first came while it was ending.
    Late(R),
    /// No request had this id; or its request has had a response; or its request ended without one, and
    /// [`remembered_ids`](crate::purgatory::Builder::remembered_ids) others have ended so since.
    Unknown(R),
}

/// The pending requests of a client: matches responses to them by id, and lets them expire.
///
/// [`request`](Self::request) returns a [`Future`], which needs no runtime; a thread can also
/// [block on it](crate::future::block_on). The code that reads responses passes them to
/// [`respond`](Self::respond).
///
/// ```
/// use request_purgatory::future::block_on;
/// use request_purgatory::tracker::Responded;
/// use request_purgatory::{Requests, WaitError};
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
/// Ids may be used again once their request has ended. A counter makes them; where it wraps around, it may meet a
/// request that is still pending, and goes on:
///
/// ```
/// use request_purgatory::tracker::ResponseFuture;
/// use request_purgatory::{purgatory::RejectReason, Requests};
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
/// By default each `Requests` starts a thread with its first timeout, and another when one expires. A client with many
/// connections gives all of theirs one [`ReaperThread`](crate::threads::ReaperThread).
///
/// Cloning is cheap, and clones are the same requests. When the last one is dropped, pending requests end with
/// [`WaitError::ShutDown`].
pub struct Requests<K: Key, R: Send + 'static, S: KeyHasher = RandomState> {
    shared: SharedHandle<Inner<K, R, S>>,
}

type Inner<K, R, S> = timer::inner::Inner<u64, HierarchicalWheel, Pending<K, R, S>, Failed<K, R>>;

impl<K: Key, R: Send + 'static, S: KeyHasher> Requests<K, R, S> {
    // `is_empty`, `stats`, `advance`, `next_deadline`, `is_shut_down`, `downgrade`: in `src/engine/shared_handle.rs`.
    shared_methods!("requests that are pending");

    /// Expects a response to request `id` within `timeout`. Call it before you send the request: a response that
    /// arrives before this call is unknown. Dropping the [`ResponseFuture`] forgets the request.
    ///
    /// Takes the lock of the id's map shard and, within it, that of a timer shard. Reads the clock once.
    ///
    /// # Errors
    /// The id comes back in a [`Rejected`]: a request with this id is pending ([`Duplicate`](RejectReason::Duplicate)),
    /// [`max_parked`](Builder::max_parked) is reached, the requests are shut down, `Hash`, `Eq` or `Clone` of an id or
    /// the clock panicked, or the system refused a thread.
    pub fn request(
        &self,
        id: K,
        timeout: Duration,
    ) -> Result<ResponseFuture<K, R, S>, Rejected<K>> {
        let promise = Arc::new(Promise::new());
        let engine = &self.shared.inner.engine;
        let Ok(copy) = engine.guarded(|| id.clone()) else {
            engine.count(Statistic::Rejected, 1);
            return Err(Rejected::new(RejectReason::Panicked, id));
        };
        let responder = Responder::new(promise.clone(), WaitError::ShutDown);
        match self.values().track(copy, responder, timeout, false) {
            Ok((entry, _)) => Ok(ResponseFuture {
                promise,
                requests: self.downgrade(),
                id,
                address: entry.address,
                answered: false,
            }),
            Err(rejected) => Err(rejected.map(|_| id)),
        }
    }

    /// Answers request `id` with `response`, and says what has become of that. The id may be given in a borrowed form:
    /// `str` for `String`, or a type with [`Equivalent`].
    ///
    /// Takes the lock of the id's map shard, and then that of a timer shard only if it is free. Wakes the future on
    /// this thread, with no lock held; if that panics, so does this call. If no such request is pending, takes the lock
    /// of the ids that have ended, and compares ids under it.
    pub fn respond<Q: Hash + Equivalent<K> + ?Sized>(&self, id: &Q, response: R) -> Responded<R> {
        let trampoline = Trampoline::enter();
        let Inner { engine, store, .. } = &*self.shared.inner;
        match self.values().complete(id, None) {
            Some(responder) => {
                // A waker that responds to the next request does not nest.
                match trampoline.is_outermost() {
                    true => responder.answer(Ok(response)),
                    false => trampoline.run(Box::new(move || responder.answer(Ok(response)))),
                }
                Responded::Delivered
            }
            None => {
                let (is_late, ended) = store.answer_ended(id);
                // The destructor of an id is the user's, and its panic must not cost the response.
                let _ = engine.guarded(|| drop_user_value(ended));
                engine.leave(trampoline);
                if is_late {
                    store.late.add(1);
                    Responded::Late(response)
                } else {
                    store.unknown.add(1);
                    Responded::Unknown(response)
                }
            }
        }
    }

    /// Ends every pending request with the response that `response` makes of its id, and takes new requests as before:
    /// the connection is lost, say. Returns how many requests this call ended.
    ///
    /// Every request that was pending when the call began has ended when it returns. A request that another thread
    /// makes meanwhile may end as well, so make the requests of the next connection after this call. What the server
    /// responds to an ended request is [late](Responded::Late).
    ///
    /// Takes the shared lock of one map shard after the other; then, for each request, the lock of the ids that have
    /// ended, that of the id's map shard, and that of a timer shard only if it is free. When all have ended, calls
    /// `response` and wakes the futures on this thread, with no lock held. Their panics are caught and counted; if
    /// `response` panics, that request ends with [`WaitError::Panicked`].
    pub fn fail_all_with(&self, response: impl FnMut(&K) -> R) -> usize {
        self.fail_where(|_| true, response)
    }

    /// Ends every pending request whose id `is_wanted` picks, as [`fail_all_with`](Self::fail_all_with) ends them all:
    /// one of several servers is lost.
    ///
    /// `is_wanted` is asked about all ids of a map shard under the shared lock of that: let it be short, and not call
    /// the requests. If it panics, no request has ended.
    pub fn fail_where(
        &self,
        mut is_wanted: impl FnMut(&K) -> bool,
        mut response: impl FnMut(&K) -> R,
    ) -> usize {
        let _trampoline = Trampoline::enter();
        let inner = &self.shared.inner;
        let is_wanted = |id: &K, _: &Responder<R>| is_wanted(id);
        let ids = self.values().ids_where(is_wanted);
        // All requests end before the first future is woken, so a request that its task makes is not ended here.
        let fail = |address| inner.withdraw(address, Ending::Cancelled);
        let failed = ids.into_iter().filter_map(|id| fail(id.address));
        let failed = failed.collect::<Vec<_>>();
        let count = failed.len();
        for failed in failed {
            let tell = || failed.answer(|id| Ok(response(id)));
            let _ = inner.engine.guarded(tell);
        }
        count
    }

    /// Lets the request `id` expire `timeout` from now instead: for instance, the server has said that it is still at
    /// work. `false` if no such request is pending. Locks, and reads the clock, as [`Tracker::reschedule`] does.
    ///
    /// [`Tracker::reschedule`]: crate::Tracker::reschedule
    pub fn reschedule<Q: Hash + Equivalent<K> + ?Sized>(&self, id: &Q, timeout: Duration) -> bool {
        self.values().reschedule(id, None, timeout)
    }

    /// The number of responses so far that were [late](Responded::Late).
    pub fn late(&self) -> u64 {
        self.shared.inner.store.late.read()
    }

    /// The number of responses so far whose id was [unknown](Responded::Unknown).
    pub fn unknown(&self) -> u64 {
        self.shared.inner.store.unknown.read()
    }

    /// Rejects requests from now on, and ends pending ones with [`WaitError::ShutDown`]: their futures are woken on
    /// this thread. Then joins the threads; see [`Tracker::shutdown`](crate::Tracker::shutdown).
    pub fn shutdown(&self) {
        shut_down(&self.shared.inner);
    }

    fn values(&self) -> Values<'_, K, Responder<R>, S> {
        Values {
            entries: &self.shared.inner.store.entries,
            timers: &self.shared.inner.engine,
        }
    }
}

// Its own settings are the hasher and how many ids are remembered.
shared_type!([K: Key, R: Send + 'static, S: KeyHasher] Requests, Requests<K, R, S>, Inner<K, R, S>, (S, usize));

/// A [`Future`] of the response to one request, or of the reason why there is none.
///
/// It ends without one with [`WaitError::Expired`] if the timeout passes, with [`WaitError::ShutDown`] if the requests
/// are shut down or dropped, and with [`WaitError::Panicked`] if the response of [`fail_where`](Requests::fail_where)
/// panics.
///
/// Any executor can poll it. Dropping it forgets the request, and a response is then late. It does not keep the
/// [`Requests`] alive.
#[must_use = "a request that is dropped is forgotten"]
pub struct ResponseFuture<K: Key, R: Send + 'static, S: KeyHasher = RandomState> {
    promise: Arc<Promise<Result<R, WaitError>>>,
    requests: WeakRef<Requests<K, R, S>>,
    id: K,
    address: Address,
    answered: bool,
}

impl<K: Key, R: Send + 'static, S: KeyHasher> ResponseFuture<K, R, S> {
    /// The id of the request.
    pub fn id(&self) -> &K {
        &self.id
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Future for ResponseFuture<K, R, S> {
    type Output = Result<R, WaitError>;

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
        if !self.answered {
            end_awaited(&*self.promise, || {
                let _trampoline = Trampoline::enter();
                let requests = self.requests.upgrade()?;
                let inner = &requests.shared.inner;
                let withdrawn = inner.withdraw(self.address, Ending::Cancelled)?;
                withdrawn.answer(|_| Err(WaitError::Cancelled));
                Some(())
            });
        }
    }
}

debug_fields!(
    [K: Key + std::fmt::Debug, R: Send + 'static, S: KeyHasher] ResponseFuture<K, R, S>, "ResponseFuture",
    |it| id: it.id, answered: it.answered
);

impl<K: Key, R: Send + 'static> Requests<K, R> {
    /// With a tick of 1 ms, a reaper thread and a completion thread, on which futures of requests that expire are woken.
    /// The threads start when they are first needed.
    pub fn new(name: impl Into<String>) -> Self {
        sound(Self::builder(name).build())
    }

    /// Begins to build them with other choices.
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        Builder::new(name, (RandomState::default(), 8_192))
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Builder<Requests<K, R, S>> {
    /// How ids are hashed. Default: [`RandomState`], a fast hash with a random seed.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Requests<K, R, H>> {
        Builder {
            settings: self.settings,
            own: (hasher, self.own.1),
        }
    }

    /// How many ids of requests that ended without a response are remembered, the most recent ones, so that a response
    /// that comes for one of them is [`Late`](super::Responded::Late) and not [`Unknown`](super::Responded::Unknown).
    /// Let it be as many as may expire while one response is on its way. Each takes about 100 bytes beside the id,
    /// once it has ended. Default: 8,192.
    pub fn remembered_ids(mut self, count: usize) -> Self {
        self.own.1 = count;
        self
    }

    /// Builds them.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread that is to [start at once](Self::threads_at_once).
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(self) -> Result<Requests<K, R, S>, BuildError> {
        let (hasher, remembered) = self.own;
        let pending = Pending::new(hasher, remembered);
        let on_end = |failed: Failed<K, R>, ending| {
            failed.answer(|_| match ending {
                Ending::Expired => Err(WaitError::Expired),
                _ => Err(WaitError::ShutDown),
            });
        };
        let inner = Inner::new(Engine::new(self.settings)?, pending, on_end);
        Ok(Requests {
            shared: SharedHandle::start(inner),
        })
    }
}
