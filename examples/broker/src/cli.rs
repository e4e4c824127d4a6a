//! The command line.

use crate::endpoint::Endpoint;
use crate::groups::settings::INITIAL_DELAY;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub(crate) const USAGE: &str = "\
A small Kafka broker: topics and their records are in memory, and gone with the process, unless serve has --data DIR.

usage: broker [demo [--seconds N] [--replica-lag-ms N] [--metrics ADDR]]
       broker serve --listen ADDR [--data DIR] [--replica-lag-ms N] [--group-delay-ms N] [--max-connections N]
                    [--report-ms N] [--metrics ADDR]
       broker --help

  demo    start a broker on a free loopback port, drive it with a Kafka client for N seconds (default 10),
          and print what its purgatories did; exits with 1 if any request got no answer
  serve   serve Kafka clients on ADDR (such as localhost:9092; port 0 takes a free one) until interrupted

  --data DIR            keep topics and records in DIR, over a restart; idempotent producers and committed offsets too
  --replica-lag-ms N    how far the follower is behind the leader (default: demo 10, serve 0)
  --group-delay-ms N    how long the first members of a consumer group wait for more (default 100)
  --max-connections N   connections at a time (default 1000); beyond it idle ones are closed
  --report-ms N         print what is parked every N ms
  --metrics ADDR        show the purgatories on http://ADDR, and to Prometheus on http://ADDR/metrics";

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Demo(DemoOptions),
    Serve(ServeOptions),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DemoOptions {
    pub(crate) duration: Duration,
    pub(crate) replica_lag: Duration,
    /// Where to show metrics, if at all.
    pub(crate) metrics: Option<Endpoint>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServeOptions {
    pub(crate) listen: Endpoint,
    /// Where to keep topics, if not in memory.
    pub(crate) data: Option<PathBuf>,
    pub(crate) replica_lag: Duration,
    /// How long the first members of a consumer group wait for more.
    pub(crate) group_delay: Duration,
    pub(crate) max_connections: usize,
    /// How often to print what is parked, if at all.
    pub(crate) report: Option<Duration>,
    /// Where to show metrics, if at all.
    pub(crate) metrics: Option<Endpoint>,
}

/// Connections that are served at a time unless the command line says otherwise.
pub(crate) const MAX_CONNECTIONS: usize = 1_000;

/// Some lag, so that the demonstration has produce requests that wait.
const DEMO_LAG: Duration = Duration::from_millis(10);

/// Reads the arguments that follow the program's name.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut arguments = arguments.peekable();
    let command = arguments.next_if(|argument| !argument.starts_with("--"));
    let serve = match command.as_deref() {
        None | Some("demo") => false,
        Some("serve") => true,
        Some(other) => return Err(format!("unknown command '{other}'")),
    };

    let mut listen = None;
    let mut data = None;
    let mut replica_lag = if serve { Duration::ZERO } else { DEMO_LAG };
    let mut group_delay = INITIAL_DELAY;
    let mut max_connections = MAX_CONNECTIONS;
    let mut report = None;
    let mut metrics = None;
    let mut seconds = 10;
    while let Some(option) = arguments.next() {
        let value = &mut arguments;
        match option.as_str() {
            "--help" => return Ok(Command::Help),
            "--replica-lag-ms" => replica_lag = Duration::from_millis(parse_next(&option, value)?),
            "--metrics" => metrics = Some(parse_next(&option, value)?),
            "--listen" if serve => listen = Some(parse_next(&option, value)?),
            "--data" if serve => data = Some(parse_next(&option, value)?),
            "--group-delay-ms" if serve => {
                group_delay = Duration::from_millis(parse_next(&option, value)?);
            }
            "--max-connections" if serve => {
                max_connections = parse_next(&option, value)?;
                if !(1..=1_000_000).contains(&max_connections) {
                    return Err(format!("{option} has to be between 1 and 1000000"));
                }
            }
            "--report-ms" if serve => {
                // A ticker cannot tick without a pause.
                let milliseconds = parse_next::<u64>(&option, value)?.max(1);
                report = Some(Duration::from_millis(milliseconds));
            }
            "--seconds" if !serve => seconds = parse_next(&option, value)?,
            other => return Err(format!("unknown argument '{other}'")),
        }
    }

    if !serve {
        return Ok(Command::Demo(DemoOptions {
            duration: Duration::from_secs(seconds),
            replica_lag,
            metrics,
        }));
    }
    Ok(Command::Serve(ServeOptions {
        listen: listen.ok_or("serve needs --listen ADDR")?,
        data,
        replica_lag,
        group_delay,
        max_connections,
        report,
        metrics,
    }))
}

fn parse_next<T: FromStr>(
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
