//! A small Kafka broker whose delayed requests wait in purgatories.
//!
//! ```text
//! cargo run --release -p broker                              a demonstration of ten seconds
//! cargo run --release -p broker -- serve --listen ADDR       a broker, until interrupted
//! cargo run --release -p broker -- demo --seconds 600 --metrics 127.0.0.1:9100
//!                                                            the demonstration, and a page to watch it on
//! ```
//!
//! Stock Kafka clients can talk to it: it knows ApiVersions, Metadata, CreateTopics, DeleteTopics, DescribeConfigs,
//! ListOffsets, Produce, Fetch and InitProducerId, and keeps one log per partition, in memory or, with `--data DIR`, in
//! segment files. What clients may take of it, one by one and together, is bounded: `server/limits.rs`. Start reading
//! at `broker/delayed_fetch.rs` and `broker/delayed_produce.rs`, the two delayed operations; `broker/purgatories.rs` is
//! where they wait, `broker.rs` where they are parked, `broker/follower.rs` where they are woken.
//!
//! | layer | modules |
//! |---|---|
//! | commands | `cli`, `serve`, `demo` |
//! | sockets | `server` (Kafka's clients, and their limits), `exporter` (the page, and Prometheus) |
//! | requests | `broker`: what happens to each, topics and their partitions, the delayed operations |
//! | groups | `groups`: the coordinator of consumer groups |
//! | data | `storage`: the log of a partition, its batches, its idempotent producers |
//! | bytes | `wire`: frames, requests, responses |
//! | below all | `endpoint`, `console` |
//! | figures | `figures`: counters, histograms, processor time |

mod broker;
mod cli;
mod console;
mod demo;
mod endpoint;
mod exporter;
mod figures;
mod groups;
mod serve;
mod server;
pub mod storage;
pub mod wire;

use cli::Command;
use console::{say, warn};
use std::io;
use std::process::ExitCode;

/// The program, with the arguments that follow its name. A closed standard output ends it, without complaint.
pub fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let done = match cli::parse(arguments) {
        Ok(Command::Help) => say(cli::USAGE).map(|()| true).map_err(Into::into),
        Ok(Command::Serve(options)) => serve::run(&options).map(|()| true),
        Ok(Command::Demo(options)) => demo::run(&options),
        Err(error) => {
            warn(&format!("{error}\n\n{}", cli::USAGE));
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => {
            warn(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The reader of the output has closed it: `broker | head` is no failure.
fn is_closed_output(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
