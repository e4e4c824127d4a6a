//! handles: completing by handle, on several threads with requests of their own.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::ring::{TIMEOUT, assert_empty};
use super::{Case, Contender, Workload, contenders, on_threads};
use crate::candidate::ByHandle;
use crate::candidates::{BTreeAndMap, DelayQueueAndMap, KafkaPort, Library, TmWheelAndMap};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::request::{Flag, Request};

/// Few enough to stay in the processor's cache.
const AT_ONCE: usize = 1_000;

/// Looks for the other threads before the core is offered to them: there may be fewer cores than threads.
const SPINS: usize = 10_000;

pub(crate) struct Handles {
    threads: usize,
    /// How often each thread parks its requests and completes them.
    turns: usize,
}

/// Where the threads meet. They do not sleep there: waking up takes as long as all calls of a turn.
struct Meeting {
    threads: usize,
    came: AtomicUsize,
}

impl Meeting {
    /// For the `number`th time, from 1 on.
    fn meet(&self, number: usize) {
        // ORDERING: what each thread did before is over for those that have met.
        self.came.fetch_add(1, Ordering::AcqRel);
        let mut looks = 0;
        while self.came.load(Ordering::Acquire) < number * self.threads {
            looks += 1;
            if looks % SPINS == 0 {
                thread::yield_now();
            }
            spin_loop();
        }
    }
}

impl Handles {
    /// What a call takes on each of the threads, in nanoseconds.
    fn round<C: ByHandle>(&self) -> Values {
        let candidate = C::new();
        let board = Flag::board(self.threads * AT_ONCE);
        let meeting = Meeting {
            threads: self.threads,
            came: AtomicUsize::new(0),
        };
        let boards = board.chunks(AT_ONCE).zip((0..).step_by(AT_ONCE));
        let spent: Vec<Duration> = on_threads(boards.map(|(flags, first_key)| {
            let (candidate, meeting) = (&candidate, &meeting);
            move || candidate.drive(self.spend(candidate, flags, first_key, meeting))
        }));
        let spent: Duration = spent.iter().sum();
        assert_empty(&candidate);
        let calls = self.threads * self.turns * AT_ONCE;
        vec![spent.as_nanos() as f64 / calls as f64]
    }

    /// What the calls of one thread take, while the others make theirs.
    async fn spend<C: ByHandle>(
        &self,
        candidate: &C,
        flags: &'static [Flag],
        first_key: usize,
        meeting: &Meeting,
    ) -> Duration {
        let mut spent = Duration::ZERO;
        for turn in 0..self.turns {
            let mut handles = Vec::with_capacity(AT_ONCE);
            for (number, flag) in flags.iter().enumerate() {
                flag.reset();
                let request = Request::new(number as u32, flag, TIMEOUT);
                let handle = candidate.park_for_handle(request, &[C::key(first_key + number)]);
                handles.push(handle.expect("it was not ready"));
                flag.mark_completable();
            }
            meeting.meet(2 * turn + 1);
            let started = Instant::now();
            for handle in handles {
                assert!(candidate.force_complete(handle), "{}", C::NAME);
            }
            spent += started.elapsed();
            meeting.meet(2 * turn + 2);
            assert!(flags.iter().all(Flag::is_satisfied), "{}", C::NAME);
        }
        spent
    }
}

impl Workload for Handles {
    const NAME: &'static str = "handles";

    const TITLE: &'static str = "completing by handle, on several threads";

    const METRICS: &'static [Metric] = &[Metric::less("force_complete", "ns")];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let calls = options.lives().div_ceil(options.rounds_of(Self::ROUNDS));
        let case = |threads: usize| Case {
            parameters: vec![("threads", threads)],
            workload: Self {
                threads,
                turns: calls.div_ceil(AT_ONCE),
            },
        };
        options.threads().into_iter().map(case).collect()
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![by_handle, round:
            Library,
            TmWheelAndMap,
            BTreeAndMap,
            DelayQueueAndMap,
            KafkaPort,
        ]
    }
}
