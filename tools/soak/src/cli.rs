//! The command line.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) const USAGE: &str = "\
usage: soak [--minutes N | --seconds N] [--seed S] [--threads T]
       soak --help

  --minutes N   how long (default: 1 minute)
  --seconds N   the same in seconds
  --seed S      of all random choices, to make them again (default: from the clock; it is printed)
  --threads T   threads that work on the purgatories (default: 6; at most 256)

exits with 1 if anything does not add up, with 2 if the arguments make no sense";

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) duration: Duration,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
}

/// Reads the arguments that follow the program's name. `None`: asked for help.
pub(crate) fn parse(
    mut arguments: impl Iterator<Item = String>,
) -> Result<Option<Options>, String> {
    let mut options = Options {
        duration: Duration::from_secs(60),
        seed: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64 & 0xFFFF_FFFF),
        threads: 6,
    };
    while let Some(option) = arguments.next() {
        match option.as_str() {
            "--help" => return Ok(None),
            "--minutes" => options.duration = seconds(&option, &mut arguments, 60)?,
            "--seconds" => options.duration = seconds(&option, &mut arguments, 1)?,
            "--seed" => options.seed = next(&option, &mut arguments)?,
            "--threads" => options.threads = next(&option, &mut arguments)?,
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    if !(1..=256).contains(&options.threads) {
        return Err("--threads must be from 1 to 256".into());
    }
    Ok(Some(options))
}

/// A time of at least a second and at most a year.
fn seconds(
    option: &str,
    arguments: &mut impl Iterator<Item = String>,
    unit: u64,
) -> Result<Duration, String> {
    next::<u64>(option, arguments)?
        .checked_mul(unit)
        .filter(|seconds| (1..=365 * 86_400).contains(seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{option} must be at least 1, and at most a year"))
}

fn next<T: FromStr>(
    option: &str,
    arguments: &mut impl Iterator<Item = String>,
) -> Result<T, String> {
    let value = arguments
        .next()
        .ok_or_else(|| format!("{option} needs a value"))?;
    value
        .parse()
        .map_err(|_| format!("{option} cannot be '{value}'"))
}
