//! `gateway serve` is a node; `gateway demo` shows what three of them do when things break.

use clap::Parser;
use gateway::cli::{Cli, Command};
use gateway::{demo, serve};
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(settings) => serve::serve(settings),
        Command::Node(settings) => serve::node(settings),
        Command::Demo(settings) => match demo::run(&settings) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gateway: {error:#}");
            ExitCode::FAILURE
        }
    }
}
