//! A job queue with competing workers: each job goes to one worker, and a job that a worker dropped goes to another.
//!
//! ```text
//! cargo run --release -p examples --bin job_queue
//! ```
//!
//! A worker that finds no job waits in [`Waits`]; a push checks the key. Taking a job is the predicate itself, so a job
//! that was found is already out of the queue when the worker's future resolves. That is why it travels in a [`Taken`]:
//! if the worker is aborted before it saw the job, or gives the job up, dropping the guard puts the job back.

use request_purgatory::future::{WaitError, WaitOperation};
use request_purgatory::purgatory::WeakPurgatory;
use request_purgatory::{Purgatory, Waits};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

const JOBS: usize = 20_000;
const WORKERS: usize = 8;

/// All workers wait on one key. A queue per tenant would have the tenant's name here.
type Key = &'static str;
const QUEUE: Key = "jobs";

struct Job {
    number: usize,
    pushed: Instant,
}

/// What is parked holds the jobs, and must not keep the purgatory running: hence two parts, and a weak handle.
#[derive(Clone)]
struct Queue {
    jobs: Arc<Mutex<VecDeque<Job>>>,
    idle: Waits<Key>,
}

impl Queue {
    fn push(&self, job: Job) {
        self.jobs.lock().unwrap().push_back(job);
        self.idle.check_and_complete(QUEUE); // without the lock
    }

    /// Waits for a job for at most `timeout`.
    async fn take(&self, timeout: Duration) -> Result<Taken, WaitError> {
        let (jobs, idle) = (self.jobs.clone(), self.idle.downgrade());
        let take = move || {
            let job = jobs.lock().unwrap().pop_front()?;
            Some(Taken {
                job: Some(job),
                jobs: jobs.clone(),
                idle: idle.clone(),
            })
        };
        self.idle.wait([QUEUE], timeout, take).await
    }
}

/// A job that one worker has, until it is done or dropped.
struct Taken {
    job: Option<Job>,
    jobs: Arc<Mutex<VecDeque<Job>>>,
    idle: WeakPurgatory<WaitOperation<Key>>,
}

impl Taken {
    /// The work is done: the job does not go back.
    fn done(mut self) -> Option<Job> {
        self.job.take()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(job) = self.job.take() else { return };
        self.jobs.lock().unwrap().push_front(job);
        if let Some(idle) = self.idle.upgrade() {
            idle.check_and_complete(QUEUE); // another worker may have it
        }
    }
}

/// What a worker did with a job.
struct Done {
    worker: usize,
    number: usize,
    waited: Duration,
}

async fn work(worker: usize, queue: Queue, results: UnboundedSender<Done>) {
    let mut attempts = 0;
    loop {
        match queue.take(Duration::from_secs(30)).await {
            Ok(taken) => {
                attempts += 1;
                let job = match attempts % 100 {
                    0 => continue, // it failed: `taken` is dropped, and another attempt follows
                    _ => taken.done(),
                };
                let Some(Job { number, pushed }) = job else {
                    continue;
                };
                let waited = pushed.elapsed();
                let _ = results.send(Done {
                    worker,
                    number,
                    waited,
                }); // the queue may be closing
                tokio::task::yield_now().await;
            }
            Err(WaitError::Expired) => {} // nothing to do for so long
            Err(_) => return,             // shut down
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let queue = Queue {
        jobs: Arc::default(),
        idle: Purgatory::builder("jobs").build()?,
    };
    let (results, mut done) = unbounded_channel();
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        workers.spawn(work(worker, queue.clone(), results.clone()));
    }

    let start = Instant::now();
    for number in 0..JOBS {
        let pushed = Instant::now();
        queue.push(Job { number, pushed });
        if number % 50 == 0 {
            // One more worker, which is aborted at any point: it waits, or a job is already in its future.
            let unlucky = queue.clone();
            let unlucky = tokio::spawn(async move { drop(unlucky.take(Duration::MAX).await) });
            tokio::time::sleep(Duration::from_millis(1)).await;
            unlucky.abort();
        }
    }
    let mut shares = [0; WORKERS];
    let (mut numbers, mut waits) = (Vec::new(), Vec::new());
    while numbers.len() < JOBS {
        let Done {
            worker,
            number,
            waited,
        } = done.recv().await.ok_or("the workers have ended")?;
        shares[worker] += 1;
        numbers.push(number);
        waits.push(waited);
    }
    let took = start.elapsed();
    let idle = queue.idle.clone();
    tokio::task::spawn_blocking(move || idle.shutdown()).await?; // joins threads; every worker ends
    workers.join_all().await;

    numbers.sort_unstable();
    waits.sort_unstable();
    println!("{JOBS} jobs, each done once by one of {WORKERS} workers, in {took:.1?}");
    println!("jobs for each worker: {shares:?}");
    println!(
        "from push to worker: p50 {:.1?}, p99 {:.1?}",
        waits[JOBS / 2],
        waits[JOBS * 99 / 100]
    );
    assert!(
        numbers.into_iter().eq(0..JOBS),
        "a job was lost or done twice"
    );
    assert!(done.try_recv().is_err() && queue.jobs.lock().unwrap().is_empty());
    Ok(())
}
