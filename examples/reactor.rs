//! A purgatory driven inside one tokio task: no thread of the library's, on a runtime of one thread.
//!
//! ```text
//! cargo run --release -p examples --bin reactor
//! ```
//!
//! By default a purgatory has a reaper thread, which sleeps until a deadline, and a completion thread. With
//! [`Reaper::Reactor`] it has neither: [`drive`] is the task that sleeps, and everything runs on the runtime's thread.
//! [`TokioClock`] is what makes the deadlines those of tokio, its paused clock in tests included.

use request_purgatory::future::WaitError;
use request_purgatory::threads::Reaper;
use request_purgatory::time::{Clock, Timestamp, WakeFn};
use request_purgatory::{DelayedOperation, Purgatory, Waits};
use std::cell::RefCell;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Tokio's time, counted from the creation of this value.
#[derive(Clone, Copy)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_origin(self.0.elapsed())
    }
}

/// Drives `purgatory` until its last handle is dropped or it is shut down. `changed` is what its reactor notifies.
fn drive<Op: DelayedOperation>(
    purgatory: &Purgatory<Op>,
    clock: TokioClock,
    changed: Arc<Notify>,
) -> impl Future<Output = ()> + use<Op> {
    let purgatory = purgatory.downgrade(); // this task must not keep it running
    async move {
        while let Some(purgatory) = purgatory.upgrade().filter(|open| !open.is_shut_down()) {
            purgatory.advance();
            let next = purgatory.next_deadline();
            drop(purgatory);
            let deadline = next.and_then(|next| clock.0.checked_add(next.since_origin()));
            match deadline {
                // A notification that comes before this is kept.
                Some(deadline) => tokio::select! {
                    () = tokio::time::sleep_until(deadline) => {}
                    () = changed.notified() => {}
                },
                None => changed.notified().await,
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let clock = TokioClock(Instant::now());
    let changed = Arc::new(Notify::new());
    let wake = changed.clone();
    let waker = WakeFn::new(move || {
        wake.notify_one();
        true
    });
    let builder = Waits::<u32>::builder("rooms").clock(clock);
    let rooms = builder.reaper(Reaper::Reactor(waker)).build()?;
    let driver = tokio::spawn(drive(&rooms, clock, changed));

    // One wait that expires, one that is answered; and, after the driver has gone to sleep, one with an earlier
    // deadline.
    let messages = Arc::new(Mutex::new(None));
    let read = messages.clone();
    let answered = rooms.wait([1], Duration::from_secs(10), move || {
        read.lock()
            .unwrap()
            .map(|message: &str| (message, thread::current().id()))
    });
    tokio::task::yield_now().await;
    let start = Instant::now();
    let quiet = rooms
        .wait([2], Duration::from_millis(50), || None::<()>)
        .await;
    let late = start.elapsed().saturating_sub(Duration::from_millis(50));
    println!("nothing came to room 2 in 50 ms; the wait ended {late:.1?} after that");
    assert_eq!(quiet, Err(WaitError::Expired));

    // `Rc`, `RefCell` and the like may live beside it: all of this is one thread.
    let log = RefCell::new(Vec::new());
    let post = async {
        *messages.lock().unwrap() = Some("hello");
        rooms.check_and_complete(&1);
        log.borrow_mut().push("posted");
    };
    let (read, ()) = tokio::join!(
        async {
            let read = answered.await;
            log.borrow_mut().push("read");
            read
        },
        post
    );
    let (message, asked_on) = read?;
    println!("room 1 heard \"{message}\", on the runtime's own thread");
    assert_eq!(asked_on, thread::current().id());
    assert_eq!(*log.borrow(), ["posted", "read"]);

    drop(rooms); // shut down, without a thread to join: it does not block
    driver.await?;
    println!("the driver has ended with the purgatory");
    Ok(())
}
