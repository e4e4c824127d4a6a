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

mod cli;
mod innocent;
mod operation;
mod samples;
mod scenario;
mod table;

use std::process::ExitCode;

fn main() -> ExitCode {
    let options = match cli::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", cli::usage());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("abuse: {error}\n\n{}", cli::usage());
            return ExitCode::from(2);
        }
    };
    match scenario::run(&options.scenarios, options.operations) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("abuse: {error:#}");
            ExitCode::FAILURE
        }
    }
}
