//! W13: a call and its response, matched by id, with `pending` others waiting for theirs.
//!
//! A life makes a call, polls its future once as an executor would, and gets the response to the oldest call. On one
//! thread, that thread also responds. On two, the other one responds, as the thread that reads a connection does: it
//! follows the caller at a distance of `pending`, and the caller waits where an eighth more are pending.
//!
//! Each call has a timeout of 30 s. `may_waiter` is an exception: its timeout begins when a thread or a coroutine
//! blocks, which none does here, as the response is always there before.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::utils::CachePadded;
use dashmap::DashMap;
use may_waiter::{MapWaiterOwned, WaiterMap};
use pending_requests::{PendingRequests, ResponseWaiter};
use request_purgatory::future::block_on;
use request_purgatory_tracker::{Requests, Responded, ResponseFuture};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::{Timeout, timeout};

use super::{Case, Contender, Workload, contenders};
use crate::candidate::Candidate;
use crate::candidates::Library;
use crate::options::Options;
use crate::outcome::{Metric, Values};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Steps of one thread between two looks at what the other has done.
const BURST: u64 = 16;

/// Looks before the core is offered to the other thread.
const SPINS: usize = 100;

pub(crate) struct W13 {
    threads: usize,
    pending: u64,
    lives: u64,
}

/// Calls that wait for their responses.
trait Calls: Sync {
    const NAME: &'static str;

    /// On one thread only, where it is made: a future that has been polled once, say.
    type Call;

    fn new() -> Self;

    fn call(&self, id: u64, timeout: Duration) -> Self::Call;

    /// Whether a call waited for it.
    fn respond(&self, id: u64, response: u64) -> bool;

    /// The response, which is there.
    fn response(call: Self::Call) -> u64;

    /// Waits for the response, in vain: the call expires.
    fn expire(&self, call: Self::Call) -> bool;
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a call's future for the first time.
fn begun<F: Future + Unpin>(mut call: F) -> F {
    assert!(poll(&mut call).is_pending());
    call
}

/// The value of a future that is ready.
fn ready<F: Future + Unpin>(mut call: F) -> F::Output {
    match poll(&mut call) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("its response has been there before"),
    }
}

impl Calls for Requests<u64, u64> {
    const NAME: &'static str = Library::NAME;

    type Call = ResponseFuture<u64, u64>;

    fn new() -> Self {
        Self::new("compare")
    }

    #[inline(never)]
    fn call(&self, id: u64, timeout: Duration) -> Self::Call {
        begun(self.request(id, timeout).expect("a new id"))
    }

    #[inline(never)]
    fn respond(&self, id: u64, response: u64) -> bool {
        self.respond(&id, response) == Responded::Delivered
    }

    #[inline(never)]
    fn response(call: Self::Call) -> u64 {
        ready(call).expect("a response")
    }

    fn expire(&self, call: Self::Call) -> bool {
        block_on(call).is_err()
    }
}

impl Calls for PendingRequests<u64, u64> {
    const NAME: &'static str = "pending_requests";

    type Call = ResponseWaiter<u64, u64>;

    fn new() -> Self {
        Self::new()
    }

    #[inline(never)]
    fn call(&self, id: u64, timeout: Duration) -> Self::Call {
        let call = self.prepare_response_with_timeout(id, timeout);
        begun(call.expect("a new id"))
    }

    #[inline(never)]
    fn respond(&self, id: u64, response: u64) -> bool {
        self.handle_response(id, response).is_ok()
    }

    #[inline(never)]
    fn response(call: Self::Call) -> u64 {
        ready(call).expect("a response")
    }

    fn expire(&self, call: Self::Call) -> bool {
        block_on(call).is_err() && self.is_empty()
    }
}

/// What one writes in an hour.
type Senders = DashMap<u64, oneshot::Sender<u64>, foldhash::fast::RandomState>;

impl Calls for Senders {
    const NAME: &'static str = "dash_map_oneshot";

    /// With its id, under which what has expired is removed.
    type Call = (u64, Pin<Box<Timeout<oneshot::Receiver<u64>>>>);

    fn new() -> Self {
        Self::default()
    }

    #[inline(never)]
    fn call(&self, id: u64, limit: Duration) -> Self::Call {
        let (sender, receiver) = oneshot::channel();
        self.insert(id, sender);
        (id, begun(Box::pin(timeout(limit, receiver))))
    }

    #[inline(never)]
    fn respond(&self, id: u64, response: u64) -> bool {
        let call = self.remove(&id);
        call.is_some_and(|(_, sender)| sender.send(response).is_ok())
    }

    #[inline(never)]
    fn response((_, call): Self::Call) -> u64 {
        ready(call).expect("in time").expect("a response")
    }

    fn expire(&self, (id, call): Self::Call) -> bool {
        let ended = block_on(call);
        self.remove(&id);
        ended.is_err()
    }
}

impl Calls for Arc<WaiterMap<u64, u64>> {
    const NAME: &'static str = "may_waiter";

    /// And its timeout.
    type Call = (MapWaiterOwned<u64, u64>, Duration);

    fn new() -> Self {
        Self::default()
    }

    #[inline(never)]
    fn call(&self, id: u64, timeout: Duration) -> Self::Call {
        (self.new_waiter_owned(id), timeout)
    }

    #[inline(never)]
    fn respond(&self, id: u64, response: u64) -> bool {
        self.set_rsp(&id, response).is_ok()
    }

    #[inline(never)]
    fn response((call, timeout): Self::Call) -> u64 {
        call.wait_rsp(timeout).expect("a response")
    }

    fn expire(&self, (call, timeout): Self::Call) -> bool {
        call.wait_rsp(timeout).is_err()
    }
}

/// What tokio's timers need, for all candidates: a runtime, whose own thread sleeps.
fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_time().build();
    runtime.expect("a runtime can start")
}

/// The calls without a response, in their order.
struct Ring<'a, C: Calls> {
    calls: &'a C,
    places: Vec<Option<C::Call>>,
    next: u64,
}

impl<'a, C: Calls> Ring<'a, C> {
    fn new(calls: &'a C, most: u64) -> Self {
        let places = (0..most).map(|_| None).collect();
        Self {
            calls,
            places,
            next: 0,
        }
    }

    fn place(&mut self, id: u64) -> &mut Option<C::Call> {
        let most = self.places.len() as u64;
        &mut self.places[(id % most) as usize]
    }

    #[inline(always)]
    fn call(&mut self) {
        let id = self.next;
        let call = self.calls.call(Library::key(id as usize), TIMEOUT);
        *self.place(id) = Some(call);
        self.next += 1;
    }

    #[inline(always)]
    fn receive(&mut self, id: u64) {
        let call = self.place(id).take().expect("it is pending");
        assert_eq!(C::response(call), id, "{}", C::NAME);
    }
}

#[inline(always)]
fn respond<C: Calls>(calls: &C, id: u64) {
    let delivered = calls.respond(Library::key(id as usize), id);
    assert!(delivered, "{}: the call is pending", C::NAME);
}

/// Counts of what a thread has done, as far as the other one knows.
#[derive(Default)]
struct Progress {
    called: CachePadded<AtomicU64>,
    responded: CachePadded<AtomicU64>,
}

/// Waits until `count` has reached `needed`.
fn await_count(count: &AtomicU64, needed: u64) -> u64 {
    let mut spins = 0;
    loop {
        let known = count.load(Ordering::Acquire);
        if known >= needed {
            return known;
        }
        spins += 1;
        if spins % SPINS == 0 {
            thread::yield_now();
        }
    }
}

impl W13 {
    fn round<C: Calls>(&self) -> Values {
        let (runtime, calls) = (runtime(), C::new());
        let _entered = runtime.enter();
        let elapsed = match self.threads {
            1 => self.alone(&calls),
            _ => self.apart(&calls, runtime.handle()),
        };
        let each = elapsed.as_secs_f64() / self.lives as f64;
        vec![each * 1e9, 1e-6 / each]
    }

    fn alone<C: Calls>(&self, calls: &C) -> Duration {
        let mut ring = Ring::new(calls, self.pending);
        (0..self.pending).for_each(|_| ring.call());
        let mut live = |lives: std::ops::Range<u64>| {
            for id in lives {
                respond(calls, id);
                ring.receive(id);
                ring.call();
            }
        };
        let warm_up = self.warm_up();
        live(0..warm_up);
        let begun = Instant::now();
        live(warm_up..warm_up + self.lives);
        let elapsed = begun.elapsed();
        for id in warm_up + self.lives..ring.next {
            respond(calls, id);
            ring.receive(id);
        }
        elapsed
    }

    /// One thread calls and gets the responses, this one responds.
    fn apart<C: Calls>(&self, calls: &C, runtime: &Handle) -> Duration {
        let progress = &Progress::default();
        let total = self.pending + self.warm_up() + self.lives;
        let most = self.pending + (self.pending / 8).max(2 * BURST);
        thread::scope(|scope| {
            let caller = scope.spawn(move || {
                let _entered = runtime.enter();
                let mut ring = Ring::new(calls, most);
                let (mut received, mut responded) = (0, 0);
                for called in 1..=total {
                    if ring.next == received + most {
                        responded = await_count(&progress.responded, received + 1);
                    }
                    // As many as there are: what is pending is then what has no response.
                    while received < responded {
                        ring.receive(received);
                        received += 1;
                    }
                    ring.call();
                    if called % BURST == 0 || called == total {
                        progress.called.store(called, Ordering::Release);
                        responded = progress.responded.load(Ordering::Acquire);
                    }
                }
                while received < total {
                    await_count(&progress.responded, received + 1);
                    ring.receive(received);
                    received += 1;
                }
            });
            let (mut begun, mut elapsed) = (Instant::now(), Duration::ZERO);
            let mut called = 0;
            for id in 0..total {
                if id == self.warm_up() {
                    begun = Instant::now();
                } else if id == self.warm_up() + self.lives {
                    elapsed = begun.elapsed();
                }
                // At the end, the rest.
                let needed = (id + self.pending).min(total);
                if called < needed {
                    called = await_count(&progress.called, needed);
                }
                respond(calls, id);
                if (id + 1) % BURST == 0 || id + 1 == total {
                    progress.responded.store(id + 1, Ordering::Release);
                }
            }
            caller.join().expect("the caller does not panic");
            elapsed
        })
    }

    /// A whole turn of the ring.
    fn warm_up(&self) -> u64 {
        self.pending
    }

    /// Each response reaches its call, alone and from another thread (the rounds assert it); a second one reaches none;
    /// a call without a response expires, and not before its time.
    fn check<C: Calls>() {
        for threads in [1, 2] {
            let small = Self {
                threads,
                pending: 100,
                lives: 1_000,
            };
            small.round::<C>();
        }
        let (runtime, calls) = (runtime(), C::new());
        let _entered = runtime.enter();
        let call = calls.call(1, TIMEOUT);
        assert!(calls.respond(1, 7), "{}", C::NAME);
        assert_eq!(C::response(call), 7, "{}", C::NAME);
        assert!(!calls.respond(1, 8), "{}: it has its response", C::NAME);
        let (limit, begun) = (Duration::from_millis(20), Instant::now());
        let call = calls.call(2, limit);
        assert!(calls.expire(call), "{}: no response comes", C::NAME);
        assert!(begun.elapsed() >= limit, "{}: expired early", C::NAME);
        assert!(!calls.respond(2, 7), "{}: it has expired", C::NAME);
    }
}

impl Workload for W13 {
    const NAME: &'static str = "W13";

    const TITLE: &'static str = "a call and its response, by id";

    const METRICS: &'static [Metric] = &[
        Metric::less("life", "ns"),
        Metric::more("rate", "M lives/s"),
    ];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let pending = options.scale.pick(10_000, 10_000, 100);
        let lives = options.lives().div_ceil(options.rounds_of(Self::ROUNDS));
        let case = |threads: usize| Case {
            parameters: vec![("pending", pending), ("threads", threads)],
            workload: Self {
                threads,
                pending: pending as u64,
                lives: lives as u64,
            },
        };
        [1, 2].map(case).into()
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![check and round:
            Requests<u64, u64>,
            PendingRequests<u64, u64>,
            Senders,
            Arc<WaiterMap<u64, u64>>,
        ]
    }
}
