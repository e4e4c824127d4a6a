//! How often a timer with next to nothing to do wakes its thread.
//!
//! Two timers are started, one short and one long. A sleeper waits until the tick that the scheme names, advances to
//! it, and counts, until both have fired. A simple wheel cannot hold either.

use std::time::Instant;

use super::Workload;
use crate::candidates::{Named, all_schemes};
use crate::contest::{Case, Contender};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::scheme_timers::SchemeTimers;
use crate::timer_queue::Tick;

pub(crate) struct Idle {
    /// In ticks of 1 ms, the longer last.
    timeouts: [Tick; 2],
}

impl Idle {
    fn round<S: Named>(&self) -> Values {
        if self.timeouts[1] > S::SPAN {
            return vec![f64::NAN; Self::METRICS.len()];
        }
        let mut timers = SchemeTimers::<S>::new(self.timeouts.len());
        for (id, &timeout) in (0..).zip(&self.timeouts) {
            timers.start(id, timeout);
        }
        let (mut wakeups, mut fired) = (0_u64, 0);
        let began = Instant::now();
        while let Some(now) = timers.next_deadline() {
            wakeups += 1;
            timers.advance(now, |_, deadline| {
                assert_eq!(deadline, now, "{}: not in its tick", S::NAME);
                fired += 1;
            });
        }
        let elapsed = began.elapsed();
        assert_eq!(fired, self.timeouts.len(), "{}: both fire", S::NAME);
        vec![wakeups as f64, elapsed.as_nanos() as f64 / 1e3]
    }
}

impl Workload for Idle {
    const NAME: &'static str = "idle";

    const TITLE: &'static str = "wake-ups of a timer that is idle but for two timeouts";

    const METRICS: &'static [Metric] = &[
        Metric::less("wake-ups", "count"),
        Metric::note("all advances", "µs"),
    ];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        // 10 s and 10 h; in miniature, 10 s and a minute.
        let long = options.scale.pick(36_000_000, 36_000_000, 60_000);
        let timeouts = [10_000, long];
        vec![Case {
            parameters: vec![("short_ms", 10_000), ("long_ms", long as usize)],
            workload: Self { timeouts },
        }]
    }

    fn contenders() -> Vec<Contender<Self>> {
        all_schemes!(round)
    }
}
