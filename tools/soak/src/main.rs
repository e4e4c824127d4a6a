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
//! | the run | `cli`, `epoch`, `rest`, `audit`, `report` |
//! | what is done | `actor`, `caller`, `misbehaviour`, `panics`, `key` |
//! | what is worked on | `stage` with its operations and helpers, `plan` |
//! | the accounts | `ledger`, `record` |

mod actor;
mod audit;
mod caller;
mod cli;
mod epoch;
mod key;
mod ledger;
mod misbehaviour;
mod panics;
mod plan;
mod record;
mod report;
mod rest;
mod stage;

use clap::Parser;
use cli::Options;
use std::process::ExitCode;

#[global_allocator]
static COUNTING: testing::allocated::Counting = testing::allocated::Counting;

fn main() -> ExitCode {
    match epoch::run(&Options::parse()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
