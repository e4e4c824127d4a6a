//! W4: Kafka's `TestPurgatoryPerformance`.
//!
//! Requests arrive at random (Poisson) at a given rate, each under 3 of 100 keys, with a timeout of
//! 200 ms; another thread completes them by handle after a log-normal time. The value is the
//! process's time per 1,000 requests, less what the harness takes without any candidate (the
//! contender of that name, in the same round).
//!
//! Beside it stands what each thread used: that on which requests arrive, the one that completes them, the one that
//! drives the candidate's timer, and the one on which its expired requests complete. The hand-made peers have no thread
//! of the last kind: they complete on the timer's thread, where a slow completion would delay every other expiry; and
//! they keep no order of arrival and no counters. The port and the library have one. The tasks of `tokio_idiom` run
//! where their requests arrive.
//!
//! With more than two threads, half of them park and half complete, in pairs. Each pair has requests of its own, at the
//! rate that the case names. All use the same 100 keys.
//!
//! The port without its purge does not take part: as no thread checks a key here, it would keep every
//! request for ever and never pay for it.
//!
//! The case without a rate looks for the highest that is sustained: where neither of the two
//! threads falls behind and everything ends in time. It doubles, and then halves the gap.

mod script;
mod traffic;

use std::time::Duration;

use self::script::{Latency, Script, TIMEOUT};
use self::traffic::Run;
use super::{Case, Contender, Workload, contenders};
use crate::candidate::{ByHandle, Candidate};
use crate::candidates::{
    BTreeAndMap, DelayQueueAndMap, Harness, KafkaPort, Library, TmWheelAndMap, TokioIdiom,
};
use crate::options::Options;
use crate::outcome::{Metric, Outcome, Values};

/// The ramp's first rate and its last, per second.
const LOWEST: usize = 100_000;
const HIGHEST: usize = 4_000_000;

/// At a rate that is sustained nothing is later than this.
const LATEST: Duration = Duration::from_millis(50);
const LATEST_ENDING: Duration = Duration::from_millis(200);

pub(crate) struct W4 {
    /// Each on its thread, and another thread that completes them.
    arrivers: usize,
    /// Of each arriver, per second; `None` to look for the highest.
    rate: Option<usize>,
    latency: Latency,
    span: Duration,
    highest: usize,
    /// How often the ramp halves the gap between what was sustained and what was not.
    halvings: usize,
}

const NET: usize = 0;
const GROSS: usize = 1;
const EXPIRED: usize = 2;
const BEHIND: usize = 3;
const HIGHEST_RATE: usize = 4;
/// For each of [`Run::threads`] its processor time, and then for each how often it slept.
const THREADS: usize = 5;

impl W4 {
    fn round<C: ByHandle>(&self) -> Values {
        let mut values = vec![f64::NAN; Self::METRICS.len()];
        match self.rate {
            Some(rate) => {
                let run = self.run::<C>(rate);
                let share = |part: usize| part as f64 / run.arrived as f64;
                values[GROSS] = run.cpu.as_secs_f64() * 1e6 / run.arrived as f64;
                values[EXPIRED] = share(run.expired) * 100.0;
                values[BEHIND] = run.behind.as_secs_f64() * 1e3;
                let (cpu, sleeps) = values[THREADS..].split_at_mut(run.threads.len());
                for ((used, cpu), sleeps) in run.threads.iter().zip(cpu).zip(sleeps) {
                    let Some(used) = used else { continue };
                    *cpu = used.cpu.as_secs_f64() * 1e6 / run.arrived as f64;
                    *sleeps = used.sleeps as f64 / run.took.as_secs_f64();
                }
            }
            None => {
                let highest = self.arrivers * self.highest_rate::<C>();
                values[HIGHEST_RATE] = highest as f64 / 1e3;
            }
        }
        values
    }

    fn run<C: ByHandle>(&self, rate: usize) -> Run {
        let scripts = (0..self.arrivers as u64)
            .map(|number| Script::new(number, rate, self.span, self.latency));
        traffic::run::<C>(&scripts.collect::<Vec<_>>())
    }

    fn highest_rate<C: ByHandle>(&self) -> usize {
        let (mut good, mut bad) = (0, LOWEST);
        while bad <= self.highest && self.sustains::<C>(bad) {
            (good, bad) = (bad, bad * 2);
        }
        if bad > self.highest {
            return good;
        }
        for _ in 0..self.halvings {
            let between = usize::midpoint(good, bad);
            if self.sustains::<C>(between) {
                good = between;
            } else {
                bad = between;
            }
        }
        good
    }

    /// In one of two attempts: the machine may have had something else to do.
    fn sustains<C: ByHandle>(&self, rate: usize) -> bool {
        (0..2).any(|_| {
            let run = self.run::<C>(rate);
            let ends_in_time = !C::EXPIRES || run.tail < TIMEOUT + LATEST_ENDING;
            !run.overloaded && run.behind < LATEST && ends_in_time
        })
    }
}

impl Workload for W4 {
    const NAME: &'static str = "W4";

    const TITLE: &'static str = "Kafka's purgatory benchmark: random arrivals, completed by handle";

    const METRICS: &'static [Metric] = &[
        Metric::less("CPU per 1,000 requests", "ms"),
        Metric::note("harness included", "ms"),
        Metric::note("expired", "%"),
        Metric::note("behind", "ms"),
        Metric::more("highest rate sustained", "k requests/s"),
        Metric::note("arriver", "ms"),
        Metric::note("completer", "ms"),
        Metric::note("timer", "ms"),
        Metric::note("completions", "ms"),
        Metric::note("arriver sleeps", "/s"),
        Metric::note("completer sleeps", "/s"),
        Metric::note("timer sleeps", "/s"),
        Metric::note("completions sleeps", "/s"),
    ];

    /// Single runs of one candidate differ by a half.
    const ROUNDS: usize = 11;

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let seconds = options
            .seconds
            .map(|seconds| Duration::from_secs(seconds as u64));
        let millis = Duration::from_millis;
        let span = seconds.unwrap_or(millis(options.scale.pick(3_000, 600, 100)));
        let rates: &[usize] = options.rates.as_deref().unwrap_or(options.scale.pick(
            &[50_000, 100_000, 200_000, 500_000],
            &[50_000, 200_000],
            &[5_000],
        ));
        let short = Latency {
            median: millis(20),
            third_quartile: millis(60),
        };
        let long = Latency {
            median: millis(200),
            third_quartile: millis(400),
        };
        let latencies = options
            .scale
            .pick(vec![short, long], vec![short], vec![long]);
        let halvings = options.scale.pick(3, 2, 0);
        let mut cases = Vec::new();
        for threads in options.named_threads(|threads| threads % 2 == 0) {
            let arrivers = threads.map_or(1, |threads| threads / 2);
            let parameters = |latency: Latency| {
                let mut parameters = vec![("median_ms", latency.median.as_millis() as usize)];
                parameters.extend(threads.map(|threads| ("threads", threads)));
                parameters
            };
            for &latency in &latencies {
                cases.extend(rates.iter().map(|&rate| Case {
                    parameters: [parameters(latency), vec![("rate", rate)]].concat(),
                    workload: Self {
                        arrivers,
                        rate: Some(rate),
                        latency,
                        span,
                        highest: HIGHEST,
                        halvings,
                    },
                }));
            }
            if options.rates.is_some() {
                continue;
            }
            cases.push(Case {
                parameters: parameters(short),
                workload: Self {
                    arrivers,
                    rate: None,
                    latency: short,
                    span: millis(options.scale.pick(1_500, 300, 20)),
                    highest: options.scale.pick(HIGHEST, HIGHEST, LOWEST),
                    halvings,
                },
            });
        }
        cases
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![by_handle, round:
            Harness,
            Library,
            TmWheelAndMap,
            BTreeAndMap,
            DelayQueueAndMap,
            KafkaPort,
            TokioIdiom,
        ]
    }

    /// Takes the harness's time off.
    fn finish(outcomes: &mut [Outcome]) {
        let harness: Vec<_> = outcomes
            .iter()
            .filter(|outcome| outcome.candidate == Harness::NAME)
            .map(|outcome| {
                let gross: Vec<f64> = outcome.values(GROSS).collect();
                (outcome.parameters.clone(), gross)
            })
            .collect();
        for outcome in outcomes {
            let same = |(parameters, _): &&(_, _)| *parameters == outcome.parameters;
            let Some((_, gross)) = harness.iter().find(same) else {
                continue;
            };
            if outcome.candidate == Harness::NAME {
                continue;
            }
            for (round, gross) in outcome.rounds.iter_mut().zip(gross) {
                round[NET] = round[GROSS] - gross;
            }
        }
    }
}
