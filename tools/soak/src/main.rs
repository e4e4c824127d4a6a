//! A soak: threads do what can be done to purgatories by plain keys and handles, at random and for as long as wanted,
//! and a ledger of every operation is held against what the library says and does.
//!
//! ```text
//! cargo run --release -p soak -- --minutes 10
//! cargo run --release -p soak -- --seconds 3 --seed 7
//! ```
//!
//! The run is a row of epochs. An epoch builds one to three purgatories of random make, lets threads loose on them,
//! stops these, and audits: the moment is quiet, so everything must add up. Start reading at `epoch.rs`.
//!
//! | layer | modules |
//! |---|---|
//! | the run | `cli`, `epoch`, `rest`, `audit`, `report`, `process` |
//! | what is done | `actor`, `caller`, `misbehaviour`, `panics`, `key` |
//! | what is worked on | `stage` with its operations and helpers, `plan` |
//! | the accounts | `ledger`, `record`, `histogram` |

mod actor;
#[path = "../../../tests/support/allocated.rs"]
mod allocated;
mod audit;
mod caller;
mod cli;
mod epoch;
mod histogram;
mod key;
mod ledger;
mod misbehaviour;
mod panics;
mod plan;
mod process;
mod random;
mod record;
mod report;
mod rest;
mod stage;

use std::process::ExitCode;

fn main() -> ExitCode {
    let options = match cli::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", cli::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("soak: {error}\n\n{}", cli::USAGE);
            return ExitCode::from(2);
        }
    };
    match epoch::run(&options) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
