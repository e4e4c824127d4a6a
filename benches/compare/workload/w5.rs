//! W5: the tail of the park call, while what was parked long ago expires.
//!
//! The given number are parked at once, then 100,000 come each second for longer than their constant
//! timeout; nothing completes. Each call is timed. (Where an executor shares the thread, its turn
//! counts with the call that it delays.)
//!
//! One comes in every 10 µs, at a random moment. If they came evenly, the system's timer tick, whose
//! period is a multiple of 10 µs, would fall into no park call of one run and into each 400th of
//! another: a tick takes 15 to 30 µs, so the 99.9th percentile would show the phase of the tick.
//!
//! Between the calls the thread does nothing but read the clock, and what it misses then is what
//! the machine does to any thread: the same percentiles of windows as long as a park call.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::ring::assert_empty;
use super::{Case, Contender, Workload, contenders};
use crate::candidate::{BURST, Candidate};
use crate::candidates::{
    BTreeAndMap, DelayQueueAndMap, KafkaPort, Library, TmWheelAndMap, TokioIdiom,
};
use crate::options::Options;
use crate::outcome::{Metric, Values, histogram};
use crate::request::{Flag, Request};

/// An idle thread's windows: about as long as a park call.
const WINDOW: Duration = Duration::from_nanos(300);

pub(crate) struct W5 {
    parked: usize,
    rate: usize,
    timeout: Duration,
    span: Duration,
}

struct Measured {
    parks: Histogram<u64>,
    idle: Histogram<u64>,
}

impl W5 {
    fn round<C: Candidate>(&self) -> Values {
        let candidate = C::new();
        let arriving = (self.rate as f64 * self.span.as_secs_f64()) as usize;
        let flags = Flag::board(self.parked + arriving);
        let measured = candidate.drive(async {
            for index in 0..self.parked {
                self.park(&candidate, flags, index);
                if index % BURST == 0 {
                    candidate.turn().await;
                }
            }
            let measured = self.arrive(&candidate, flags).await;
            let expired = end_all(&candidate, flags).await;
            assert!(expired > 0 || self.span < self.timeout, "{}", C::NAME);
            measured
        });
        assert_empty(&candidate);
        let Measured { parks, idle } = measured;
        let nanos = [
            parks.value_at_quantile(0.5),
            parks.value_at_quantile(0.99),
            parks.value_at_quantile(0.999),
            parks.max(),
            idle.value_at_quantile(0.999),
            idle.max(),
        ];
        nanos.map(|nanos| nanos as f64 / 1e3).to_vec()
    }

    fn park<C: Candidate>(&self, candidate: &C, flags: &'static [Flag], index: usize) {
        let request = Request::new(index as u32, &flags[index], self.timeout);
        let completed = candidate.park(request, &[C::key(index)]);
        assert!(!completed, "{}: it was not ready", C::NAME);
    }

    async fn arrive<C: Candidate>(&self, candidate: &C, flags: &'static [Flag]) -> Measured {
        let mut measured = Measured {
            parks: histogram(),
            idle: histogram(),
        };
        let start = Instant::now();
        let gap = Duration::from_secs(1) / self.rate as u32;
        let mut random = fastrand::Rng::with_seed(1987);
        let mut now = start;
        for (number, index) in (self.parked..flags.len()).enumerate() {
            let moment = Duration::from_nanos(random.u64(..gap.as_nanos() as u64));
            let due = start + gap * number as u32 + moment;
            let mut window = now;
            while now < due {
                now = Instant::now();
                if now - window >= WINDOW {
                    let idle = (now - window).as_nanos() as u64;
                    measured.idle.saturating_record(idle);
                    window = now;
                }
            }
            let before = now;
            self.park(candidate, flags, index);
            if index % BURST == 0 {
                candidate.turn().await;
            }
            now = Instant::now();
            let took = (now - before).as_nanos() as u64;
            measured.parks.saturating_record(took);
        }
        measured
    }
}

/// Completes what has not expired, and counts everything. Returns how many have.
async fn end_all<C: Candidate>(candidate: &C, flags: &'static [Flag]) -> usize {
    for (index, flag) in flags.iter().enumerate() {
        if flag.try_mark_completable() {
            candidate.check(C::key(index));
        }
        if index % BURST == 0 {
            candidate.turn().await;
        }
    }
    while !flags.iter().all(Flag::has_ended) {
        candidate.rest(Duration::from_millis(1)).await;
    }
    let satisfied = flags.iter().filter(|flag| flag.is_satisfied()).count();
    let expired = flags.iter().filter(|flag| flag.is_expired()).count();
    assert_eq!(satisfied + expired, flags.len(), "{}: each once", C::NAME);
    expired
}

impl Workload for W5 {
    const NAME: &'static str = "W5";

    const TITLE: &'static str = "the tail of the park call";

    const METRICS: &'static [Metric] = &[
        Metric::less("p50", "µs"),
        Metric::less("p99", "µs"),
        Metric::less("p99.9", "µs"),
        Metric::less("max", "µs"),
        Metric::note("idle p99.9", "µs"),
        Metric::note("idle max", "µs"),
    ];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let scale = options.scale;
        let millis = Duration::from_millis;
        let seconds = options
            .seconds
            .map(|seconds| Duration::from_secs(seconds as u64));
        let workload = Self {
            parked: scale.pick(1_000_000, 50_000, 1_000),
            rate: scale.pick(100_000, 100_000, 10_000),
            timeout: millis(scale.pick(30_000, 500, 50)),
            span: seconds.unwrap_or(millis(scale.pick(70_000, 1_500, 150))),
        };
        vec![Case {
            parameters: vec![
                ("parked", workload.parked),
                ("rate", workload.rate),
                ("span_ms", workload.span.as_millis() as usize),
            ],
            workload,
        }]
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![new, round:
            Library,
            TmWheelAndMap,
            BTreeAndMap,
            DelayQueueAndMap,
            KafkaPort,
            TokioIdiom,
        ]
    }
}
