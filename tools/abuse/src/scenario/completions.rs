//! Every way of running completions.

use anyhow::{Result, ensure};
use request_purgatory::threads::Dispatch;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

/// Does this with each of them. The purgatory must be gone when it returns.
pub(super) fn each(one: impl Fn(&str, Dispatch) -> Result<()>) -> Result<()> {
    one("own thread", Dispatch::OwnThread)?;
    let (pool, jobs) = channel();
    let workers = workers(jobs);
    one("executor", executor(pool))?;
    for worker in workers {
        ensure!(worker.join().is_ok(), "a worker panicked");
    }
    one("inline", Dispatch::Inline)
}

fn executor(pool: Sender<Job>) -> Dispatch {
    Dispatch::Executor(Arc::new(move |job| {
        // The workers outlive the purgatory.
        let _ = pool.send(job);
    }))
}

/// Two threads that run jobs until every sender of jobs is dropped.
fn workers(jobs: Receiver<Job>) -> Vec<thread::JoinHandle<()>> {
    let jobs = Arc::new(Mutex::new(jobs));
    let worker = |_| {
        let jobs = jobs.clone();
        thread::spawn(move || {
            loop {
                let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                match job {
                    Ok(job) => job(),
                    Err(_) => return,
                }
            }
        })
    };
    (0..2).map(worker).collect()
}
