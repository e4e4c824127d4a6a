//! A job queue with competing workers: each job goes to one worker, and a job that a worker dropped goes to another.
//!
//! ```text
//! cargo run --release -p examples --bin job_queue
//! ```
//!
//! A worker waits by [`Waits`]' `take`: the job that a push took for a worker which was aborted before it saw the job
//! goes back to the front of the queue, and to the next worker. No job is lost, and none is done twice.

use request_purgatory::future::WaitError;
use request_purgatory::{Bound, Waits};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

const JOBS: usize = 20_000;
const WORKERS: usize = 8;
/// All workers wait for this key. With a queue for each tenant, the key would be the tenant.
const QUEUE: &str = "jobs";
/// Its number, and when it was pushed.
type Job = (usize, Instant);
/// Worker, number of the job, and how long that had been in the queue.
type Done = (usize, usize, Duration);

struct Queue {
    jobs: Arc<Mutex<VecDeque<Job>>>,
    idle: Waits<&'static str>,
}

impl Queue {
    fn push(&self, job: Job) {
        self.jobs.lock().unwrap().push_back(job);
        // Without the lock. One job needs one worker: the one that has waited longest.
        self.idle.check_and_complete_with(QUEUE, Bound::at_most(1));
    }

    /// Waits for a job for at most `timeout`. If the future is dropped, the job that it may have by then goes back.
    async fn take(&self, timeout: Duration) -> Result<Job, WaitError> {
        let (takes, returns) = (self.jobs.clone(), self.jobs.clone());
        let take_back = move |job| returns.lock().unwrap().push_front(job);
        let take = self.idle.take(
            [QUEUE],
            timeout,
            move |_| takes.lock().unwrap().pop_front(),
            take_back,
        );
        take.await
    }
}

async fn work(worker: usize, queue: Arc<Queue>, results: UnboundedSender<Done>) {
    for attempt in 1.. {
        match queue.take(Duration::from_secs(30)).await {
            Ok(job) if attempt % 100 == 0 => queue.push(job), // it failed
            Ok((job, pushed)) => _ = results.send((worker, job, pushed.elapsed())),
            Err(WaitError::Expired) => {} // no job for so long
            Err(_) => return,             // shut down
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (jobs, idle) = (Arc::default(), Waits::new("jobs"));
    let queue = Arc::new(Queue { jobs, idle });
    let (results, mut done) = unbounded_channel();
    let (mut workers, start) = (JoinSet::new(), Instant::now());
    for worker in 0..WORKERS {
        workers.spawn(work(worker, queue.clone(), results.clone()));
    }

    for number in 0..JOBS {
        queue.push((number, Instant::now()));
        if number % 50 == 0 {
            // One more worker, which is aborted while it waits, or has a job already that it never sees.
            let queue = queue.clone();
            let take = async move { queue.push(queue.take(Duration::MAX).await.unwrap()) };
            let unlucky = tokio::spawn(take);
            tokio::time::sleep(Duration::from_millis(1)).await;
            unlucky.abort();
        }
    }
    let (mut shares, mut numbers, mut waits) = ([0; WORKERS], Vec::new(), Vec::new());
    while numbers.len() < JOBS {
        let (worker, number, waited) = done.recv().await.ok_or("the workers have ended")?;
        shares[worker] += 1;
        numbers.push(number);
        waits.push(waited);
    }
    let took = start.elapsed(); // the unlucky workers take most of it
    queue.idle.shutdown_async()?.await; // every worker ends
    workers.join_all().await;
    numbers.sort_unstable();
    waits.sort_unstable();
    println!("{JOBS} jobs, each done once by one of {WORKERS} workers, in {took:.1?}");
    println!("jobs for each worker: {shares:?}");
    let (p50, p99) = (waits[JOBS / 2], waits[JOBS * 99 / 100]);
    println!("from push to worker: p50 {p50:.1?}, p99 {p99:.1?}");
    assert!(numbers.into_iter().eq(0..JOBS), "each job is done once");
    assert!(done.try_recv().is_err() && queue.jobs.lock().unwrap().is_empty());
    Ok(())
}
