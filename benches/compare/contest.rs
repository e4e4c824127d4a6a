//! The contest: every case, round by round, the contenders one after the other in each round.

use std::collections::HashSet;
use std::process::Command;

use parking_lot::Mutex;

use crate::candidate::{ByHandle, Candidate};
use crate::candidates::Harness;
use crate::options::{Child, Options};
use crate::outcome::{Outcome, Parameters, Values, label, short};
use crate::self_check;
use crate::timer_queue::TimerQueue;
use crate::workload::Workload;

/// One setting of a workload.
pub(crate) struct Case<W> {
    /// What distinguishes it, for the report.
    pub(crate) parameters: Parameters,
    pub(crate) workload: W,
}

/// A candidate entered for a workload.
pub(crate) struct Contender<W> {
    pub(crate) name: &'static str,
    check: fn(),
    round: fn(&W) -> Values,
}

impl<W> Contender<W> {
    pub(crate) fn new<C: Candidate>(round: fn(&W) -> Values) -> Self {
        Self {
            name: C::NAME,
            check: self_check::run::<C>,
            round,
        }
    }

    /// Enters one whose requests are completed by handle.
    pub(crate) fn by_handle<C: ByHandle>(round: fn(&W) -> Values) -> Self {
        Self {
            name: C::NAME,
            check: self_check::handles::run::<C>,
            round,
        }
    }

    /// Enters another way to use `C`.
    pub(crate) fn named<C: Candidate>(name: &'static str, round: fn(&W) -> Values) -> Self {
        Self {
            name,
            ..Self::new::<C>(round)
        }
    }

    /// Enters one of another kind, which `check` holds to the rules of its workload.
    pub(crate) fn other(name: &'static str, check: fn(), round: fn(&W) -> Values) -> Self {
        Self { name, check, round }
    }

    /// Enters a timer alone.
    pub(crate) fn timer<Q: TimerQueue<u32>>(round: fn(&W) -> Values) -> Self {
        Self {
            name: Q::NAME,
            check: self_check::timer::run::<Q>,
            round,
        }
    }
}

/// Enters each of the candidates with its instance of the round.
macro_rules! contenders {
    ($enter:ident, $round:ident: $($candidate:ty),+ $(,)?) => {
        vec![$($crate::contest::Contender::$enter::<$candidate>(Self::$round::<$candidate>)),+]
    };
}
pub(crate) use contenders;

/// Checks and then measures the contenders that the options admit.
///
/// Interleaved, because a machine's speed wanders by more than the differences that matter: each
/// round gives every contender the same few seconds of it. Each round starts from a fresh
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
            rounds: Vec::with_capacity(options.rounds),
        }));
        let label = label(&case.parameters);
        for round in 1..=options.rounds {
            for (contender, outcome) in contenders.iter().zip(&mut outcomes[first..]) {
                let values = if W::ALONE && !options.check_only {
                    round_in_child::<W>(contender, number)
                } else {
                    (contender.round)(&case.workload)
                };
                assert_eq!(values.len(), W::METRICS.len(), "a value for each metric");
                eprintln!(
                    "{} {label} round {round}/{}: {:<18} {}",
                    W::NAME,
                    options.rounds,
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
pub(crate) fn run_as_child<W: Workload>(child: &Child, options: &Options) {
    let contender = W::contenders()
        .into_iter()
        .find(|contender| contender.name == child.candidate)
        .expect("the parent knows the names");
    let values = (contender.round)(&W::cases(options)[child.case].workload);
    for value in values {
        println!("{value}");
    }
}
