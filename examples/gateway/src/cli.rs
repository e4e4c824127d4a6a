//! The command line.

use crate::store::EngineKind;
use clap::{Args, Parser, Subcommand};
use std::time::Duration;

/// HTTP long polls on several nodes, ended by events posted to any of them.
#[derive(Debug, Parser)]
#[command(name = "gateway")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Starts an engine and three nodes, parks long polls, breaks things, and counts what was lost (exit status 1).
    Demo(DemoArgs),
    /// Runs one node until SIGTERM or SIGINT, and answers every parked poll before it ends.
    Serve(ServeArgs),
    /// A node of the demo: takes commands from its standard input, and ends with it.
    #[command(hide = true)]
    Node(ServeArgs),
}

/// The settings of a node.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Where events are kept. `memory` is for one node alone: events end with the process.
    #[arg(long, value_enum)]
    pub engine: EngineKind,
    /// A server of the engine (redis://HOST:PORT, redis+unix:///SOCKET, nats://HOST:PORT). May be repeated.
    #[arg(long, required_if_eq_any([("engine", "redis"), ("engine", "nats")]))]
    pub url: Vec<String>,
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub listen: String,
    /// The name of this node on the page.
    #[arg(long, default_value = "gateway")]
    pub name: String,
    /// The base URL of another node, for the page (http://HOST:PORT). May be repeated.
    #[arg(long)]
    pub peer: Vec<String>,
    /// The longest `wait` that a poll may ask for, in seconds.
    #[arg(long, default_value = "300", value_parser = seconds)]
    pub max_wait: Duration,
    /// How many polls may be parked on this node; one more is answered with 503.
    #[arg(long, default_value_t = 100_000)]
    pub max_polls: usize,
    /// How often all watched topics are read although nothing was heard of them, in seconds. Bounds how late a poll is
    /// answered whose news the engine lost.
    #[arg(long, default_value = "15", value_parser = seconds)]
    pub audit: Duration,
    /// How long the engine may be silent, in seconds.
    #[arg(long, default_value = "5", value_parser = seconds)]
    pub ping: Duration,
}

/// The settings of the demo.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Which engine to start: a real server in a temporary directory, on a socket or port of its own choosing.
    #[arg(long, value_enum, default_value = "redis")]
    pub engine: EngineKind,
    /// How many long polls to park, one keep-alive connection each.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(3..=100_000))]
    pub polls: u32,
    /// Over how many topics they are spread. Default: a tenth of the polls.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub topics: Option<u32>,
    /// How many events to post in each phase.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub events: u32,
    /// How many events to post in a second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// How often nodes read all watched topics, in seconds.
    #[arg(long, default_value = "3", value_parser = seconds)]
    pub audit: Duration,
    /// How long after its acknowledgement an event counts as lost to a poll that was not told of it, in seconds.
    /// Default: three audits and 10 s.
    #[arg(long, value_parser = seconds)]
    pub bound: Option<Duration>,
}

impl DemoArgs {
    pub(crate) fn topics(&self) -> usize {
        self.topics.unwrap_or((self.polls / 10).max(1)) as usize
    }

    pub(crate) fn bound(&self) -> Duration {
        self.bound
            .unwrap_or(self.audit * 3 + Duration::from_secs(10))
    }
}

/// A positive number of seconds, of at most a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|it| *it > 0.0 && *it <= 86_400.0);
    number.map(Duration::from_secs_f64).ok_or_else(|| {
        "a time is a number of seconds greater than 0 and at most 86400, such as 2 or 0.5".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_without_sense_are_refused() {
        for text in ["", "0", "-1", "NaN", "inf", "1s", "86401"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn an_engine_with_servers_needs_an_address() {
        let parsed = Cli::try_parse_from(["gateway", "serve", "--engine", "redis"]);
        assert!(parsed.unwrap_err().to_string().contains("--url"));
        Cli::try_parse_from(["gateway", "serve", "--engine", "memory"]).expect("it needs none");
    }
}
