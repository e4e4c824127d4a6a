//! What is made of the outcomes: a table for the terminal, and JSON, of which `benches/plot.py` makes pages and plots.

mod json;
pub(crate) mod machine;
pub(crate) mod table;

pub(crate) use self::json::write;

use crate::candidate::Candidate;
use crate::candidates::Library;
use crate::outcome::{Better, Metric, Outcome};

/// The outcomes of one workload.
pub(crate) struct Report {
    pub(crate) workload: &'static str,
    pub(crate) title: &'static str,
    pub(crate) metrics: &'static [Metric],
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

    fn rounds(&self) -> usize {
        let rounds = self.outcomes.iter().map(|outcome| outcome.rounds.len());
        rounds.max().unwrap_or(0)
    }
}
