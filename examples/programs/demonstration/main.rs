//! The demonstration: produce and fetch requests by the hundred thousand, on three keys each, under a random load.
//!
//! ```text
//! cargo run --release -p examples
//! cargo run --release -p examples -- --seconds 1 --requests 20000
//! ```
//!
//! Most requests are satisfied by checks, some time out, some are cancelled. At the end every request must have ended
//! exactly once, and nothing may be left; otherwise the program says what is wrong, and exits with 1. (`--miscount`
//! leaves one ending out of the count, to see that.)

mod load;
mod records;
mod report;
mod request;

use indicatif::{ProgressBar, ProgressStyle};
use load::Load;
use report::Report;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait for the last requests to time out. They need two seconds.
const PATIENCE: Duration = Duration::from_secs(30);
const HELP: &str = "\
demonstration [--seconds 4] [--requests 200000]     a random load for so long, with so many requests parked
              [--miscount]                          leaves one ending out of the count: the program must notice";
const REDRAW: Duration = Duration::from_millis(50);

struct Arguments {
    seconds: f64,
    /// As many are parked at any time.
    requests: usize,
    miscount: bool,
}

impl Arguments {
    /// None: only the help is asked for.
    fn parse() -> Result<Option<Self>, Box<dyn Error>> {
        let mut arguments = Self {
            seconds: 4.0,
            requests: 200_000,
            miscount: false,
        };
        let mut given = std::env::args().skip(1);
        while let Some(name) = given.next() {
            let mut value = || given.next().ok_or(format!("{name} needs a number"));
            match name.as_str() {
                "--seconds" => arguments.seconds = value()?.parse()?,
                "--requests" => arguments.requests = value()?.parse()?,
                "--miscount" => arguments.miscount = true,
                "-h" | "--help" => return Ok(None),
                _ => return Err(format!("there is no {name}; there are\n{HELP}").into()),
            }
        }
        Ok(Some(arguments))
    }
}

fn run(arguments: &Arguments) -> Result<Report, Box<dyn Error>> {
    let duration = Duration::try_from_secs_f64(arguments.seconds)?;
    let load = Load::new(arguments.requests, arguments.miscount);
    let bar = ProgressBar::new(u64::try_from(duration.as_millis())?);
    bar.set_style(ProgressStyle::with_template(
        "{bar:40} {percent:>3} %  {msg}",
    )?);

    let before = resident();
    load.fill();
    let parked = load.parked();
    let memory = resident()
        .zip(before)
        .map(|(filled, empty)| filled.saturating_sub(empty) as f64 / parked.max(1) as f64);

    let (begun, ended_before) = (Instant::now(), load.ended());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..load.threads {
            scope.spawn(|| load.run_until(&stop));
        }
        while begun.elapsed() < duration {
            thread::sleep(REDRAW.min(duration - begun.elapsed().min(duration)));
            bar.set_position(begun.elapsed().as_millis() as u64);
            bar.set_message(format!("{} parked, {} ended", load.parked(), load.ended()));
        }
        stop.store(true, Relaxed);
    });
    let per_second = (load.ended() - ended_before) as f64 / begun.elapsed().as_secs_f64();

    load.satisfy_all();
    let begun = Instant::now();
    while !load.is_empty() && begun.elapsed() < PATIENCE {
        bar.set_message(format!("{} have still to time out", load.parked()));
        thread::sleep(REDRAW);
    }
    bar.finish_and_clear();
    Ok(load.report(parked, per_second, memory))
}

/// Resident memory of this process in bytes, where the system says it as Linux does.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Prints what happened. Returns whether the counts add up.
fn show(report: &Report) -> Result<bool, Box<dyn Error>> {
    write!(std::io::stdout(), "{report}")?;
    let contradictions = report.contradictions();
    for contradiction in &contradictions {
        eprintln!("the counts do not add up: {contradiction}");
    }
    Ok(contradictions.is_empty())
}

fn main() -> ExitCode {
    let shown = Arguments::parse().and_then(|arguments| match arguments {
        Some(arguments) => show(&run(&arguments)?),
        None => Ok(writeln!(std::io::stdout(), "{HELP}").map(|()| true)?),
    });
    match shown {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
