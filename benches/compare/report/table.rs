//! The tables: Markdown for the files, the same text for the terminal.

use std::fmt;

use super::Report;
use super::machine::Machine;
use crate::candidate::Candidate;
use crate::candidates::Library;
use crate::outcome::{Outcome, label, short};

/// A candidate a row. Where there is one metric, a case a column; else a table for each case, a
/// metric a column.
struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Report {
    fn tables(&self) -> Vec<Table> {
        let cases = self.cases();
        if let [metric] = self.metrics {
            let columns: Vec<_> = cases.iter().map(|case| (*case, 0)).collect();
            let heads = cases.iter().map(|case| label(case)).collect();
            return vec![self.table(metric.label(), heads, &columns)];
        }
        let table = |case: &&'_ [(&'static str, usize)]| {
            let metrics: Vec<usize> = (0..self.metrics.len())
                .filter(|&metric| self.has(case, metric))
                .collect();
            let columns: Vec<_> = metrics.iter().map(|&metric| (*case, metric)).collect();
            let heads = metrics.iter().map(|&metric| self.metrics[metric].label());
            self.table(label(case), heads.collect(), &columns)
        };
        cases.iter().map(table).collect()
    }

    fn table(
        &self,
        title: String,
        heads: Vec<String>,
        columns: &[(&[(&'static str, usize)], usize)],
    ) -> Table {
        let mut rows = vec![vec![String::new()]];
        rows[0].extend(heads);
        for candidate in self.candidates() {
            let mut row = vec![candidate.to_owned()];
            row.extend(columns.iter().map(|&(case, metric)| {
                let outcome = self.find(candidate, case);
                outcome.map_or_else(String::new, |outcome| self.cell(outcome, metric))
            }));
            if row[1..].iter().any(|cell| !cell.is_empty()) {
                rows.push(row);
            }
        }
        Table { title, rows }
    }

    fn cell(&self, outcome: &Outcome, metric: usize) -> String {
        let Some(summary) = outcome.summary(metric) else {
            return String::new();
        };
        let mut cell = short(summary.median);
        let spread = summary.spread();
        if spread > 999.0 {
            cell.push_str(" ±>999%");
        } else if spread.is_finite() {
            cell.push_str(&format!(" ±{spread:.0}%"));
        }
        if let Some(ratio) = self
            .ratio(outcome, metric)
            .filter(|ratio| ratio.is_finite())
        {
            cell.push_str(&format!(" {ratio:.2}x"));
        }
        cell
    }

    fn rounds(&self) -> usize {
        let rounds = self.outcomes.iter().map(|outcome| outcome.rounds.len());
        rounds.max().unwrap_or(0)
    }
}

/// With columns as wide as their widest cell, so that it can be read as it is.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:\n", self.title)?;
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(3)
        };
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    write!(f, "| {cell:<width$} |")?;
                } else {
                    write!(f, " {cell:>width$} |")?;
                }
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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## {}: {}\n", self.workload, self.title)?;
        write!(f, "Median of {} rounds, ± half the spread", self.rounds())?;
        if self.candidates().contains(&Library::NAME) {
            write!(f, "; `x`: how many times worse than {}", Library::NAME)?;
        }
        writeln!(f, ".")?;
        for table in self.tables() {
            write!(f, "\n{table}")?;
        }
        Ok(())
    }
}

pub(super) fn markdown(report: &Report, machine: &Machine) -> String {
    format!("{report}\nOn {machine}.\n")
}
