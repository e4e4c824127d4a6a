//! Every way of running completions.

use anyhow::{Result, ensure};
use request_purgatory::{Completions, Job};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Does this with each of them. The purgatory must be gone when it returns.
pub(super) fn each(one: impl Fn(&str, Completions) -> Result<()>) -> Result<()> {
    one("own thread", Completions::OwnThread)?;
    let (pool, jobs) = channel();
    let workers = workers(jobs);
    one("executor", executor(pool))?;
    for worker in workers {
        ensure!(worker.join().is_ok(), "a worker panicked");
    }
    one("inline", Completions::Inline)
}

fn executor(pool: Sender<Job>) -> Completions {
    Completions::Executor(Arc::new(move |job| {
        // (The workers outlive the purgatory.)
        let _ = pool.send(job);
    }))
}

/// Two threads that run jobs until nobody can give them any.
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
