//! A small Kafka broker whose delayed requests wait in purgatories.
//!
//! ```text
//! cargo run --release -p broker                              a demonstration of ten seconds
//! cargo run --release -p broker -- serve --listen ADDR       a broker, until interrupted
//! cargo run --release -p broker -- demo --seconds 600 --metrics 127.0.0.1:9100
//!                                                            the demonstration, and a page to watch it on
//! ```
//!
//! Stock Kafka clients can talk to it: it knows ApiVersions, Metadata, CreateTopics, ListOffsets, Produce and
//! Fetch, and keeps one in-memory log per partition. Start reading at `broker/delayed_fetch.rs` and
//! `broker/delayed_produce.rs`, the two delayed operations; `broker/purgatories.rs` is where they wait, `broker.rs`
//! where they are parked, `broker/follower.rs` where they are woken.
//!
//! | layer | modules |
//! |---|---|
//! | commands | `cli`, `serve`, `demo` |
//! | sockets | `server` (Kafka's clients), `exporter` (the page, and Prometheus) |
//! | requests | `broker`: what happens to each, topics and their partitions, the delayed operations |
//! | data | `storage`: the log of a partition, its batches, its idempotent producers |
//! | bytes | `wire`: frames, requests, responses |
//! | figures | `figures`: counters, histograms, processor time |

mod broker;
mod cli;
mod demo;
mod exporter;
mod figures;
mod serve;
mod server;
pub mod storage;
pub mod wire;

use cli::Command;
use std::process::ExitCode;

/// The program, with the arguments that follow its name.
pub fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let command = match cli::parse(arguments) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("broker: {error}\n\n{}", cli::USAGE);
            return ExitCode::from(2);
        }
    };
    let done = match command {
        Command::Help => {
            println!("{}", cli::USAGE);
            Ok(true)
        }
        Command::Serve(options) => serve::run(&options).map(|()| true),
        Command::Demo(options) => demo::run(&options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("broker: {error:#}");
            ExitCode::FAILURE
        }
    }
}
