//! Settings, what they ask for, and what they name.

use crate::support::spans::Choices;
use crate::support::{Job, Tally, lock};
use proptest::prelude::*;
use request_purgatory::threads::{Dispatch, Reaper, ReaperThread};
use request_purgatory::time::{ManualClock, WakeFn};
use std::hash::{BuildHasher, DefaultHasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// Where the user's code runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    OwnThread,
    Inline,
    /// One of two executors.
    Executor(usize),
}

/// Who drives the timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drives {
    Own,
    Shared,
    /// One of two reactors.
    Reactor(usize),
    Manual,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Setting {
    Tick(Duration),
    WheelSize(usize),
    MaxParked(usize),
    MaxTimeout(Duration),
    /// One of two clocks.
    Clock(usize),
    Dispatch(Runs),
    Reaper(Drives),
    ThreadsAtOnce,
    /// One of two hashers.
    Hasher(usize),
    MapShards(usize),
    MaxWatchers(usize),
    FirstToken(u64),
    RememberedIds(usize),
}

/// What a builder was told last.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// The arithmetic of its deadlines.
    pub(crate) choices: Choices,
    pub(crate) max_parked: usize,
    pub(crate) clock: usize,
    pub(crate) dispatch: Option<Runs>,
    pub(crate) reaper: Drives,
    pub(crate) threads_at_once: bool,
    pub(crate) hasher: Option<usize>,
    pub(crate) max_watchers: usize,
    pub(crate) first_token: u64,
    pub(crate) remembered_ids: usize,
}

impl Expected {
    pub(crate) fn of(settings: &[Setting]) -> Self {
        let mut it = Self {
            choices: Choices::default(),
            max_parked: usize::MAX,
            clock: 0,
            dispatch: None,
            reaper: Drives::Own,
            threads_at_once: false,
            hasher: None,
            max_watchers: usize::MAX,
            first_token: 1,
            remembered_ids: 8_192,
        };
        for setting in settings {
            match *setting {
                Setting::Tick(tick) => it.choices.tick = tick,
                Setting::WheelSize(slots) => it.choices.wheel_size = slots,
                Setting::MaxParked(count) => it.max_parked = count,
                Setting::MaxTimeout(timeout) => it.choices.max_timeout = timeout,
                Setting::Clock(which) => it.clock = which,
                Setting::Dispatch(runs) => it.dispatch = Some(runs),
                Setting::Reaper(drives) => it.reaper = drives,
                Setting::ThreadsAtOnce => it.threads_at_once = true,
                Setting::Hasher(which) => it.hasher = Some(which),
                // It changes nothing that can be seen.
                Setting::MapShards(_) => {}
                Setting::MaxWatchers(count) => it.max_watchers = count,
                Setting::FirstToken(number) => it.first_token = number,
                Setting::RememberedIds(count) => it.remembered_ids = count,
            }
        }
        it.choices.start = Duration::from_secs(STARTS[it.clock]);
        it
    }

    pub(crate) fn runs(&self) -> Runs {
        self.dispatch.unwrap_or(match self.reaper {
            Drives::Own | Drives::Shared => Runs::OwnThread,
            Drives::Reactor(_) | Drives::Manual => Runs::Inline,
        })
    }

    /// The threads that only this has.
    pub(crate) fn threads(&self) -> usize {
        let completions = self.runs() == Runs::OwnThread && self.reaper != Drives::Shared;
        usize::from(self.reaper == Drives::Own) + usize::from(completions)
    }
}

/// The first readings of the clocks, in seconds.
const STARTS: [u64; 2] = [7, 11];

/// What settings name, of each kind two, and what becomes of them.
pub(crate) struct World {
    pub(crate) name: String,
    pub(crate) clocks: [ManualClock; 2],
    pub(crate) executors: [Arc<Mutex<Vec<Job>>>; 2],
    pub(crate) reactors: [Arc<Tally>; 2],
    pub(crate) hashers: [Counting; 2],
}

/// The reaper of all that share one.
static SHARED: LazyLock<ReaperThread> =
    LazyLock::new(|| ReaperThread::spawn("shared").expect("two threads more"));

/// A hasher that counts.
#[derive(Clone)]
pub(crate) struct Counting(pub(crate) Arc<Tally>);

impl BuildHasher for Counting {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        self.0.add();
        DefaultHasher::new()
    }
}

impl World {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            name: format!("b{}.", NEXT.fetch_add(1, Ordering::Relaxed)),
            clocks: STARTS.map(|start| ManualClock::starting_at(Duration::from_secs(start))),
            executors: Default::default(),
            reactors: [Tally::new(), Tally::new()],
            hashers: [Tally::new(), Tally::new()].map(Counting),
        }
    }

    pub(crate) fn dispatch(&self, runs: Runs) -> Dispatch {
        match runs {
            Runs::OwnThread => Dispatch::OwnThread,
            Runs::Inline => Dispatch::Inline,
            Runs::Executor(which) => {
                let jobs = self.executors[which].clone();
                Dispatch::Executor(Arc::new(move |job| lock(&jobs).push(job)))
            }
        }
    }

    pub(crate) fn reaper(&self, drives: Drives) -> Reaper {
        match drives {
            Drives::Own => Reaper::Own,
            Drives::Shared => Reaper::Shared(SHARED.clone()),
            Drives::Manual => Reaper::Manual,
            Drives::Reactor(which) => {
                let woken = self.reactors[which].clone();
                let wake = move || {
                    woken.add();
                    true
                };
                Reaper::Reactor(WakeFn::new(wake))
            }
        }
    }
}

/// Gives a builder all settings, one after the other: those that every kind has, and those of this kind.
macro_rules! given {
    ($builder:expr, $settings:expr, $world:expr, |$it:ident| $($own:tt)*) => {
        $settings.iter().fold($builder, |$it, setting| match *setting {
            Setting::Tick(tick) => $it.tick(tick),
            Setting::WheelSize(slots) => $it.wheel_size(slots),
            Setting::MaxParked(count) => $it.max_parked(count),
            Setting::MaxTimeout(timeout) => $it.max_timeout(timeout),
            Setting::Clock(which) => $it.clock($world.clocks[which].clone()),
            Setting::Dispatch(runs) => $it.dispatch($world.dispatch(runs)),
            Setting::Reaper(drives) => $it.reaper($world.reaper(drives)),
            Setting::ThreadsAtOnce => $it.threads_at_once(),
            $($own)*
            #[allow(unreachable_patterns, reason = "a kind may have all")]
            _ => $it,
        })
    };
}
pub(crate) use given;

pub(crate) fn setting() -> impl Strategy<Value = Setting> {
    let tick = prop_oneof![1 => Just(0), 6 => 1..10_000_000_u64, 6 => Just(2_000_000)];
    let wheel =
        prop_oneof![1 => Just(1), 1 => Just((1 << 16) + 1), 6 => 2..9_usize, 6 => 2..200_usize];
    let two = || 0..2_usize;
    let executor = two().prop_map(Runs::Executor);
    let runs = prop_oneof![Just(Runs::OwnThread), Just(Runs::Inline), executor];
    let drives = prop_oneof![
        1 => Just(Drives::Own),
        1 => Just(Drives::Shared),
        2 => two().prop_map(Drives::Reactor),
        3 => Just(Drives::Manual)
    ];
    let token = prop_oneof![1 => Just(0), 6 => 1..100_u64, 2 => Just(1 << 63)];
    let common = prop_oneof![
        tick.prop_map(|nanos| Setting::Tick(Duration::from_nanos(nanos))),
        wheel.prop_map(Setting::WheelSize),
        (0..5_usize).prop_map(Setting::MaxParked),
        (0..50_000_u64).prop_map(|micros| Setting::MaxTimeout(Duration::from_micros(micros))),
        two().prop_map(Setting::Clock),
        runs.prop_map(Setting::Dispatch),
        drives.prop_map(Setting::Reaper),
        Just(Setting::ThreadsAtOnce),
    ];
    let own = prop_oneof![
        two().prop_map(Setting::Hasher),
        (0..10_usize).prop_map(Setting::MapShards),
        (0..4_usize).prop_map(Setting::MaxWatchers),
        token.prop_map(Setting::FirstToken),
        (0..5_usize).prop_map(Setting::RememberedIds),
    ];
    prop_oneof![2 => common, 1 => own]
}
