//! The contest: every case, round by round, the contenders one after the other in each round.

use crate::candidate::Candidate;
use crate::options::Options;
use crate::self_check;

/// One column of a workload's table.
pub(crate) struct Case<W> {
    /// What distinguishes it, by name, for the report.
    pub(crate) parameters: Vec<(&'static str, usize)>,
    pub(crate) workload: W,
}

/// A candidate entered for a workload.
pub(crate) struct Contender<W> {
    pub(crate) name: &'static str,
    check: fn(),
    round: fn(&W) -> f64,
}

/// All rounds of one contender in one case.
pub(crate) struct Outcome {
    pub(crate) candidate: &'static str,
    pub(crate) parameters: Vec<(&'static str, usize)>,
    /// In the workload's unit, in the order of the rounds.
    pub(crate) rounds: Vec<f64>,
}

impl<W> Contender<W> {
    pub(crate) fn new<C: Candidate>(round: fn(&W) -> f64) -> Self {
        Self {
            name: C::NAME,
            check: self_check::run::<C>,
            round,
        }
    }
}

impl Outcome {
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        }
    }

    pub(crate) fn least(&self) -> f64 {
        self.rounds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn most(&self) -> f64 {
        self.rounds.iter().copied().fold(0.0, f64::max)
    }
}

/// Checks and then measures the contenders that the options admit.
///
/// Interleaved, because a machine's speed wanders by more than the differences that matter: each
/// round gives every contender the same few seconds of it. Each round starts from a fresh
/// candidate, as requests kept parked while others are measured would expire.
pub(crate) fn run<W>(
    name: &str,
    mut contenders: Vec<Contender<W>>,
    cases: &[Case<W>],
    options: &Options,
) -> Vec<Outcome> {
    contenders.retain(|contender| options.admits(contender.name));
    assert!(
        !contenders.is_empty(),
        "{name} has none of the candidates asked for"
    );
    for contender in &contenders {
        eprintln!("{name}: checking {}", contender.name);
        (contender.check)();
    }
    if options.check_only {
        return Vec::new();
    }
    let mut outcomes = Vec::new();
    for case in cases {
        let first = outcomes.len();
        outcomes.extend(contenders.iter().map(|contender| Outcome {
            candidate: contender.name,
            parameters: case.parameters.clone(),
            rounds: Vec::with_capacity(options.rounds),
        }));
        let label = label(&case.parameters);
        for round in 1..=options.rounds {
            for (contender, outcome) in contenders.iter().zip(&mut outcomes[first..]) {
                let value = (contender.round)(&case.workload);
                outcome.rounds.push(value);
                let rounds = options.rounds;
                eprintln!(
                    "{name} {label} round {round}/{rounds}: {:<18} {value:9.1}",
                    contender.name
                );
            }
        }
    }
    outcomes
}

/// `keys=3 parked=1,000`.
pub(crate) fn label(parameters: &[(&str, usize)]) -> String {
    let parts: Vec<_> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", grouped(*value)))
        .collect();
    parts.join(" ")
}

fn grouped(value: usize) -> String {
    let digits = value.to_string();
    let mut grouped = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
