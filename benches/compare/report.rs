//! The tables and the JSON.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use crate::candidate::Candidate;
use crate::candidates::Library;
use crate::contest::{Outcome, label};

/// The outcomes of one workload.
pub(crate) struct Report {
    pub(crate) workload: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Report {
    /// The outcome's median as a multiple of the library's in the same case.
    fn ratio(&self, outcome: &Outcome) -> Option<f64> {
        let library = self.find(Library::NAME, &outcome.parameters)?;
        Some(outcome.median() / library.median())
    }

    fn find(&self, candidate: &str, parameters: &[(&str, usize)]) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| {
            outcome.candidate == candidate && outcome.parameters.as_slice() == parameters
        })
    }

    fn cell(&self, outcome: &Outcome) -> String {
        let spread = (outcome.most() - outcome.least()) / 2.0 / outcome.median() * 100.0;
        let mut cell = format!("{:.1} ±{spread:.0}%", outcome.median());
        if let Some(ratio) = self.ratio(outcome) {
            write!(cell, " {ratio:5.2}x").expect("a string takes it");
        }
        cell
    }
}

/// The table: a candidate a row, a case a column.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self
            .outcomes
            .first()
            .map_or(0, |outcome| outcome.rounds.len());
        writeln!(
            f,
            "{}: {}, median of {rounds} rounds, ± half the spread, as a multiple of {}",
            self.workload,
            self.unit,
            Library::NAME
        )?;
        let mut candidates: Vec<&str> = Vec::new();
        let mut cases: Vec<&[(&str, usize)]> = Vec::new();
        for outcome in &self.outcomes {
            if !candidates.contains(&outcome.candidate) {
                candidates.push(outcome.candidate);
            }
            if !cases.contains(&outcome.parameters.as_slice()) {
                cases.push(&outcome.parameters);
            }
        }
        write!(f, "{:<18}", "")?;
        for case in &cases {
            write!(f, " {:>23}", label(case))?;
        }
        writeln!(f)?;
        for candidate in candidates {
            write!(f, "{candidate:<18}")?;
            for case in &cases {
                let cell = self.find(candidate, case).map(|outcome| self.cell(outcome));
                write!(f, " {:>23}", cell.unwrap_or_default())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Writes every round of every report, and what is known of the machine, and returns the path.
pub(crate) fn write_json(reports: &[Report]) -> std::io::Result<PathBuf> {
    // Cargo makes this folder for benches to write in.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compare.json");
    fs::write(&path, json(reports))?;
    Ok(path)
}

/// By hand: names here are plain words, and a serializer would be one more dependency.
fn json(reports: &[Report]) -> String {
    let lines: Vec<String> = reports
        .iter()
        .flat_map(|report| {
            report
                .outcomes
                .iter()
                .map(|outcome| json_line(report, outcome))
        })
        .collect();
    format!(
        "{{\n\"processor\": \"{}\",\n\"cores\": {},\n\"outcomes\": [\n{}\n]\n}}\n",
        processor().replace(['"', '\\'], " "),
        available_parallelism().map_or(0, usize::from),
        lines.join(",\n")
    )
}

fn json_line(report: &Report, outcome: &Outcome) -> String {
    let mut line = format!("{{\"workload\": \"{}\"", report.workload);
    for (name, value) in &outcome.parameters {
        write!(line, ", \"{name}\": {value}").expect("a string takes it");
    }
    let rounds: Vec<String> = outcome
        .rounds
        .iter()
        .map(|value| format!("{value:.2}"))
        .collect();
    let ratio = report
        .ratio(outcome)
        .map_or("null".to_owned(), |ratio| format!("{ratio:.4}"));
    write!(
        line,
        ", \"candidate\": \"{}\", \"unit\": \"{}\", \"median\": {:.2}, \"min\": {:.2}, \
         \"max\": {:.2}, \"ratio_to_library\": {ratio}, \"rounds\": [{}]}}",
        outcome.candidate,
        report.unit,
        outcome.median(),
        outcome.least(),
        outcome.most(),
        rounds.join(", ")
    )
    .expect("a string takes it");
    line
}

/// The processor's name where the system tells it.
pub(crate) fn processor() -> String {
    fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| "unknown".to_owned())
}
