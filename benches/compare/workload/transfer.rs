//! Transfer: what a cache line costs that another processor has written last: the measured input of
//! `benches/contention.py`.
//!
//! Two threads take turns. In its turn a thread adds to a number in each of some lines, by a locked instruction as a
//! lock or a state word is taken by; first each line comes from the other processor, and the second time it is there.
//! The difference is the transfer. The thread that waits reads one line that says whose turn it is, and no other.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crossbeam::utils::CachePadded;

use super::{Case, Contender, Workload};
use crate::options::Options;
use crate::outcome::{Metric, Values};

/// Few enough for the nearest cache, and more than a processor fetches ahead.
const LINES: usize = 128;

/// Lines are visited in steps of this many, so that none is next to the one before.
const STRIDE: usize = 37;

/// Looks for the turn before the core is offered to the other thread: there may be one core for both.
const SPINS: usize = 10_000;

pub(crate) struct Transfer {
    turns: usize,
}

struct Lines {
    turn: CachePadded<AtomicUsize>,
    lines: Vec<CachePadded<AtomicU64>>,
}

impl Lines {
    /// Nanoseconds that each line took.
    fn visit(&self) -> f64 {
        let begun = Instant::now();
        for number in 0..LINES {
            let line = &self.lines[number * STRIDE % LINES];
            line.fetch_add(1, Ordering::AcqRel);
        }
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
    fn round(&self) -> Values {
        let lines = Lines {
            turn: CachePadded::default(),
            lines: (0..LINES).map(|_| CachePadded::default()).collect(),
        };
        let turns = thread::scope(|scope| {
            let other = scope.spawn(|| lines.take_turns(1, self.turns));
            let mut turns = lines.take_turns(0, self.turns);
            turns.extend(other.join().expect("no panic"));
            turns
        });
        let total: u64 = lines
            .lines
            .iter()
            .map(|line| line.load(Ordering::Relaxed))
            .sum();
        assert_eq!(total as usize, 4 * self.turns * LINES, "each visit counts");
        // Medians: a thread that loses its processor in a turn says nothing about lines. Nor does a turn in which both
        // threads had the same processor, because others were busy: no line came from elsewhere.
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let there = median(turns.iter().map(|turn| turn.1).collect());
        let came = turns.iter().map(|turn| turn.0);
        let came = median(came.filter(|&came| came > 2.0 * there).collect());
        vec![came - there, there]
    }
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
