//! The table of Varghese & Lauck, measured: start, stop and per-tick bookkeeping of each scheme.
//!
//! A fixed number of timers is outstanding, with timeouts uniform in 1 to `longest` ticks, in a steady state. Round and
//! round: what would fire in the next ticks is stopped, beside a few others, whose stops are timed; the ticks go by one
//! at a time, in which nothing fires, so that their time is bookkeeping alone; all that was stopped is started again
//! with a new timeout, and timed.
//!
//! Wheels of one level have 4,096 slots, those of several 64 each. The shorter `longest` is below a revolution of the
//! former, the other is 15 revolutions, and more than a simple wheel can hold. An ordered list sits out where each of
//! its starts would take milliseconds. A slow scheme has a shorter round: at least [`BATCH`] ticks.

use std::time::{Duration, Instant};

use super::Workload;
use crate::candidates::{Named, all_schemes};
use crate::contest::{Case, Contender};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::process::clock_reading;
use crate::random::Random;
use crate::scheme_timers::SchemeTimers;
use crate::timer_queue::Tick;

/// Ticks between two readings of the clock.
const BATCH: Tick = 16;

/// Timers that are stopped in each batch before their time, at random.
const VICTIMS: usize = 16;

/// The longest timeouts: below and above a revolution of a wheel of one level.
const LONGEST: [Tick; 2] = [4_000, 60_000];

pub(crate) struct Schemes {
    timers: usize,
    longest: Tick,
    /// Rounds end after this many ticks,
    ticks: Tick,
    /// or with the batch in which this is over.
    limit: Duration,
}

/// Time spent, and on how much.
#[derive(Default)]
struct Spent {
    time: Duration,
    count: u64,
    readings: u32,
}

impl Spent {
    fn time(&mut self, count: u64, work: impl FnOnce()) {
        let started = Instant::now();
        work();
        self.time += started.elapsed();
        self.count += count;
        self.readings += 1;
    }

    /// Nanoseconds for each, without the harness's readings of the clock.
    fn each(&self, reading: f64) -> f64 {
        let own = self.time.as_nanos() as f64 - reading * f64::from(self.readings);
        own.max(0.0) / self.count as f64
    }
}

/// Which timers are started, and which deadlines come soon.
struct Calendar {
    started: Vec<bool>,
    /// Timers by deadline, as far as the round goes. Some have been stopped, or stand here twice.
    by_tick: Vec<Vec<u32>>,
}

impl Calendar {
    fn note(&mut self, id: u32, deadline: Tick) {
        self.started[id as usize] = true;
        if let Some(tick) = self.by_tick.get_mut(deadline as usize) {
            tick.push(id);
        }
    }

    /// Takes a timer out, if it is started.
    fn take(&mut self, id: u32) -> bool {
        std::mem::take(&mut self.started[id as usize])
    }
}

impl Schemes {
    fn round<S: Named>(&self) -> Values {
        if self.longest > S::SPAN || self.timers > S::MOST {
            return vec![f64::NAN; Self::METRICS.len()];
        }
        let mut random = Random::new(1987);
        let mut timers = SchemeTimers::<S>::new(self.timers);
        let mut calendar = Calendar {
            started: vec![false; self.timers],
            by_tick: vec![Vec::new(); (self.ticks + BATCH + 1) as usize],
        };
        let mut deadlines: Vec<Tick> = (0..self.timers)
            .map(|_| 1 + random.below(self.longest))
            .collect();
        if S::SORTS {
            deadlines.sort_unstable();
        }
        for (id, &deadline) in (0..).zip(&deadlines) {
            timers.start(id, deadline);
            calendar.note(id, deadline);
        }

        let [mut starts, mut stops, mut ticks] = [(); 3].map(|()| Spent::default());
        let began = Instant::now();
        let (mut stopped, mut restarts) = (Vec::new(), Vec::new());
        while timers.now() < self.ticks && (timers.now() == 0 || began.elapsed() < self.limit) {
            let now = timers.now();
            for tick in now + 1..=now + BATCH {
                for id in std::mem::take(&mut calendar.by_tick[tick as usize]) {
                    // It may have been stopped, and started again for later.
                    if timers.deadline(id) == tick && calendar.take(id) {
                        timers.stop(id);
                        stopped.push(id);
                    }
                }
            }
            let due = stopped.len();
            for _ in 0..VICTIMS {
                let id = random.below(self.timers as u64) as u32;
                if calendar.take(id) {
                    stopped.push(id);
                }
            }
            let victims = &stopped[due..];
            stops.time(victims.len() as u64, || {
                victims.iter().for_each(|&id| timers.stop(id));
            });
            let until = now + BATCH;
            ticks.time(BATCH, || {
                for tick in now + 1..=until {
                    timers.advance(tick, |id, _| panic!("{}: {id} was stopped", S::NAME));
                }
            });
            restarts.extend(
                stopped
                    .drain(..)
                    .map(|id| (id, until + 1 + random.below(self.longest))),
            );
            starts.time(restarts.len() as u64, || {
                for &(id, deadline) in &restarts {
                    timers.start(id, deadline);
                }
            });
            for (id, deadline) in restarts.drain(..) {
                calendar.note(id, deadline);
            }
            assert_eq!(timers.len(), self.timers, "{}: all are started", S::NAME);
        }

        let (end, mut fired) = (timers.now() + self.longest + 1, 0);
        timers.advance(end, |_, _| fired += 1);
        assert_eq!(fired, self.timers, "{}: all fire in the end", S::NAME);
        assert_eq!(timers.len(), 0, "{}: nothing is left", S::NAME);
        let reading = clock_reading();
        [starts, stops, ticks]
            .map(|spent| spent.each(reading))
            .to_vec()
    }
}

impl Workload for Schemes {
    const NAME: &'static str = "schemes";

    const TITLE: &'static str = "timer schemes: start, stop and a tick in which nothing fires";

    const METRICS: &'static [Metric] = &[
        Metric::less("start", "ns"),
        Metric::less("stop", "ns"),
        Metric::less("tick", "ns"),
    ];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let scale = options.scale;
        let most = scale.pick(1_000_000, 100_000, 1_000);
        let sizes = (2..).map(|power| 10_usize.pow(power));
        let sizes: Vec<_> = sizes.take_while(|&timers| timers <= most).collect();
        let case = |longest: Tick, timers| Case {
            parameters: vec![("longest", longest as usize), ("timers", timers)],
            workload: Self {
                timers,
                longest,
                ticks: scale.pick(8192, 4096, 256),
                limit: Duration::from_millis(scale.pick(600, 150, 20)),
            },
        };
        LONGEST
            .iter()
            .flat_map(|&longest| sizes.iter().map(move |&timers| case(longest, timers)))
            .collect()
    }

    fn contenders() -> Vec<Contender<Self>> {
        all_schemes!(round)
    }
}
