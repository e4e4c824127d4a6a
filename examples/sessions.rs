//! Sessions that live as long as their heartbeats: 100,000 of them in one `Tracker`, on the real clock.
//!
//! ```text
//! cargo run --release --example sessions                 some seconds; -- --help for more
//! ```
//!
//! Every session is tracked with the session timeout and touched once per heartbeat interval. One in a hundred sends
//! a few heartbeats and falls silent. Each of these must be reported once, not before its deadline; no other may be.
//!
//! How lateness is measured: the deadline of a silent session is the time just after its last call of the library
//! (`track` or `touch`) plus the timeout; the report's time is taken first thing in the callback. So it includes the
//! rounding of the deadline up to the tick, the timer's wake-up, and the queue before the completion thread. Not early
//! is checked against the time just before that call. Exits with 1 on any discrepancy.

use request_purgatory::Tracker;
use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: sessions [--sessions N] [--timeout-ms M] [--rounds R]
       sessions --help

  --sessions N     how many sessions (default 100000); every hundredth falls silent
  --timeout-ms M   the session timeout (default 2000); a heartbeat comes every quarter of it
  --rounds R       rounds of heartbeats (default 8)";

/// One session in so many falls silent.
const SILENT: u64 = 100;

struct Options {
    sessions: u64,
    timeout: Duration,
    rounds: u64,
}

/// What is known of a session's last sign of life: the time before and after the call.
#[derive(Clone, Copy)]
struct Heartbeat {
    before: Instant,
    after: Instant,
}

impl Heartbeat {
    fn during<T>(call: impl FnOnce() -> T) -> (Self, T) {
        let before = Instant::now();
        let answer = call();
        let after = Instant::now();
        (Self { before, after }, answer)
    }
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("sessions: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sessions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `None` asks for help.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options {
        sessions: 100_000,
        timeout: Duration::from_millis(2_000),
        rounds: 8,
    };
    while let Some(option) = arguments.next() {
        if option == "--help" {
            return Ok(None);
        }
        let value = arguments.next().ok_or(format!("{option} needs a value"))?;
        let number = value
            .parse::<u64>()
            .ok()
            .filter(|number| *number > 0)
            .ok_or(format!("{option} cannot be '{value}'"))?;
        match option.as_str() {
            "--sessions" => options.sessions = number,
            "--timeout-ms" => options.timeout = Duration::from_millis(number),
            "--rounds" => options.rounds = number,
            _ => return Err(format!("unknown argument '{option}'")),
        }
    }
    Ok(Some(options))
}

fn run(options: &Options) -> Result<(), String> {
    let (report, reports) = channel();
    let tracker = Tracker::new("sessions", move |session: u64, (): ()| {
        // The receiver lives longer than the tracker.
        let _ = report.send((session, Instant::now()));
    });
    let start = Instant::now();
    let last = beat(&tracker, options)?;
    let silent = options.sessions.div_ceil(SILENT);
    let beating = usize::try_from(options.sessions - silent).map_err(|error| error.to_string())?;
    println!(
        "{} sessions, {silent} of them silent, {} heartbeats in {:.1} s",
        options.sessions,
        tracker.stats().completed + options.sessions * options.rounds,
        start.elapsed().as_secs_f64()
    );
    // The beating ones are closed in the end; what expired meanwhile is in the channel.
    let closed = close(&tracker, options, silent)?;
    drop(tracker);
    check(&reports, &last, options.timeout)?;
    match closed == beating {
        true => Ok(()),
        false => Err(format!(
            "{closed} sessions were alive at the end, not {beating}"
        )),
    }
}

fn is_silent(session: u64) -> bool {
    session % SILENT == 0
}

/// Opens all sessions and lets them beat. Returns the last sign of life of those that fell silent.
fn beat(tracker: &Tracker<u64, ()>, options: &Options) -> Result<HashMap<u64, Heartbeat>, String> {
    let mut last = HashMap::new();
    for session in 0..options.sessions {
        let (heartbeat, tracked) =
            Heartbeat::during(|| tracker.try_track(session, (), options.timeout));
        tracked.map_err(|error| error.to_string())?;
        if is_silent(session) {
            last.insert(session, heartbeat);
        }
    }
    for round in 0..options.rounds {
        let next = Instant::now() + options.timeout / 4;
        for session in 0..options.sessions {
            // The silent ones stop in different rounds, the latest after half of them.
            let stops = session / SILENT % (options.rounds / 2 + 1);
            if is_silent(session) && round >= stops {
                continue;
            }
            let (heartbeat, alive) = Heartbeat::during(|| tracker.touch(&session, options.timeout));
            if !alive {
                return Err(format!("session {session} had expired at its heartbeat"));
            }
            if is_silent(session) {
                last.insert(session, heartbeat);
            }
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(last)
}

/// Keeps the others alive until the silent ones have expired, then closes them. Returns how many were still there.
fn close(tracker: &Tracker<u64, ()>, options: &Options, silent: u64) -> Result<usize, String> {
    let start = Instant::now();
    while tracker.stats().expired < silent {
        if start.elapsed() > options.timeout + Duration::from_secs(5) {
            let expired = tracker.stats().expired;
            return Err(format!("only {expired} of {silent} sessions expired"));
        }
        let beating = (0..options.sessions).filter(|session| !is_silent(*session));
        for session in beating {
            tracker.touch(&session, options.timeout);
        }
        thread::sleep(options.timeout / 8);
    }
    let closed = (0..options.sessions).filter_map(|session| tracker.complete(&session));
    Ok(closed.count())
}

/// Each silent session was reported once, and none early.
fn check(
    reports: &Receiver<(u64, Instant)>,
    last: &HashMap<u64, Heartbeat>,
    timeout: Duration,
) -> Result<(), String> {
    let mut lateness = HashMap::new();
    for (session, reported) in reports {
        let heartbeat = last.get(&session).ok_or(format!(
            "session {session} was reported, and was not silent"
        ))?;
        if reported < heartbeat.before + timeout {
            return Err(format!("session {session} was reported early"));
        }
        let late = reported.saturating_duration_since(heartbeat.after + timeout);
        if lateness.insert(session, late).is_some() {
            return Err(format!("session {session} was reported twice"));
        }
    }
    if lateness.len() != last.len() {
        return Err(format!(
            "{} of {} were reported",
            lateness.len(),
            last.len()
        ));
    }
    let mut sorted = lateness.into_values().collect::<Vec<_>>();
    sorted.sort_unstable();
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!("silent sessions reported {:>7}", sorted.len());
    println!("lateness after the deadline (tick: 1 ms)");
    println!("  p50                    {:>7.3} ms", at(0.5));
    println!("  p99                    {:>7.3} ms", at(0.99));
    println!("  max                    {:>7.3} ms", at(1.0));
    Ok(())
}
