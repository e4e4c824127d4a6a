//! Transfer: what a cache line costs that another processor has written last: the measured input of
//! `benches/contention.py`.
//!
//! Two threads take turns. In its turn a thread goes round some lines twice, each of which names the next one, and
//! writes to each by a locked instruction, as a lock or a state word is taken. The first time each line comes from the
//! other processor, and the second time it is there: the difference is the transfer. As only a line says which is next,
//! no processor fetches it ahead. The thread that waits reads one line that says whose turn it is, and no other.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crossbeam::utils::CachePadded;

use super::{Case, Contender, Workload};
use crate::options::Options;
use crate::outcome::{Metric, Values};

/// Few enough for the nearest cache.
const LINES: usize = 128;

/// Looks for the turn before the core is offered to the other thread: there may be one core for both.
const SPINS: usize = 10_000;

/// Turns of each thread that other workloads take before and after a round: some milliseconds.
const TURNS_BESIDE: usize = 200;

/// Bits of a line that count its visits.
const VISITS: u32 = 32;

pub(crate) struct Transfer {
    turns: usize,
}

struct Lines {
    turn: CachePadded<AtomicUsize>,
    /// In each the number of the next one, above [`VISITS`] bits that count the visits.
    lines: Vec<CachePadded<AtomicUsize>>,
}

impl Lines {
    /// In one ring, in an order that is different each time.
    fn new(seed: u64) -> Self {
        let mut order: Vec<usize> = (0..LINES).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        let mut lines: Vec<_> = (0..LINES).map(|_| CachePadded::default()).collect();
        for (at, &line) in order.iter().enumerate() {
            *lines[line] = AtomicUsize::new(order[(at + 1) % LINES] << VISITS);
        }
        Self {
            turn: CachePadded::default(),
            lines,
        }
    }

    /// Nanoseconds that each line took.
    fn visit(&self) -> f64 {
        let begun = Instant::now();
        let mut line = 0;
        for _ in 0..LINES {
            line = self.lines[line].fetch_add(1, Ordering::AcqRel) >> VISITS;
        }
        assert_eq!(line, 0, "one ring");
        begun.elapsed().as_nanos() as f64 / LINES as f64
    }

    /// Every second turn is that of the thread `me`. Returns what the lines took that came, and those that were there.
    fn take_turns(&self, me: usize, turns: usize) -> Vec<(f64, f64)> {
        let turn = |turn: usize| {
            let mut looks = 0;
            // ORDERING: pairs with the store below: what the other thread did is over.
            while self.turn.load(Ordering::Acquire) != 2 * turn + me {
                looks += 1;
                if looks % SPINS == 0 {
                    thread::yield_now();
                }
                spin_loop();
            }
            let both = (self.visit(), self.visit());
            self.turn.store(2 * turn + me + 1, Ordering::Release);
            both
        };
        (0..turns).map(turn).collect()
    }
}

impl Transfer {
    /// Nanoseconds of a transfer, and of a visit of a line that is there.
    fn round(&self) -> Values {
        let lines = Lines::new(self.turns as u64);
        let turns = thread::scope(|scope| {
            let other = scope.spawn(|| lines.take_turns(1, self.turns));
            let mut turns = lines.take_turns(0, self.turns);
            turns.extend(other.join().expect("no panic"));
            turns
        });
        let visits = |line: &CachePadded<AtomicUsize>| line.load(Ordering::Relaxed) % (1 << VISITS);
        let total: usize = lines.lines.iter().map(visits).sum();
        assert_eq!(total, 4 * self.turns * LINES, "each visit counts");
        // Medians: a thread that loses its processor in a turn says nothing about lines. Nor does a turn in which both
        // threads had the same processor, because others were busy: no line came from elsewhere.
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let there = median(turns.iter().map(|turn| turn.1).collect());
        let came = turns.iter().map(|turn| turn.0);
        let came = median(came.filter(|&came| came > 3.0 * there).collect());
        vec![came - there, there]
    }
}

/// The column of a workload on two threads that says how far apart their processors were.
pub(super) const BESIDE: Metric = Metric::note("transfer", "ns");

/// Measures a round with the transfer before and after it: their mean, or NaN if one is over 1.5 of the other, as the
/// processors have moved in between.
pub(super) fn beside<R>(round: impl FnOnce() -> R) -> (R, f64) {
    let transfer = || {
        let turns = TURNS_BESIDE;
        Transfer { turns }.round()[0]
    };
    let before = transfer();
    let done = round();
    let after = transfer();
    let stayed = before.max(after) <= 1.5 * before.min(after);
    (
        done,
        if stayed {
            f64::midpoint(before, after)
        } else {
            f64::NAN
        },
    )
}

impl Workload for Transfer {
    const NAME: &'static str = "transfer";

    const TITLE: &'static str = "a cache line that another processor has written";

    const METRICS: &'static [Metric] = &[
        Metric::less("transfer", "ns"),
        Metric::note("line that is there", "ns"),
    ];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let turns = options.scale.pick(2_000, 1_000, 10);
        vec![Case {
            parameters: vec![("threads", 2)],
            workload: Self { turns },
        }]
    }

    fn contenders() -> Vec<Contender<Self>> {
        vec![Contender::other("fetch_add", || (), Self::round)]
    }
}
