//! W3: a storm. Everything that is parked expires within the same 100 ms.
//!
//! Deadlines are whole milliseconds, spread evenly over the 100 in no order; each request has a
//! key of its own. The span goes from the first deadline to the last completion, so 100 ms is the
//! least. Every sixteenth ending is timed where it happens, which gives the lateness. The
//! processor time is the whole process's, from just before the first deadline to the last
//! completion.
//!
//! With several threads, each parks a part of the requests and has ended before the storm. (A candidate that needs the
//! thread that parked does not take part.)

use std::time::{Duration, Instant};

use super::ring::assert_empty;
use super::{Case, Contender, Workload, contenders, on_threads};
use crate::candidate::{BURST, Candidate};
use crate::candidates::{
    BTreeAndMap, DelayQueueAndMap, HeapAndMap, KafkaPort, Library, OnThreads, TmWheelAndMap,
    TokioIdiom,
};
use crate::options::Options;
use crate::outcome::{Metric, Values, histogram};
use crate::process::cpu_time;
use crate::request::{Flag, Request, ended_at};

/// Milliseconds over which the deadlines are spread.
const WINDOW: usize = 100;

/// A number prime to it, so that neighbours are far apart.
const STRIDE: usize = 61;

/// One ending in this many is timed.
const SAMPLE: usize = 16;

/// How often the endings are looked at, and with what precision the span is known.
const LOOK: Duration = Duration::from_micros(250);

/// What must be left of the lead when the last request is parked.
const CALM: Duration = Duration::from_millis(100);

/// When the watch lists are still not empty, the candidate is one that cleans up when told to.
const GIVE_UP: Duration = Duration::from_secs(3);

pub(crate) struct W3 {
    parked: usize,
    /// Threads that park them.
    threads: usize,
    /// From the first park to the first deadline.
    lead: Duration,
}

impl W3 {
    fn round<C: Candidate>(&self) -> Values {
        if C::HAS_EXECUTOR && self.threads > 1 {
            return vec![f64::NAN; Self::METRICS.len()];
        }
        let mut lead = self.lead;
        loop {
            let candidate = C::new();
            let values = candidate.drive(self.storm(&candidate, lead));
            assert_empty(&candidate);
            match values {
                Some(values) => return values,
                None => lead *= 2,
            }
        }
    }

    /// `None` if parking them took longer than the lead.
    async fn storm<C: Candidate>(&self, candidate: &C, lead: Duration) -> Option<Values> {
        let flags = Flag::board(self.parked);
        let first = Instant::now() + lead;
        let deadlines = if self.threads == 1 {
            park(candidate, flags, 0, first).await
        } else {
            // Each begins with one that is timed.
            let part = flags.len().div_ceil(self.threads).next_multiple_of(SAMPLE);
            let parts: Vec<_> = flags.chunks(part).zip((0..).step_by(part)).collect();
            let parkers = parts.into_iter().map(|(flags, begin)| {
                move || candidate.drive(park(candidate, flags, begin, first))
            });
            on_threads(parkers).concat()
        };
        candidate.turn().await;
        let in_time = first.saturating_duration_since(Instant::now()) >= CALM;
        let before = first - Duration::from_millis(2);
        candidate
            .rest(before.saturating_duration_since(Instant::now()))
            .await;
        let cpu = cpu_time();
        let mut left = flags;
        while !left.is_empty() {
            let ended = left.iter().take_while(|flag| flag.has_ended()).count();
            left = &left[ended..];
            if !left.is_empty() {
                candidate.rest(LOOK).await;
            }
        }
        let (last, cpu) = (Instant::now(), cpu_time() - cpu);
        let expired = flags.iter().filter(|flag| flag.is_expired()).count();
        assert_eq!(expired, self.parked, "{}: each expires once", C::NAME);

        let mut gone = None;
        while gone.is_none() && last.elapsed() < GIVE_UP {
            if candidate.watched() == 0 {
                gone = Some(Instant::now() - first);
            } else {
                candidate.rest(LOOK).await;
            }
        }
        let mut lateness = histogram();
        for (number, &deadline) in (0..).zip(&deadlines) {
            let ended = ended_at(number).expect("it was timed");
            assert!(ended >= deadline, "{}: early", C::NAME);
            lateness.saturating_record((ended - deadline).as_nanos() as u64);
        }
        let millis = |span: Duration| span.as_secs_f64() * 1e3;
        in_time.then(|| {
            vec![
                millis(last - first),
                cpu.as_nanos() as f64 / self.parked as f64,
                lateness.value_at_quantile(0.5) as f64 / 1e6,
                lateness.value_at_quantile(0.99) as f64 / 1e6,
                lateness.max() as f64 / 1e6,
                gone.map_or(f64::NAN, millis),
            ]
        })
    }
}

/// Parks a request on each of the flags, of which the first is number `begin`. Returns the deadlines of those that are
/// timed.
async fn park<C: Candidate>(
    candidate: &C,
    flags: &'static [Flag],
    begin: usize,
    first: Instant,
) -> Vec<Instant> {
    let mut deadlines = Vec::with_capacity(flags.len().div_ceil(SAMPLE));
    for (index, flag) in (begin..).zip(flags) {
        if index % BURST == 0 {
            candidate.turn().await;
        }
        let due = first + Duration::from_millis((index * STRIDE % WINDOW) as u64);
        let now = Instant::now();
        // In whole milliseconds, as timeouts are here: up to one before `due`.
        let timeout = Duration::from_millis((due - now).as_millis() as u64);
        let request = if index % SAMPLE == 0 {
            deadlines.push(now + timeout);
            Request::timed((index / SAMPLE) as u32, flag, timeout)
        } else {
            Request::new(index as u32, flag, timeout)
        };
        let completed = candidate.park(request, &[C::key(index)]);
        assert!(!completed, "{}: it was not ready", C::NAME);
    }
    deadlines
}

impl Workload for W3 {
    const NAME: &'static str = "W3";

    const TITLE: &'static str = "everything parked expires within the same 100 ms";

    const METRICS: &'static [Metric] = &[
        Metric::less("first deadline to last completion", "ms"),
        Metric::less("CPU per request", "ns"),
        Metric::less("late p50", "ms"),
        Metric::less("late p99", "ms"),
        Metric::less("late max", "ms"),
        Metric::less("until no watch is left", "ms"),
    ];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let parked = options.scale.pick(1_000_000, 200_000, 2_000);
        let case = |threads: Option<usize>| {
            let mut parameters = vec![("parked", parked)];
            parameters.extend(threads.map(|threads| ("threads", threads)));
            // With many cases a shorter one, which is enough for most candidates. (So one thread that was named is not the
            // case without a name.)
            let full = if threads.is_none() { 4_000 } else { 1_500 };
            let lead = options.scale.pick(full, 700, 200);
            Case {
                parameters,
                workload: Self {
                    parked,
                    threads: threads.unwrap_or(1),
                    lead: Duration::from_millis(lead),
                },
            }
        };
        options
            .named_threads(|_| true)
            .into_iter()
            .map(case)
            .collect()
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![new, round:
            Library,
            TmWheelAndMap,
            BTreeAndMap,
            HeapAndMap,
            DelayQueueAndMap,
            KafkaPort,
            TokioIdiom,
            TokioIdiom<OnThreads>,
            #[cfg(tokio_unstable)] TokioIdiom<crate::candidates::AltTimer>,
        ]
    }
}
