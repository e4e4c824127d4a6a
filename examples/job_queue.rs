//! A job queue with competing workers: each job goes to one worker, and a job whose worker dies in it goes to another.
//!
//! ```text
//! cargo run --release -p examples --bin job_queue
//! ```
//!
//! A worker waits by [`Waits`]' `take`, which gives it a guard of the job. While jobs are pushed, a hundred workers are
//! aborted at random moments: while they wait, with a job that they never saw, or in the middle of one. Whichever guard
//! is dropped puts its job back at the front of the queue, for the next worker. Between the effect of a job and its
//! `done()` nothing is awaited, so no job is done twice.

use request_purgatory::future::{Taken, WaitError};
use request_purgatory::{CheckBound, Waits};
use std::collections::VecDeque;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const JOBS: usize = 1_000;
const WORKERS: usize = 8;
const ABORTS: usize = 100;
/// All workers wait for this key. With a queue for each tenant, the key would be the tenant.
const QUEUE: u32 = 0;

/// Its number, and when it was pushed.
type Job = (usize, Instant);

struct Queue {
    jobs: Arc<Mutex<VecDeque<Job>>>,
    idle: Waits<u32>,
    /// How often each job was begun, and how often it was done.
    begun: Vec<AtomicUsize>,
    done: Vec<AtomicUsize>,
}

impl Queue {
    fn push(&self, job: Job) {
        self.jobs.lock().unwrap().push_back(job);
        // Without the lock. One job needs one worker: the one that has waited longest.
        self.idle
            .check_and_complete_with(&QUEUE, CheckBound::at_most(1));
    }

    /// Waits for a job, for at most half a minute.
    async fn take(&self) -> Result<Taken<Job>, WaitError> {
        let (takes, returns) = (self.jobs.clone(), self.jobs.clone());
        let take = self.idle.take(
            [QUEUE],
            Duration::from_secs(30),
            move |_| takes.lock().unwrap().pop_front(),
            move |job| returns.lock().unwrap().push_front(job),
        );
        take.await
    }

    async fn work(self: Arc<Self>) {
        loop {
            let job = match self.take().await {
                Ok(job) => job,
                Err(WaitError::Expired) => continue, // no job for so long
                Err(_) => return,                    // shut down
            };
            self.begun[job.0].fetch_add(1, Relaxed);
            tokio::time::sleep(Duration::from_millis(1)).await; // the work: an abort finds most workers here
            self.done[job.0].fetch_add(1, Relaxed); // its effect
            job.done();
        }
    }

    fn total(counts: &[AtomicUsize]) -> usize {
        counts.iter().map(|count| count.load(Relaxed)).sum()
    }
}

/// Any number below `limit`.
fn random(limit: u64) -> u64 {
    RandomState::new().hash_one(limit) % limit
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let counts = || (0..JOBS).map(|_| AtomicUsize::new(0)).collect();
    let queue = Arc::new(Queue {
        jobs: Arc::default(),
        idle: Waits::new("jobs"),
        begun: counts(),
        done: counts(),
    });
    let spawn = || tokio::spawn(queue.clone().work());
    let mut workers = (0..WORKERS).map(|_| spawn()).collect::<Vec<_>>();
    let start = Instant::now();
    for number in 0..JOBS {
        queue.push((number, Instant::now()));
        if number % (JOBS / ABORTS) == 0 {
            tokio::time::sleep(Duration::from_micros(random(2_000))).await;
            let unlucky = &mut workers[random(WORKERS as u64) as usize];
            unlucky.abort();
            *unlucky = spawn();
        }
    }
    while Queue::total(&queue.done) < JOBS {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = start.elapsed();
    queue.idle.shutdown_async()?.await; // every worker ends
    for worker in workers {
        worker.await?;
    }
    let begun = Queue::total(&queue.begun);
    println!("{JOBS} jobs by {WORKERS} workers in {took:.1?}, {ABORTS} workers aborted");
    println!(
        "{} jobs were begun again, because their worker was aborted",
        begun - JOBS
    );
    let once = queue.done.iter().all(|done| done.load(Relaxed) == 1);
    println!("each job done once: {once}");
    assert!(once && queue.jobs.lock().unwrap().is_empty());
    Ok(())
}
