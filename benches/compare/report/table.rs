//! The tables for the terminal, which are Markdown too.

use std::fmt;

use super::Report;
use crate::candidate::Candidate;
use crate::candidates::Library;
use crate::outcome::{Outcome, label, short};

/// Rows of cells, the first of them the heads.
struct Table(Vec<Vec<String>>);

/// With columns as wide as their widest cell; the first is a name, the others are figures.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.0.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(3)
        };
        let widths: Vec<usize> = (0..self.0[0].len()).map(width).collect();
        for (number, row) in self.0.iter().enumerate() {
            write!(f, "| {:<width$} |", row[0], width = widths[0])?;
            for (cell, &width) in row.iter().zip(&widths).skip(1) {
                write!(f, " {cell:>width$} |")?;
            }
            writeln!(f)?;
            if number == 0 {
                write!(f, "|{}|", "-".repeat(widths[0] + 2))?;
                for width in &widths[1..] {
                    write!(f, "{}:|", "-".repeat(width + 1))?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

impl Report {
    /// `271 ±2% 1.00x`: the median, half the spread, and how many times worse than the library.
    fn cell(&self, outcome: &Outcome, metric: usize) -> String {
        let Some(summary) = outcome.summary(metric) else {
            return String::new();
        };
        let mut cell = short(summary.median);
        let spread = summary.spread();
        if spread.is_finite() {
            cell.push_str(&format!(" ±{:.0}%", spread.min(999.0)));
        }
        let ratio = self.ratio(outcome, metric);
        if let Some(ratio) = ratio.filter(|ratio| ratio.is_finite()) {
            cell.push_str(&format!(" {ratio:.2}x"));
        }
        cell
    }
}

/// A row for each candidate in each case, a column for each metric.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.workload, self.title)?;
        writeln!(f, "{}", legend(self.rounds()))?;
        let mut heads = vec![String::new()];
        heads.extend(self.metrics.iter().map(|metric| metric.label()));
        for case in self.cases() {
            let mut rows = vec![heads.clone()];
            for outcome in self.outcomes.iter().filter(|it| it.parameters == case) {
                let mut row = vec![outcome.candidate.to_owned()];
                row.extend((0..self.metrics.len()).map(|metric| self.cell(outcome, metric)));
                rows.push(row);
            }
            write!(f, "\n{}:\n\n{}", label(case), Table(rows))?;
        }
        Ok(())
    }
}

fn legend(rounds: usize) -> String {
    let library = Library::NAME;
    format!("Median of {rounds} rounds ± half the spread; x: how many times worse than {library}.")
}

/// The first metric of every case of every report, side by side: what the README shows.
pub(crate) fn overview(reports: &[Report]) -> String {
    let columns: Vec<_> = reports
        .iter()
        .flat_map(|report| report.cases().into_iter().map(move |case| (report, case)))
        .collect();
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(columns.iter().map(|(report, case)| {
        let metric = report.metrics[0].label();
        format!("{} {}, {metric}", report.workload, label(case))
    }));
    let mut candidates: Vec<&str> = Vec::new();
    for outcome in reports.iter().flat_map(|report| &report.outcomes) {
        if !candidates.contains(&outcome.candidate) {
            candidates.push(outcome.candidate);
        }
    }
    for candidate in candidates {
        let mut row = vec![format!("`{candidate}`")];
        row.extend(columns.iter().map(|(report, case)| {
            let outcome = report.find(candidate, case);
            outcome.map_or_else(String::new, |outcome| report.cell(outcome, 0))
        }));
        rows.push(row);
    }
    let rounds = reports.iter().map(Report::rounds).min().unwrap_or(0);
    format!("{}\n{}", Table(rows), legend(rounds))
}
