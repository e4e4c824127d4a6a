//! A pool: 64 tasks share 8 connections, in the order in which they ask, and no connection is lost with its task.
//!
//! ```text
//! cargo run --release -p examples --bin connection_pool
//! ```
//!
//! A task takes a connection by [`Waits`]' `take`. The guard that it gets puts the connection back when it is dropped:
//! at the end of the work, or when the task is aborted, at work or before it has seen the connection. The next in the
//! queue gets it then. Each task is aborted once. At the end the program looks how often each was served, before whom.

use request_purgatory::Waits;
use request_purgatory::future::{Taken, WaitError};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CONNECTIONS: usize = 8;
const TASKS: usize = 64;
const GETS: usize = 300; // by each task, on average
const POOL: u32 = 0; // the key: with a pool for each of several databases, the database

/// How it was handed out: the number of this event, and whether that was at once, to a task that had not waited.
#[derive(Clone, Copy, Default)]
struct Connection {
    taken: u64,
    at_once: bool,
}

/// The numbers of the events in which a task asked and had its place in the queue, and how it was served.
type Served = (u64, u64, Connection);

struct Pool {
    idle: Arc<Mutex<VecDeque<Connection>>>,
    waits: Waits<u32>,
    events: Arc<AtomicU64>,
    gets: [AtomicUsize; TASKS],
    served: Mutex<Vec<Served>>,
}

impl Pool {
    /// A connection, as soon as those that asked before have had one. Dropping the guard gives it back. Of a connection
    /// that is broken the user says `done()`; then the user pushes a new one into `idle`, and checks the key.
    fn get(&self) -> impl Future<Output = Result<Taken<Connection>, WaitError>> + use<> {
        let (takes, returns, events) = (self.idle.clone(), self.idle.clone(), self.events.clone());
        self.waits.take(
            [POOL],
            Duration::from_secs(30),
            move |cause| {
                let mut connection = takes.lock().unwrap().pop_front()?;
                connection.taken = events.fetch_add(1, SeqCst);
                connection.at_once = cause.is_parking();
                Some(connection)
            },
            move |connection| returns.lock().unwrap().push_front(connection),
        )
    }

    async fn work(self: Arc<Self>, task: usize) -> Result<(), WaitError> {
        loop {
            let asked = self.events.fetch_add(1, SeqCst);
            let get = self.get(); // from here on the task has its place
            let waits = self.events.fetch_add(1, SeqCst);
            let connection = get.await?;
            self.gets[task].fetch_add(1, SeqCst);
            let served = (asked, waits, *connection);
            self.served.lock().unwrap().push(served);
            tokio::time::sleep(Duration::from_millis(1)).await; // the query: an abort may find the task here
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = Arc::new(Pool {
        idle: Arc::new(Mutex::new([Connection::default(); CONNECTIONS].into())),
        waits: Waits::new("pool"),
        events: Arc::default(),
        gets: [const { AtomicUsize::new(0) }; TASKS],
        served: Mutex::default(),
    });
    let spawn = |task| tokio::spawn(pool.clone().work(task));
    let mut tasks = (0..TASKS).map(spawn).collect::<Vec<_>>();
    for (number, task) in tasks.iter_mut().enumerate() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        task.abort();
        *task = spawn(number);
    }
    while pool.served.lock().unwrap().len() < TASKS * GETS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pool.waits.shutdown_async()?.await; // every task ends when it asks for the next one
    for task in tasks {
        assert_eq!(task.await?, Err(WaitError::ShutDown));
    }

    let mut served = std::mem::take(&mut *pool.served.lock().unwrap());
    let gets = pool.gets.iter().map(|gets| gets.load(SeqCst));
    let (least, most) = (gets.clone().min().unwrap(), gets.max().unwrap());
    println!("{TASKS} tasks on {CONNECTIONS} connections: each was served {least} to {most} times");
    let mean = served.len() as f64 / TASKS as f64;
    assert!(0.95 * mean <= least as f64 && most as f64 <= 1.05 * mean);

    served.sort_by_key(|(_, _, how)| how.taken);
    let (mut overtaken, mut newcomer) = (0, 0);
    for (asked, waits, how) in served {
        // It waited, and one that asked later had been served before, at once.
        overtaken += usize::from(waits < newcomer);
        if how.at_once {
            newcomer = newcomer.max(asked);
        }
    }
    let idle = pool.idle.lock().unwrap().len();
    println!(
        "{overtaken} overtaken by a newcomer, {TASKS} aborted, {idle} connections idle at the end"
    );
    assert!(overtaken == 0 && idle == CONNECTIONS);
    Ok(())
}
