//! Latency under abuse: how long the calls of an innocent thread take while others do their worst.
//!
//! ```text
//! cargo run --release -p abuse
//! cargo run --release -p abuse -- --only cascade,storm
//! ```
//!
//! The innocent thread parks and completes an operation on a key of its own, about five thousand times a second, and
//! times each call. Beside it a second thread times nothing: it reads the clock for as long as a call takes, so what
//! the scheduler does to a thread shows there too. Both run alone first, and then do the same during the abuse
//! (`innocent.rs`; the scenarios are in `scenario/`).

mod innocent;
mod measured;
mod operation;
mod patience;
mod scenario;
mod table;

use clap::{Parser, ValueEnum, value_parser};
use scenario::Scenario;
use std::process::ExitCode;

#[derive(Debug, Parser)]
struct Options {
    /// Only these scenarios
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values_t = Scenario::value_variants().to_vec(), hide_default_value = true)]
    only: Vec<Scenario>,
    /// In the large scenarios
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1_000..=4_000_000))]
    operations: u32,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match scenario::run(&options.only, options.operations) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("abuse: {error:#}");
            ExitCode::FAILURE
        }
    }
}
