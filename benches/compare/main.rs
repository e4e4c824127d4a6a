//! Compares the library with its peers, interleaved in one process.
//!
//! `cargo bench --bench compare -- readme` for the README's table, `cores` for the workloads of several threads,
//! `--help` for the options. A harness of its own rather than criterion, because what counts is the ratio between
//! candidates on a machine whose speed wanders: they must take turns, round by round (see `contest`).
//!
//! | module | |
//! |---|---|
//! | `candidate`, `timer_queue` | what an implementation must offer, whole or as a timer alone |
//! | `candidates` | the library, its peers, and the floor under them all |
//! | `self_check` | the ground rules, tried on each candidate before it is measured |
//! | `workload` | what is measured, a file each |
//! | `request` | the delayed request that all of them park |
//! | `process` | processor time and memory |
//! | `contest`, `outcome`, `options` | rounds, what they came to, command line |
//! | `report` | tables and JSON; `benches/plot.py` draws |
//!
//! A new workload is a file in `workload` and a line in the list of `contest`.

mod candidate;
mod candidates;
mod contest;
mod options;
mod outcome;
mod process;
mod report;
mod request;
mod self_check;
mod timer_queue;
mod workload;

use options::{Options, Preset};
use report::machine::Machine;

fn main() {
    let options = Options::from_arguments();
    if let [workload, candidate, case] = &options.child[..] {
        let entry = contest::ALL.iter().find(|entry| entry.name == workload);
        let case = case.parse().expect("the parent counts the cases");
        (entry.expect("the parent knows the names").run_as_child)(candidate, case, &options);
        return;
    }
    let wanted: Vec<_> = contest::ALL
        .iter()
        .filter(|entry| options.wants(entry.name))
        .filter(|entry| (entry.candidates)().iter().any(|name| options.admits(name)))
        .collect();
    if wanted.is_empty() {
        eprintln!("no such workload or candidate; --list shows them");
        std::process::exit(2);
    }
    if options.list {
        for entry in wanted {
            println!("{:<7} {}", entry.name, entry.title);
            println!("        {}", (entry.candidates)().join(", "));
        }
        return;
    }
    let machine = Machine::here();
    eprintln!("on {machine}");
    let mut reports = Vec::new();
    for entry in wanted {
        let report = (entry.run)(&options);
        if options.check_only {
            continue;
        }
        println!("\n{report}");
        // At once, so that a long run that is cut short has written what it has.
        if let Err(error) = report::write(&report, &machine, &options.out) {
            eprintln!("{} could not be written: {error}", options.out.display());
        }
        reports.push(report);
    }
    if options.check_only {
        println!("the candidates keep the ground rules");
        return;
    }
    if options.preset == Some(Preset::Readme) {
        println!("\n{} On {machine}.\n", report::table::overview(&reports));
    }
    println!("every round: {}", options.out.display());
}
