//! A producer that lingers: a batch is sent 20 ms after its first record, or as soon as it has 100.
//!
//! ```text
//! cargo run --release -p examples --bin linger
//! ```
//!
//! Shown here: an operation without a timeout that gives itself a deadline when the first event has come
//! ([`Cause::reschedule`]). To debounce instead, ask for the same *timeout* in every check, and only in a check:
//! `if cause.is_check() { cause.reschedule(LINGER) }`.

use request_purgatory::purgatory::Cause;
use request_purgatory::{Completion, DelayedOperation, Purgatory};
use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const LINGER: Duration = Duration::from_millis(20);
const FULL: usize = 100;

/// What is appended to one partition and not sent yet: each record by the time at which it was appended.
#[derive(Default)]
struct Pending(Mutex<Vec<Instant>>);

impl Pending {
    fn count(&self) -> usize {
        self.0.lock().expect("no user panics").len()
    }

    /// First the change, then the check, without the lock.
    fn append(&self, batches: &Purgatory<Batch>) {
        self.0.lock().expect("no user panics").push(Instant::now());
        batches.check_and_complete("partition");
    }

    fn take(&self) -> Vec<Instant> {
        let mut records = self.0.lock().expect("no user panics");
        let size = records.len().min(FULL);
        records.drain(..size).collect()
    }
}

/// The batch that is being filled.
struct Batch {
    pending: Arc<Pending>,
    lingers: bool,
    ready: Sender<Completion>,
}

impl DelayedOperation for Batch {
    type Key = &'static str;

    fn timeout(&self) -> Duration {
        Duration::MAX // until there is a record
    }

    fn try_complete(&mut self) -> bool {
        self.pending.count() >= FULL
    }

    fn try_complete_for(&mut self, cause: Cause<'_, Self::Key>) -> bool {
        if !self.lingers && self.pending.count() > 0 {
            self.lingers = true;
            cause.reschedule(LINGER);
        }
        self.try_complete()
    }

    fn on_complete(self, completion: Completion) {
        let _ = self.ready.send(completion); // the sender may have ended
    }
}

/// Sends one batch after the other, until the shutdown.
fn send_batches(batches: &Purgatory<Batch>, pending: &Arc<Pending>, sent: &Sender<Sent>) {
    loop {
        let (ready, is_ready) = channel();
        let batch = Batch {
            pending: pending.clone(),
            lingers: false,
            ready,
        };
        let parked = batches.try_complete_else_watch(batch, ["partition"]);
        match parked.map(|_| is_ready.recv()) {
            Ok(Ok(Completion::Satisfied | Completion::Expired)) => {}
            _ => return, // shut down
        }
        let records = pending.take();
        let _ = sent.send((records.len(), records[0].elapsed())); // nobody may wait for it
    }
}

/// How many records a batch had, and how long the first of them waited.
type Sent = (usize, Duration);

fn main() -> Result<(), Box<dyn Error>> {
    let (batches, pending) = (Purgatory::new("batches"), Arc::new(Pending::default()));
    let (tell, sent) = channel::<Sent>();
    let sender = {
        let (batches, pending) = (batches.clone(), pending.clone());
        thread::spawn(move || send_batches(&batches, &pending, &tell))
    };
    let next = |what| {
        let (count, waited) = sent.recv_timeout(Duration::from_secs(10))?;
        println!("{what}: {count} records, the first after {waited:.0?}");
        Ok::<Sent, Box<dyn Error>>((count, waited))
    };
    (0..250).for_each(|_| pending.append(&batches));
    assert_eq!(next("a full batch")?.0, 100);
    assert_eq!(next("a full batch")?.0, 100);
    let (rest, waited) = next("the rest lingers")?;
    assert!(rest == 50 && waited >= LINGER);
    (0..3).for_each(|_| pending.append(&batches));
    let (few, waited) = next("a quiet producer")?;
    assert!(few == 3 && waited >= LINGER);
    batches.shutdown();
    sender.join().map_err(|_| "the sender panicked")?;
    println!("{} records are left", pending.count());
    Ok(())
}
