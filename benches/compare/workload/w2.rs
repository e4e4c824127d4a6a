//! W2: timers alone, told the time.
//!
//! Either all are started at once with timeouts uniform in 1 ms to 60 s; or as many in each tick of 60 s, all with the
//! same timeout, as the operations of most servers have it. The clock goes tick by tick, and 95 % are stopped at a
//! random tick before their deadline. The values are times per operation; `sum` is everything divided by the number of
//! timers. A round is a process of its own, because tokio's paused clock would stay with later workloads.

use std::time::{Duration, Instant};

use super::{Case, Contender, Workload, contenders};
use crate::candidates::{
    BTree, HashWheel, Heap, ManualTimer, NexusQueue, NexusWheel, OwnWheel, PausedDelayQueue,
    TmWheel,
};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::process::clock_reading;
use crate::timer_queue::{Tick, TimerQueue};

/// The longest timeout, and how long timers of one timeout are started.
const SPAN: Tick = 60_000;

const STOPPED_PERCENT: u64 = 95;

pub(crate) struct W2 {
    timers: usize,
    one_timeout: Option<Tick>,
}

/// What happens to the timers, the same for all.
struct Script {
    /// By the tick in which they are started: that tick, and the deadline.
    timers: Vec<(Tick, Tick)>,
    /// By the tick after which they are stopped.
    stops: Vec<(Tick, u32)>,
    /// The last deadline.
    end: Tick,
}

impl Script {
    fn new(timers: usize, one_timeout: Option<Tick>) -> Self {
        let mut random = fastrand::Rng::with_seed(1987);
        let timer = |number: usize| match one_timeout {
            Some(timeout) => {
                let started = number as Tick * SPAN / timers as Tick;
                (started, started + timeout)
            }
            None => (0, 1 + random.u64(..SPAN)),
        };
        let timers: Vec<_> = (0..timers).map(timer).collect();
        let mut stops = Vec::new();
        for (id, &(started, deadline)) in (0..).zip(&timers) {
            if random.u64(..100) < STOPPED_PERCENT {
                stops.push((random.u64(started..deadline), id));
            }
        }
        stops.sort_unstable();
        let end = one_timeout.unwrap_or(0) + SPAN;
        Self { timers, stops, end }
    }
}

/// Time spent, in total.
#[derive(Default)]
struct Spent {
    starting: Duration,
    stopping: Duration,
    advancing: Duration,
    worst_advance: Duration,
}

impl W2 {
    fn round<Q: TimerQueue<u32>>(&self) -> Values {
        if Q::ONE_TIMEOUT.is_some() && Q::ONE_TIMEOUT != self.one_timeout {
            return vec![f64::NAN; Self::METRICS.len()];
        }
        let script = Script::new(self.timers, self.one_timeout);
        let ticks = script.end + Q::LATE;
        let spent = Q::with(|queue| run(queue, &script, ticks));
        // The harness's own: a reading of the clock for each tick and part.
        let over_all = |nanos: f64| Duration::from_nanos((nanos * ticks as f64) as u64);
        let reading = clock_reading();
        let overhead = over_all(reading + Q::overhead());
        let advancing = spent.advancing.saturating_sub(overhead);
        let starting = spent.starting.saturating_sub(over_all(reading));
        let stopping = spent.stopping.saturating_sub(over_all(reading));
        let per = |time: Duration, count: usize| time.as_nanos() as f64 / count as f64;
        let (timers, stopped) = (script.timers.len(), script.stops.len());
        vec![
            per(starting + stopping + advancing, timers),
            per(starting, timers),
            per(stopping, stopped),
            per(advancing, timers - stopped),
            spent.worst_advance.as_nanos() as f64 / 1e3,
        ]
    }
}

fn run<Q: TimerQueue<u32>>(mut queue: Q, script: &Script, ticks: Tick) -> Spent {
    let mut spent = Spent::default();
    let timers = script.timers.len();
    let mut tokens: Vec<Option<Q::Token>> = Vec::new();
    tokens.resize_with(timers, || None);
    let mut fired_at: Vec<Tick> = vec![0; timers];
    let mut starts = (0..).zip(&script.timers).peekable();
    let mut stops = script.stops.iter().peekable();
    let mut fired = Vec::new();
    for now in 0..=ticks {
        let before = Instant::now();
        if now > 0 {
            queue.advance(now, &mut |id| fired.push(id));
        }
        for id in fired.drain(..) {
            fired_at[id as usize] = now;
            let token = tokens[id as usize].take();
            queue.release(token.expect("neither stopped nor fired before"));
        }
        let advanced = Instant::now();
        while let Some((id, &(_, deadline))) = starts.next_if(|(_, timer)| timer.0 == now) {
            tokens[id as usize] = Some(queue.start(id, deadline));
        }
        let started = Instant::now();
        while let Some(&(_, id)) = stops.next_if(|(tick, _)| *tick == now) {
            let token = tokens[id as usize].take();
            queue.stop(token.expect("not fired before its deadline"));
        }
        spent.stopping += started.elapsed();
        spent.starting += started - advanced;
        spent.advancing += advanced - before;
        spent.worst_advance = spent.worst_advance.max(advanced - before);
    }

    assert_eq!(queue.len(), 0, "{}: nothing is left", Q::NAME);
    let expired = fired_at.iter().filter(|&&tick| tick > 0).count();
    assert_eq!(expired + script.stops.len(), timers, "{}", Q::NAME);
    for (&(_, deadline), &tick) in script.timers.iter().zip(&fired_at) {
        let in_time = (deadline..=deadline + Q::LATE).contains(&tick);
        assert!(tick == 0 || in_time, "{}: {deadline} at {tick}", Q::NAME);
    }
    spent
}

impl Workload for W2 {
    const NAME: &'static str = "W2";

    const TITLE: &'static str = "timers alone: started, 95 % stopped, the rest expired";

    const METRICS: &'static [Metric] = &[
        Metric::less("sum per timer", "ns"),
        Metric::less("start", "ns"),
        Metric::less("stop", "ns"),
        Metric::less("advancing per expiry", "ns"),
        Metric::less("worst advance", "µs"),
    ];

    const ALONE: bool = true;

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let timers = options.scale.pick(1_000_000, 200_000, 2_000);
        let case = |one_timeout: Option<Tick>| {
            let mut parameters = vec![("timers", timers)];
            parameters.extend(one_timeout.map(|timeout| ("timeout_ms", timeout as usize)));
            Case {
                parameters,
                workload: Self {
                    timers,
                    one_timeout,
                },
            }
        };
        vec![case(None), case(NexusQueue::<u32>::ONE_TIMEOUT)]
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![timer, round:
            OwnWheel<u32>,
            TmWheel<u32>,
            HashWheel,
            NexusWheel<u32>,
            NexusQueue<u32>,
            BTree<u32>,
            Heap<u32>,
            PausedDelayQueue<u32>,
            ManualTimer,
        ]
    }
}
