//! A small Kafka broker whose delayed requests wait in purgatories.
//!
//! Stock Kafka clients can talk to it. It keeps one log per partition, in memory or, with `--data DIR`, in segment
//! files. What clients may take of it, one by one and together, is bounded: `server/limits.rs`. Start reading at
//! `broker/delayed.rs`, the delayed operation of fetches and produces; `broker.rs` is where they are parked,
//! `broker/partition.rs` where they are woken; `groups.rs` has those of consumer groups.
//!
//! | layer | modules |
//! |---|---|
//! | commands | `serve`, `demo` |
//! | sockets | `server` (Kafka's clients, and their limits), `page` (for a browser, and for Prometheus) |
//! | requests | `broker`: what happens to each, topics and their partitions, the delayed operations |
//! | groups | `groups`: the coordinator of consumer groups |
//! | data | `storage`: the log of a partition, its batches, its idempotent producers |
//! | bytes | `wire`: frames, requests, responses |
//! | below all | `messages` (Kafka's), `exchange` (a request and its answer), `cli` (options), `listen`, `log` |

/// Prints a line on standard output. Fails if that was closed.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        writeln!(out, $($words)*).and_then(|()| out.flush())
    }};
}

/// Prints a line on standard error, if this place has not printed too many of late: see `log.rs`.
macro_rules! log {
    ($($words:tt)*) => {{
        static PLACE: $crate::log::Place = $crate::log::Place::new();
        PLACE.write(format_args!($($words)*));
    }};
}

mod broker;
mod cli;
mod demo;
mod exchange;
mod groups;
mod listen;
mod log;
pub mod messages;
mod page;
mod serve;
mod server;
pub mod storage;
pub mod wire;

/// The requests that the tests in `tests/broker` make. Unit tests make some of them.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../tests/broker/requests.rs"]
mod requests;

use clap::Parser;
use cli::{Cli, Command};
use std::io;
use std::process::ExitCode;

/// The program, with its arguments. A closed standard output ends it, without complaint.
pub fn run() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    if arguments.len() < 2 {
        arguments.push("demo".into());
    }
    // The reader of the output may have closed it: `broker | head` is no failure.
    let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    match complete(Cli::parse_from(arguments).command) {
        Err(error) if !error.downcast_ref().is_some_and(is_closed) => {
            log!("{error:#}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn complete(command: Command) -> anyhow::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.thread_name("broker").enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Serve(options) => serve::run(&options).await,
            Command::Demo(options) => demo::run(&options).await,
        }
    })
}
