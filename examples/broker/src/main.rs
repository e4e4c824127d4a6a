//! `cargo run --release -p broker`: see the library beside this file.

use std::process::ExitCode;

fn main() -> ExitCode {
    broker::run(std::env::args().skip(1))
}
