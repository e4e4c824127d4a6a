//! The purgatory of a stage, and the threads that it leaves to its user: a reactor, an executor.

use super::{Operation, Stage};
use crate::panics::{self, lock};
use crate::plan::{Driver, Place};
use request_purgatory::{
    Purgatory, purgatory::BuildError, purgatory::WeakRef, threads::Dispatch, threads::Reaper,
    threads::ReaperThread, time::Clock, time::WakeFn,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// How often a polled purgatory is advanced; and for how long a reactor sleeps if nothing is due.
const POLL: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Helpers {
    pool: Option<Arc<Pool>>,
    threads: Vec<JoinHandle<()>>,
}

impl Helpers {
    /// Builds the purgatory of `stage`, and what it needs.
    pub(crate) fn start(
        stage: &Arc<Stage>,
        shared: &ReaperThread,
    ) -> Result<(Purgatory<Operation>, Self), BuildError> {
        let (plan, clock) = (&stage.plan, stage.clock);
        let mut builder = Purgatory::builder("soak")
            .clock(clock)
            .tick(plan.tick)
            .wheel_size(plan.wheel_size)
            .max_timeout(plan.max_timeout);
        if let Some(limit) = plan.max_parked {
            builder = builder.max_parked(limit);
        }
        let mut threads = Vec::new();
        let pool = (plan.place == Place::Executor).then(|| Pool::start(stage, &mut threads));
        match (plan.place, &pool) {
            (Place::Inline, _) => builder = builder.dispatch(Dispatch::Inline),
            (Place::OwnThread, _) => builder = builder.dispatch(Dispatch::OwnThread),
            (_, Some(pool)) => {
                let pool = pool.clone();
                builder =
                    builder.dispatch(Dispatch::Executor(Arc::new(move |job| pool.execute(job))));
            }
            (_, None) => {}
        }
        let (wake, woken) = channel();
        let purgatory = match plan.driver {
            Driver::Own => builder.build()?,
            Driver::Shared => builder.reaper(Reaper::Shared(shared.clone())).build()?,
            Driver::Reactor => {
                let waker = WakeFn::new(move || wake.send(()).is_ok());
                builder.reaper(Reaper::Reactor(waker)).build()?
            }
            Driver::Polled => builder.reaper(Reaper::Manual).build()?,
        };
        let driven = purgatory.downgrade();
        match plan.driver {
            Driver::Own | Driver::Shared => {}
            Driver::Reactor => threads.push(thread::spawn(move || react(&driven, clock, &woken))),
            Driver::Polled => threads.push(thread::spawn(move || poll(&driven))),
        }
        // Set once, here.
        let _ = stage.purgatory.set(purgatory.downgrade());
        stage.ledger.purgatories.add(1);
        Ok((purgatory, Self { pool, threads }))
    }

    /// Waits for the threads; the purgatory must be shut down or gone. False if one of them has panicked.
    pub(crate) fn finish(self) -> bool {
        if let Some(pool) = self.pool {
            drop(lock(&pool.jobs).take());
        }
        let ended = self.threads.into_iter().map(JoinHandle::join);
        ended.filter(Result::is_err).count() == 0
    }
}

fn react(driven: &WeakRef<Purgatory<Operation>>, clock: Instant, woken: &Receiver<()>) {
    while let Some(purgatory) = driven.upgrade().filter(|it| !it.is_shut_down()) {
        purgatory.advance();
        let next = purgatory.next_deadline();
        drop(purgatory);
        // No poll: if a wake-up is lost, operations must be seen to be late.
        let _ = match next {
            Some(next) => {
                let sleep = next.saturating_since(clock.now());
                woken.recv_timeout(sleep).is_ok()
            }
            None => woken.recv().is_ok(),
        };
        while woken.try_recv().is_ok() {}
    }
}

fn poll(driven: &WeakRef<Purgatory<Operation>>) {
    while let Some(purgatory) = driven.upgrade().filter(|it| !it.is_shut_down()) {
        purgatory.advance();
        drop(purgatory);
        thread::sleep(POLL);
    }
}

/// An executor of two threads, which is not always kind to its jobs.
pub(crate) struct Pool {
    jobs: Mutex<Option<Sender<Job>>>,
    stage: Weak<Stage>,
    count: crate::ledger::Count,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Pool {
    fn start(stage: &Arc<Stage>, threads: &mut Vec<JoinHandle<()>>) -> Arc<Self> {
        let (jobs, received) = channel::<Job>();
        let received = Arc::new(Mutex::new(received));
        for _ in 0..2 {
            let received = received.clone();
            threads.push(thread::spawn(move || {
                loop {
                    // A statement of its own: the next thread takes a job while this one runs.
                    let job = lock(&received).recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => return,
                    }
                }
            }));
        }
        Arc::new(Self {
            jobs: Mutex::new(Some(jobs)),
            stage: Arc::downgrade(stage),
            count: crate::ledger::Count::default(),
        })
    }
}

impl Pool {
    fn execute(&self, job: Job) {
        self.count.add(1);
        match self.count.read() % 101 {
            0 => job(),
            1 => drop(job),
            2 => {
                if let Some(stage) = self.stage.upgrade() {
                    panics::raise(|| stage.accounts.panics.add(1));
                }
            }
            _ => {
                let jobs = lock(&self.jobs).clone();
                if let Some(jobs) = jobs {
                    // Refused at the end of the stage: then it is dropped, and runs so.
                    let _ = jobs.send(job);
                }
            }
        }
    }
}
