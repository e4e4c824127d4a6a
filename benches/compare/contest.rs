//! The contest: the workloads, and in each every case, round by round, the contenders one after the other in each round.

use std::collections::HashSet;
use std::process::Command;

use parking_lot::Mutex;

use crate::candidate::Candidate;
use crate::candidates::Harness;
use crate::options::Options;
use crate::outcome::{Outcome, Values, label, short};
use crate::report::Report;
use crate::workload::{self, Contender, Workload};

/// All workloads, in the order in which they run.
pub(crate) const ALL: [Entry; 18] = [
    Entry::of::<workload::w1::W1>(),
    Entry::of::<workload::w1t::W1t>(),
    Entry::of::<workload::w1x::W1x>(),
    Entry::of::<workload::w2::W2>(),
    Entry::of::<workload::w3::W3>(),
    Entry::of::<workload::w4::W4>(),
    Entry::of::<workload::w5::W5>(),
    Entry::of::<workload::w6::W6>(),
    Entry::of::<workload::w7::W7>(),
    Entry::of::<workload::w8::W8>(),
    Entry::of::<workload::w9::W9>(),
    Entry::of::<workload::w10::W10>(),
    Entry::of::<workload::w10t::W10t>(),
    Entry::of::<workload::w11::W11>(),
    Entry::of::<workload::w12::W12>(),
    Entry::of::<workload::w13::W13>(),
    Entry::of::<workload::handles::Handles>(),
    Entry::of::<workload::transfer::Transfer>(),
];

/// A workload behind plain functions.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) run: fn(&Options) -> Report,
    pub(crate) run_as_child: fn(&str, usize, &Options),
    pub(crate) candidates: fn() -> Vec<&'static str>,
}

impl Entry {
    const fn of<W: Workload>() -> Self {
        Self {
            name: W::NAME,
            title: W::TITLE,
            run: |options| Report {
                workload: W::NAME,
                title: W::TITLE,
                metrics: W::METRICS,
                outcomes: self::run::<W>(options),
            },
            run_as_child: run_as_child::<W>,
            candidates: || {
                W::contenders()
                    .iter()
                    .map(|contender| contender.name)
                    .collect()
            },
        }
    }
}

/// Checks and then measures the contenders that the options admit.
///
/// Interleaved, because a machine's speed wanders by more than the differences that matter: each
/// round gives every contender the same few seconds of it, and begins with another one than the round
/// before, so that none always follows the same other. Each round starts from a fresh
/// candidate, as requests kept parked while others are measured would expire.
pub(crate) fn run<W: Workload>(options: &Options) -> Vec<Outcome> {
    let mut contenders = W::contenders();
    // What is taken off the others' values must be measured with them.
    contenders
        .retain(|contender| options.admits(contender.name) || contender.name == Harness::NAME);
    for contender in &contenders {
        check(contender);
    }
    let mut outcomes = Vec::new();
    for (number, case) in W::cases(options).iter().enumerate() {
        let first = outcomes.len();
        outcomes.extend(contenders.iter().map(|contender| Outcome {
            candidate: contender.name,
            parameters: case.parameters.clone(),
            rounds: Vec::new(),
        }));
        let label = label(&case.parameters);
        let rounds = options.rounds_of(W::ROUNDS);
        for round in 1..=rounds {
            for turn in 0..contenders.len() {
                let next = (turn + round - 1) % contenders.len();
                let (contender, outcome) = (&contenders[next], &mut outcomes[first + next]);
                let values = if W::ALONE && !options.check_only {
                    round_in_child::<W>(contender, number)
                } else {
                    (contender.round)(&case.workload)
                };
                assert_eq!(values.len(), W::METRICS.len(), "a value for each metric");
                eprintln!(
                    "{} {label} round {round}/{rounds}: {:<18} {}",
                    W::NAME,
                    contender.name,
                    line::<W>(&values)
                );
                outcome.rounds.push(values);
            }
        }
    }
    W::finish(&mut outcomes);
    outcomes
}

/// Checks a contender, unless that has been done for another workload.
fn check<W>(contender: &Contender<W>) {
    static CHECKED: Mutex<Option<HashSet<usize>>> = Mutex::new(None);
    if CHECKED
        .lock()
        .get_or_insert_default()
        .insert(contender.check as usize)
    {
        eprintln!("checking {}", contender.name);
        (contender.check)();
    }
}

fn line<W: Workload>(values: &[f64]) -> String {
    let shown = W::METRICS
        .iter()
        .zip(values)
        .filter(|(_, value)| !value.is_nan())
        .map(|(metric, value)| format!("{} {} {}", metric.name, short(*value), metric.unit));
    shown.collect::<Vec<_>>().join(", ")
}

/// Has a process of its own measure the round: nothing that others have left behind is in its way.
fn round_in_child<W: Workload>(contender: &Contender<W>, case: usize) -> Values {
    let program = std::env::current_exe().expect("this process has a program");
    let output = Command::new(program)
        .args(std::env::args().skip(1))
        .args(["--child", W::NAME, contender.name, &case.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("a child can start");
    assert!(
        output.status.success(),
        "{} failed in its own process",
        contender.name
    );
    let text = String::from_utf8(output.stdout).expect("numbers are text");
    let values = text.split_whitespace();
    values
        .map(|value| value.parse().expect("the child prints numbers"))
        .collect()
}

/// The child's half: measures one round and prints the values.
pub(crate) fn run_as_child<W: Workload>(candidate: &str, case: usize, options: &Options) {
    let contender = W::contenders()
        .into_iter()
        .find(|contender| contender.name == candidate)
        .expect("the parent knows the names");
    let values = (contender.round)(&W::cases(options)[case].workload);
    for value in values {
        println!("{value}");
    }
}
