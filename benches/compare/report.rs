//! What is made of the outcomes: tables, JSON, plots.

pub(crate) mod chart;
mod json;
pub(crate) mod machine;
mod plot;
mod svg;
mod table;

use std::fs;
use std::io;
use std::path::Path;

use self::chart::Chart;
use self::machine::Machine;
use crate::candidate::Candidate;
use crate::candidates::Library;
use crate::outcome::{Better, Metric, Outcome};
use crate::workload;

/// The outcomes of one workload.
pub(crate) struct Report {
    pub(crate) workload: &'static str,
    pub(crate) title: &'static str,
    pub(crate) metrics: &'static [Metric],
    pub(crate) charts: &'static [Chart],
    pub(crate) outcomes: Vec<Outcome>,
}

impl Report {
    /// How many times worse than the library's the outcome's median is, in the same case: above 1
    /// the library is better.
    fn ratio(&self, outcome: &Outcome, metric: usize) -> Option<f64> {
        let library = self
            .find(Library::NAME, &outcome.parameters)?
            .summary(metric)?;
        let own = outcome.summary(metric)?;
        match self.metrics[metric].better {
            Better::Less => Some(own.median / library.median),
            Better::More => Some(library.median / own.median),
            Better::Neither => None,
        }
    }

    fn find(&self, candidate: &str, parameters: &[(&str, usize)]) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| {
            outcome.candidate == candidate && outcome.parameters.as_slice() == parameters
        })
    }

    /// In the order in which they entered.
    fn candidates(&self) -> Vec<&'static str> {
        let mut candidates = Vec::new();
        for outcome in &self.outcomes {
            if !candidates.contains(&outcome.candidate) {
                candidates.push(outcome.candidate);
            }
        }
        candidates
    }

    /// In the order in which they ran.
    fn cases(&self) -> Vec<&[(&'static str, usize)]> {
        let mut cases: Vec<&[_]> = Vec::new();
        for outcome in &self.outcomes {
            if !cases.contains(&outcome.parameters.as_slice()) {
                cases.push(&outcome.parameters);
            }
        }
        cases
    }

    /// Whether any candidate has a value of this metric in this case.
    fn has(&self, case: &[(&'static str, usize)], metric: usize) -> bool {
        let of_case = |outcome: &&Outcome| outcome.parameters == case;
        let mut outcomes = self.outcomes.iter().filter(of_case);
        outcomes.any(|outcome| outcome.summary(metric).is_some())
    }
}

/// Writes a workload's files into `folder`, and the files of all workloads there anew.
pub(crate) fn write(report: &Report, machine: &Machine, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let name = report.workload;
    fs::write(
        folder.join(format!("{name}.json")),
        json::workload(report, machine),
    )?;
    fs::write(
        folder.join(format!("{name}.md")),
        table::markdown(report, machine),
    )?;
    // Charts of cases that this run did not have would be of an older one.
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if file.starts_with(&format!("{name}-")) && file.ends_with(".svg") {
            fs::remove_file(path)?;
        }
    }
    for (file, drawing) in chart::draw(report) {
        fs::write(folder.join(file), drawing)?;
    }
    let parts = |extension: &str| -> Vec<String> {
        workload::ALL
            .iter()
            .filter_map(|entry| {
                fs::read_to_string(folder.join(format!("{}.{extension}", entry.name))).ok()
            })
            .collect()
    };
    fs::write(folder.join("results.json"), json::all(&parts("json")))?;
    fs::write(folder.join("results.md"), parts("md").join("\n"))
}
