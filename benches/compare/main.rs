//! Compares the library with its peers, interleaved in one process.
//!
//! `cargo bench --bench compare -- --quick` for a first look, `--help` for the options. A harness
//! of its own rather than criterion, because what counts is the ratio between candidates on a
//! machine whose speed wanders: they must take turns, round by round (see `contest`).
//!
//! | module | |
//! |---|---|
//! | `candidate` | what an implementation must offer |
//! | `candidates` | the library, its peers, and the floor under them all |
//! | `self_check` | the ground rules, tried on each candidate before it is measured |
//! | `workload` | what is measured, a file each |
//! | `request` | the delayed request that all of them park |
//! | `contest`, `report`, `options` | rounds, tables, command line |
//!
//! A new workload is a file in `workload` with its cases and contenders, and a line in `main`.

mod candidate;
mod candidates;
mod contest;
mod options;
mod report;
mod request;
mod self_check;
mod workload;

use std::process::exit;

use options::Options;
use report::Report;
use workload::w1;

fn main() {
    let options = Options::from_arguments();
    eprintln!("on {}", report::processor());
    let mut reports = Vec::new();
    if options.wants(w1::NAME) {
        let outcomes = contest::run(
            w1::NAME,
            w1::W1::contenders(),
            &w1::W1::cases(&options),
            &options,
        );
        reports.push(Report {
            workload: w1::NAME,
            unit: "ns per life",
            outcomes,
        });
    }
    if reports.is_empty() {
        eprintln!("no such workload");
        exit(2);
    }
    if options.check_only {
        println!("the candidates keep the ground rules");
        return;
    }
    for report in &reports {
        println!("\n{report}");
    }
    match report::write_json(&reports) {
        Ok(path) => println!("every round: {}", path.display()),
        Err(error) => eprintln!("the JSON could not be written: {error}"),
    }
}
