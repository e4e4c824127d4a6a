//! The command line.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// A small Kafka broker: topics and records are in memory, and gone with the process, unless `serve` has --data DIR
#[derive(Debug, Parser)]
#[command(name = "broker", max_term_width = 100)]
#[command(override_usage = "broker [COMMAND]")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What is done without a command: start a broker on a free loopback port, drive it with a Kafka client, and print
    /// what its purgatories did; exits with 1 if any request got no answer
    Demo(DemoOptions),
    /// Serve Kafka clients until interrupted
    Serve(ServeOptions),
}

#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// How long
    #[arg(long, value_name = "N", default_value = "10")]
    pub(crate) seconds: u64,
    /// How far the follower is behind the leader: some, so that there are produce requests that wait
    #[arg(long, value_name = "N", default_value = "10", value_parser = milliseconds)]
    pub(crate) replica_lag_ms: Duration,
    /// Show the purgatories on http://ADDR, and to Prometheus on http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
}

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct ServeOptions {
    /// Where, such as localhost:9092; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: String,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Print what is parked every N ms
    #[arg(long, value_name = "N", value_parser = milliseconds)]
    pub(crate) report_ms: Option<Duration>,
    /// Show the purgatories on http://ADDR, and to Prometheus on http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    /// Most lines that each kind of trouble writes to the log in a second; what is left out is counted
    #[arg(long, value_name = "N", default_value = "10")]
    pub(crate) log_lines: u32,
}

/// How a broker behaves.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// Keep topics and records in DIR, over a restart; idempotent producers and committed offsets too
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Partitions of a topic whose creator does not say how many, as when a client's first produce creates it
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub(crate) partitions: i32,
    /// How far the follower is behind the leader
    #[arg(long, value_name = "N", default_value = "0", value_parser = milliseconds)]
    pub(crate) replica_lag_ms: Duration,
    /// How long the first members of a consumer group wait for more
    #[arg(long, value_name = "N", default_value = "100", value_parser = milliseconds)]
    pub(crate) group_delay_ms: Duration,
}

fn milliseconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_millis)
}
