//! A small Kafka broker whose delayed requests wait in purgatories.
//!
//! ```text
//! cargo run --release --example broker                              a demonstration of ten seconds
//! cargo run --release --example broker -- serve --listen ADDR       a broker, until interrupted
//! cargo run --release --features metrics --example broker -- demo --seconds 600 --metrics 127.0.0.1:9100
//!                                                                   the same, and a page to watch it on
//! ```
//!
//! Stock Kafka clients can talk to it: it knows ApiVersions, Metadata, CreateTopics, ListOffsets, Produce and
//! Fetch, and keeps one in-memory log per partition. Start reading at `delayed_fetch.rs` and
//! `delayed_produce.rs`, the two delayed operations; `purgatories.rs` is where they wait, `broker.rs` where they
//! are parked, `follower.rs` where they are woken.
//!
//! | layer | modules |
//! |---|---|
//! | commands | `cli`, `serve`, `demo` |
//! | sockets | `server`, `connection` |
//! | requests | `broker`, `fetch`, `produce`, `metadata`, `delayed_fetch`, `delayed_produce`, `purgatories`, `follower` |
//! | data | `topics`, `partition`, `log`, `producers`, `batch`, `crc32c` |
//! | wire | `frame`, `apis`, `shape`, `request`, `response` |
//! | figures | `metrics`, `histogram`, `cpu`, `exporter` with `page.html` |

mod apis;
mod batch;
mod broker;
mod cli;
mod connection;
mod cpu;
mod crc32c;
mod delayed_fetch;
mod delayed_produce;
mod demo;
mod exporter;
mod fetch;
mod follower;
mod frame;
mod histogram;
mod log;
mod metadata;
mod metrics;
mod partition;
mod produce;
mod producers;
mod purgatories;
mod request;
mod response;
mod serve;
mod server;
mod shape;
mod topics;

use cli::Command;
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args().skip(1)) {
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
