//! One run of a script: a thread on which requests arrive, and one that completes them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::script::{Script, TIMEOUT};
use crate::candidate::{BURST, ByHandle};
use crate::process::{Used, cpu_time};
use crate::request::{Flag, Request};
use crate::workload::ring::assert_empty;

/// How long the two threads sleep when nothing is due, as Kafka's do.
const NAP: Duration = Duration::from_millis(1);

/// So far behind their time, requests stop coming: the rate is too high.
const OVERLOAD: Duration = Duration::from_millis(250);

/// From the making of the run to the first arrival.
const LEAD: Duration = Duration::from_millis(10);

/// What a run came to.
#[derive(Debug)]
pub(super) struct Run {
    /// Of the whole process.
    pub(super) cpu: Duration,
    pub(super) arrived: usize,
    pub(super) expired: usize,
    /// Whether the rate was too high.
    pub(super) overloaded: bool,
    /// How late the last request came, and the last completion.
    pub(super) behind: Duration,
    /// From the last arrival to the last ending.
    pub(super) tail: Duration,
    /// From the first arrival to the last ending.
    pub(super) took: Duration,
    /// By the thread on which requests arrive, the one that completes them, those that drive the candidate's timer, and
    /// those on which its expired requests complete. `None` if it has no such thread, or the system does not say.
    pub(super) threads: [Option<Used>; 4],
}

/// Parts of the names that candidates give their threads. (The system keeps 15 bytes of a name.)
const TIMERS: &[&str] = &["timer", "reaper"];
const COMPLETIONS: &[&str] = &["complet"];

/// The way of handles from the one thread to the other.
struct Handover<H> {
    slots: Vec<Mutex<Option<H>>>,
    /// How many requests come: fewer than the script has, if the rate is too high.
    arriving: AtomicUsize,
}

/// Each script by a pair of threads of its own, all of them on one candidate.
pub(super) fn run<C: ByHandle>(scripts: &[Script]) -> Run {
    let candidate = C::new();
    let arrivals = scripts.iter().map(|script| script.arrivals.len());
    let mut board = Flag::board(arrivals.sum());
    let handovers: Vec<Handover<C::Handle>> = scripts.iter().map(Handover::new).collect();
    let start = Instant::now() + LEAD;
    let cpu = cpu_time();
    let run = thread::scope(|scope| {
        let pairs: Vec<_> = scripts
            .iter()
            .zip(&handovers)
            .map(|(script, handover)| {
                let (flags, others) = board.split_at(script.arrivals.len());
                board = others;
                let candidate = &candidate;
                scope.spawn(move || run_pair(candidate, script, flags, handover, start, cpu))
            })
            .collect();
        let runs = pairs
            .into_iter()
            .map(|pair| pair.join().expect("the pair is well"));
        runs.reduce(Run::and).expect("a script")
    });
    assert_empty(&candidate);
    run
}

impl Run {
    /// The sum of two runs at the same time. What is of the whole process is that of the one that ended later.
    fn and(self, other: Self) -> Self {
        let later = if self.took > other.took {
            &self
        } else {
            &other
        };
        let [_, _, timers, completions] = later.threads;
        let both = |of: usize| Some(self.threads[of]?.and(other.threads[of]?));
        Self {
            cpu: later.cpu,
            arrived: self.arrived + other.arrived,
            expired: self.expired + other.expired,
            overloaded: self.overloaded || other.overloaded,
            behind: self.behind.max(other.behind),
            tail: self.tail.max(other.tail),
            took: later.took,
            threads: [both(0), both(1), timers, completions],
        }
    }
}

/// The requests arrive on the calling thread. `cpu` is the process's time before `start`.
fn run_pair<C: ByHandle>(
    candidate: &C,
    script: &Script,
    flags: &'static [Flag],
    handover: &Handover<C::Handle>,
    start: Instant,
    cpu: Duration,
) -> Run {
    let arriver = Used::here();
    thread::scope(|scope| {
        let completer = scope.spawn(|| {
            let completing = complete(candidate, script, flags, handover, start);
            (candidate.drive(completing), Used::here())
        });
        candidate.drive(async {
            let (arrived, lag) = arrive(candidate, script, flags, handover, start).await;
            let last_arrival = Instant::now();
            let flags = &flags[..arrived];
            if C::EXPIRES {
                wait_for_all(candidate, flags).await;
            } else {
                candidate.rest(TIMEOUT).await;
            }
            let (tail, took, cpu) = (last_arrival.elapsed(), start.elapsed(), cpu_time() - cpu);
            let arriver = Used::here().zip(arriver).map(|(now, then)| now.since(then));
            let [timers, completions] = [TIMERS, COMPLETIONS].map(Used::by_threads);
            // By now it has nothing left to wait for.
            let completer = completer.join().expect("the completer is well");
            let ((completed, completer_lag), completer) = completer;
            let satisfied = flags.iter().filter(|flag| flag.is_satisfied()).count();
            let expired = flags.iter().filter(|flag| flag.is_expired()).count();
            assert_eq!(completed, satisfied, "{}: completed by handle", C::NAME);
            if C::EXPIRES {
                assert_eq!(satisfied + expired, arrived, "{}: each once", C::NAME);
            }
            Run {
                cpu,
                arrived,
                expired,
                overloaded: arrived < script.arrivals.len(),
                behind: lag.max(completer_lag),
                tail,
                took,
                threads: [arriver, completer, timers, completions],
            }
        })
    })
}

/// Parks what arrives. Returns how many came, and how late the last.
async fn arrive<C: ByHandle>(
    candidate: &C,
    script: &Script,
    flags: &'static [Flag],
    handover: &Handover<C::Handle>,
    start: Instant,
) -> (usize, Duration) {
    let mut lag = Duration::ZERO;
    let mut next = 0;
    while next < script.arrivals.len() && lag < OVERLOAD {
        let now = Instant::now().saturating_duration_since(start);
        if script.arrivals[next].at > now {
            candidate.rest(NAP).await;
            continue;
        }
        lag = now - script.arrivals[next].at;
        let burst = &script.arrivals[next..script.arrivals.len().min(next + BURST)];
        for arrival in burst.iter().take_while(|arrival| arrival.at <= now) {
            let request = Request::new(next as u32, &flags[next], TIMEOUT);
            let handle = candidate.park_for_handle(request, &arrival.keys);
            assert!(handle.is_some(), "{}: it was not ready", C::NAME);
            if arrival.is_completed {
                *handover.slots[next].lock() = handle;
            }
            next += 1;
        }
        candidate.turn().await;
    }
    handover.arriving.store(next, Ordering::Release);
    (next, lag)
}

/// Completes the requests whose event has come. Returns how many, and how late the last was.
async fn complete<C: ByHandle>(
    candidate: &C,
    script: &Script,
    flags: &'static [Flag],
    handover: &Handover<C::Handle>,
    start: Instant,
) -> (usize, Duration) {
    let (mut completed, mut lag) = (0, Duration::ZERO);
    let mut now = Duration::ZERO;
    for &(at, index) in &script.completions {
        let index = index as usize;
        while now < at {
            now = Instant::now().saturating_duration_since(start);
            if now < at {
                candidate.rest(NAP).await;
            }
        }
        let Some(handle) = handover.take(index) else {
            continue;
        };
        lag = now - at;
        // It may have expired if this thread is late.
        if flags[index].try_mark_completable() && candidate.force_complete(handle) {
            completed += 1;
        }
    }
    (completed, lag)
}

impl<H> Handover<H> {
    fn new(script: &Script) -> Self {
        Self {
            slots: script.arrivals.iter().map(|_| Mutex::new(None)).collect(),
            arriving: AtomicUsize::new(usize::MAX),
        }
    }

    /// `None` if the request never comes.
    fn take(&self, index: usize) -> Option<H> {
        loop {
            // ORDERING: before the slot is looked at; pairs with the store in `arrive`.
            let arriving = self.arriving.load(Ordering::Acquire);
            let handle = self.slots[index].lock().take();
            if handle.is_some() || index >= arriving {
                return handle;
            }
            thread::sleep(Duration::from_micros(50));
        }
    }
}

async fn wait_for_all<C: ByHandle>(candidate: &C, mut left: &[Flag]) {
    loop {
        let ended = left.iter().take_while(|flag| flag.has_ended()).count();
        left = &left[ended..];
        if left.is_empty() {
            return;
        }
        candidate.rest(NAP).await;
    }
}
