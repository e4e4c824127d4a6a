//! The table of Varghese & Lauck, measured: start, stop and per-tick bookkeeping of each scheme.
//!
//! A fixed number of timers is outstanding, with timeouts uniform in 1 to `longest` ticks, in a steady state. Batch by
//! batch: what would fire in the next ticks is stopped, beside a few others, whose stops are timed; the ticks go by one
//! at a time, in which nothing fires, so that their time is bookkeeping alone; all that was stopped is started again
//! with a new timeout, and timed.
//!
//! Wheels of one level have 4,096 slots, those of several 64 each. The shorter `longest` is below a revolution of the
//! former, the other is 15 revolutions, and more than a simple wheel can hold. An ordered list sits out where each of
//! its starts would take milliseconds.

use criterion::{
    AxisScale, BenchmarkGroup, BenchmarkId, Criterion, PlotConfiguration, criterion_group,
    criterion_main, measurement::WallTime,
};
use request_purgatory_schemes::{
    HashedWheel, Heap, HierarchicalWheel, OrderedList, Position, Scheme, SimpleWheel,
    SortedHashedWheel, SteppedWheel, Tick, UnorderedList,
};
use std::time::{Duration, Instant};

/// Ticks in a batch.
const TICKS: Tick = 16;
/// Timers that are stopped in each batch before their time, at random.
const VICTIMS: usize = 16;
/// The longest timeouts: below and above a revolution of a wheel of one level.
const LONGEST: [Tick; 2] = [4_000, 60_000];
/// Slots of a wheel of one level, and of each level of several.
const SLOTS: [u32; 2] = [4096, 64];
/// Outstanding timers.
const SIZES: [usize; 3] = [100, 10_000, 1_000_000];
/// What a batch times, in the order of [`Steady::batch`].
const TIMED: [&str; 3] = ["start", "stop", "tick"];

/// Time spent, and on how many calls.
#[derive(Clone, Copy, Default)]
struct Spent {
    time: Duration,
    calls: u64,
}

impl Spent {
    fn on(calls: usize, work: impl FnOnce()) -> Self {
        let started = Instant::now();
        work();
        Self {
            time: started.elapsed(),
            calls: calls as u64,
        }
    }
}

/// A scheme with a number of timers outstanding.
struct Steady<S> {
    scheme: S,
    /// Deadline and position of each timer. A position is `NONE` while the timer is stopped.
    timers: Vec<(Tick, Position)>,
    /// By deadline, modulo the length. Some of these timers were stopped, or started again for another deadline.
    calendar: Vec<Vec<u32>>,
    now: Tick,
    longest: Tick,
    random: fastrand::Rng,
}

impl<S: Scheme> Steady<S> {
    fn new(slots: u32, timers: usize, longest: Tick) -> Self {
        let mut steady = Self {
            scheme: S::new(slots, 0),
            timers: vec![(0, Position::NONE); timers],
            calendar: vec![Vec::new(); (longest + TICKS) as usize + 1],
            now: 0,
            longest,
            random: fastrand::Rng::with_seed(1987),
        };
        let mut deadlines = steady.timeouts(timers);
        // For the schemes that sort: each start then finds its place at once.
        deadlines.sort_unstable();
        for (id, deadline) in (0..).zip(deadlines) {
            steady.start(id, deadline);
            steady.note(id);
        }
        steady
    }

    /// This many timeouts.
    fn timeouts(&mut self, count: usize) -> Vec<Tick> {
        (0..count)
            .map(|_| 1 + self.random.u64(..self.longest))
            .collect()
    }

    fn start(&mut self, id: u32, deadline: Tick) {
        self.timers[id as usize].0 = deadline;
        let started = self.scheme.start(&mut self.timers, id, deadline, self.now);
        self.timers[id as usize].1 = started.expect("within the horizon").position;
    }

    fn stop(&mut self, id: u32) {
        let position = self.timers[id as usize].1;
        self.scheme.stop(&mut self.timers, position);
        self.timers[id as usize].1 = Position::NONE;
    }

    fn note(&mut self, id: u32) {
        let days = self.calendar.len() as Tick;
        self.calendar[(self.timers[id as usize].0 % days) as usize].push(id);
    }

    /// Does a batch. Returns what its starts, its stops and its ticks took.
    fn batch(&mut self) -> [Spent; 3] {
        let mut stopped = Vec::new();
        let until = self.now + TICKS;
        for tick in self.now + 1..=until {
            let day = (tick % self.calendar.len() as Tick) as usize;
            for id in std::mem::take(&mut self.calendar[day]) {
                let (deadline, position) = self.timers[id as usize];
                if deadline == tick && position != Position::NONE {
                    self.stop(id);
                    stopped.push(id);
                }
            }
        }
        let timers = self.timers.len() as u32;
        let mut victims = (0..VICTIMS)
            .map(|_| self.random.u32(..timers))
            .collect::<Vec<_>>();
        victims.retain(|&id| self.timers[id as usize].1 != Position::NONE);
        victims.sort_unstable();
        victims.dedup();
        let stops = Spent::on(victims.len(), || {
            victims.iter().for_each(|&id| self.stop(id));
        });
        let ticks = Spent::on(TICKS as usize, || {
            for tick in self.now + 1..=until {
                let fire = |_: &mut S, _: &mut _, id, _| panic!("{id} was stopped");
                self.scheme.advance(&mut self.timers, tick, fire);
            }
        });
        self.now = until;
        stopped.append(&mut victims);
        let deadlines = self.timeouts(stopped.len());
        let starts = Spent::on(stopped.len(), || {
            for (&id, timeout) in stopped.iter().zip(deadlines) {
                self.start(id, until + timeout);
            }
        });
        stopped.into_iter().for_each(|id| self.note(id));
        assert_eq!(self.scheme.len(), self.timers.len(), "all are started");
        [starts, stops, ticks]
    }

    /// Does batches with at least this many calls of a kind. Returns the time of this many.
    fn calls(&mut self, kind: usize, calls: u64) -> Duration {
        let mut sum = Spent::default();
        while sum.calls < calls {
            let spent = self.batch()[kind];
            sum.time += spent.time;
            sum.calls += spent.calls;
        }
        sum.time.mul_f64(calls as f64 / sum.calls as f64)
    }
}

/// Measures one kind of call of a scheme, with up to `most` timers.
fn measure<S: Scheme>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    (kind, longest): (usize, Tick),
    (name, slots, most): (&str, u32, usize),
) {
    for timers in SIZES.into_iter().filter(|&timers| timers <= most) {
        let mut steady = None;
        group.bench_function(BenchmarkId::new(name, timers), |bencher| {
            let steady = steady.get_or_insert_with(|| Steady::<S>::new(slots, timers, longest));
            bencher.iter_custom(|calls| steady.calls(kind, calls));
        });
    }
}

fn schemes(criterion: &mut Criterion) {
    const ALL: usize = usize::MAX;
    let [one, many] = SLOTS;
    for (kind, timed) in TIMED.into_iter().enumerate() {
        for longest in LONGEST {
            let mut group = criterion.benchmark_group(format!("{timed}, longest={longest}"));
            let scale = PlotConfiguration::default().summary_scale(AxisScale::Logarithmic);
            group.plot_config(scale).sample_size(10);
            group.warm_up_time(Duration::from_millis(200));
            group.measurement_time(Duration::from_millis(500));
            let (group, case) = (&mut group, (kind, longest));
            measure::<UnorderedList>(group, case, ("unordered_list", one, ALL));
            measure::<OrderedList>(group, case, ("ordered_list", one, 10_000));
            measure::<Heap>(group, case, ("heap", one, ALL));
            if longest < Tick::from(one) {
                measure::<SimpleWheel>(group, case, ("simple_wheel", one, ALL));
            }
            measure::<SortedHashedWheel>(group, case, ("sorted_hashed_wheel", one, ALL));
            measure::<HashedWheel>(group, case, ("hashed_wheel", one, ALL));
            measure::<SteppedWheel>(group, case, ("stepped_wheel", many, ALL));
            measure::<HierarchicalWheel>(group, case, ("hierarchical_wheel", many, ALL));
        }
    }
}

criterion_group!(benches, schemes);
criterion_main!(benches);
