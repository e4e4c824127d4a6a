//! A client with many calls in flight on one TCP connection, against a server that answers some late and some never.
//!
//! ```text
//! cargo run --release --example rpc_client                              10,000 calls; -- --help for more
//! ```
//!
//! Shown here: `Requests` match the responses to their calls by id, however they overtake one another, time out those
//! that get none, and say which responses came too late. The server lives in the same process and is reached over a
//! real socket on 127.0.0.1. Threads only, no runtime.
//!
//! `client.rs` is the part to read; `server.rs` is what it talks to; `frame.rs` is what they say. Exits with 1 unless
//! every call was answered or timed out, and no more responses were late than calls timed out.

mod client;
mod frame;
mod server;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: rpc_client [--calls N] [--timeout-ms M]
       rpc_client --help

  --calls N        how many calls to make, all in flight at once (default 10000)
  --timeout-ms M   how long each waits for its response (default 500); the server answers eight of ten at once, one
                   after up to twice as long, and one never";

struct Options {
    calls: u64,
    timeout: Duration,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("rpc_client: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rpc_client: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `None` asks for help.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options {
        calls: 10_000,
        timeout: Duration::from_millis(500),
    };
    while let Some(option) = arguments.next() {
        if option == "--help" {
            return Ok(None);
        }
        let value = arguments.next().ok_or(format!("{option} needs a value"))?;
        let number = value
            .parse::<u64>()
            .ok()
            .filter(|number| *number > 0)
            .ok_or(format!("{option} cannot be '{value}'"))?;
        match option.as_str() {
            "--calls" => options.calls = number,
            "--timeout-ms" => options.timeout = Duration::from_millis(number),
            _ => return Err(format!("unknown argument '{option}'")),
        }
    }
    Ok(Some(options))
}

/// Prints what became of the calls. False if that does not add up.
fn run(options: &Options) -> io::Result<bool> {
    let server = server::Server::start(options.timeout)?;
    let outcome = client::make_calls(server.address(), options.calls, options.timeout)?;
    println!("calls                    {:>8}", options.calls);
    println!("  answered               {:>8}", outcome.answered);
    println!("  timed out              {:>8}", outcome.timed_out);
    println!("responses too late       {:>8}", outcome.late);
    println!(
        "took                     {:>8.2} s",
        outcome.took.as_secs_f64()
    );
    let all_ended = outcome.answered + outcome.timed_out == options.calls;
    let late_timed_out = outcome.late <= outcome.timed_out;
    if !all_ended {
        eprintln!("rpc_client: some calls were neither answered nor timed out");
    }
    if !late_timed_out {
        eprintln!("rpc_client: more responses were late than calls timed out");
    }
    if outcome.wrong > 0 {
        eprintln!("rpc_client: {} calls got another's response", outcome.wrong);
    }
    Ok(all_ended && late_timed_out && outcome.wrong == 0)
}
