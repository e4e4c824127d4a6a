//! Sessions that live as long as their heartbeats: 100,000 of them in one `Tracker`, with threads and no runtime.
//!
//! ```text
//! cargo run --release -p examples --bin sessions             some seconds; -- 5000 for another number of them
//! ```
//!
//! Every session is tracked with the session timeout and renewed once in each heartbeat interval. One in a hundred
//! sends a few heartbeats and falls silent. Each of these must be reported once and not before its deadline; no other
//! may be.
//!
//! Lateness is from the time just after the last heartbeat's call, plus the timeout, to the first line of the callback:
//! it includes the rounding up to the tick (1 ms), the timer's wake-up, and the queue before the completion thread.

use request_purgatory_tracker::Tracker;
use std::collections::HashMap;
use std::error::Error;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_millis(2_000);
const ROUNDS: u64 = 6;

fn is_silent(session: u64) -> bool {
    session % 100 == 0
}

/// The time before and after the last heartbeat.
struct LastSign {
    before: Instant,
    after: Instant,
}

fn main() -> Result<(), Box<dyn Error>> {
    let count = std::env::args().nth(1).map(|count| count.parse::<u64>());
    let count = count.transpose()?.unwrap_or(100_000);
    let (report, reports) = channel();
    let on_expiry = move |session: u64, (), _| {
        let _ = report.send((session, Instant::now())); // the receiver outlives the tracker
    };
    let sessions = Tracker::builder("sessions").build(on_expiry)?;
    for session in 0..count {
        sessions.try_track(session, (), TIMEOUT)?;
    }

    let mut last = HashMap::new();
    for round in 0..ROUNDS {
        let next = Instant::now() + TIMEOUT / 4;
        for session in 0..count {
            // The silent ones send one heartbeat, or two, or three.
            if is_silent(session) && round > session / 100 % 3 {
                continue;
            }
            let before = Instant::now();
            if !sessions.reschedule(&session, TIMEOUT) {
                return Err(format!("session {session} had expired at its heartbeat").into());
            }
            let after = Instant::now();
            if is_silent(session) {
                last.insert(session, LastSign { before, after });
            }
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }

    // The others are kept alive until all of the silent ones have expired, and closed then.
    let patience = Instant::now() + TIMEOUT + Duration::from_secs(30);
    while sessions.stats().expired < last.len() as u64 && Instant::now() < patience {
        for session in (0..count).filter(|session| !is_silent(*session)) {
            if !sessions.reschedule(&session, TIMEOUT) {
                return Err(format!("session {session} had expired at its heartbeat").into());
            }
        }
        thread::sleep(TIMEOUT / 8);
    }
    let closed = sessions.withdraw_where(|session, ()| !is_silent(*session));
    let closed = closed.len();
    println!("sessions closed by their owners {closed:>7}");
    assert_eq!(closed as u64, count - last.len() as u64);
    assert!(sessions.keys().is_empty());
    drop(sessions); // with it the callback and its sender: the reports end

    let mut lateness = HashMap::new();
    for (session, reported) in reports {
        let sign = last
            .get(&session)
            .ok_or("a session was reported that was not silent")?;
        assert!(
            reported >= sign.before + TIMEOUT,
            "session {session} was reported early"
        );
        let late = reported.saturating_duration_since(sign.after + TIMEOUT);
        let twice = lateness.insert(session, late);
        assert!(twice.is_none(), "session {session} was reported twice");
    }
    assert_eq!(lateness.len(), last.len());
    let mut sorted = lateness.into_values().collect::<Vec<_>>();
    sorted.sort_unstable();
    let at = |percent: usize| sorted[(sorted.len() - 1) * percent / 100];
    println!("silent sessions reported        {:>7}", sorted.len());
    println!(
        "late by: p50 {:.1?}, p99 {:.1?}, max {:.1?}",
        at(50),
        at(99),
        at(100)
    );
    Ok(())
}
