//! The command line.

use clap::{Parser, value_parser};
use std::time::Duration;

/// Exits with 1 if anything does not add up, with 2 if the arguments make no sense.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// How long, in minutes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..=365 * 24 * 60))]
    minutes: u64,
    /// The same in seconds
    #[arg(long, value_name = "N", conflicts_with = "minutes", value_parser = value_parser!(u64).range(1..=365 * 86_400))]
    seconds: Option<u64>,
    /// Of all random choices, to make them again (default: another each time; it is printed)
    #[arg(long, value_name = "S", default_value_t = fastrand::u32(..).into(), hide_default_value = true)]
    pub(crate) seed: u64,
    /// Threads that work on the purgatories
    #[arg(long, value_name = "T", default_value_t = 6, value_parser = value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
}

impl Options {
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(self.minutes * 60))
    }
}
