//! Which plots a workload's outcomes are shown in.

use super::Report;
use super::plot::{Plot, Series};
use crate::outcome::{Outcome, Parameters, compact, label, parameter};

/// A plot, or one for each of the cases that it cannot show together.
#[derive(Debug)]
pub(crate) enum Chart {
    /// The cases in groups.
    Bars { metric: usize },
    /// The metrics in groups, for each case.
    Spread {
        metrics: &'static [usize],
        label: &'static str,
    },
    /// Over a parameter, for each setting of the others.
    Lines {
        metric: usize,
        along: &'static str,
        unit: &'static str,
    },
}

/// A colour for each candidate, the same in every plot.
const COLOURS: [(&str, &str); 25] = [
    ("request_purgatory", "#d1351f"),
    ("floor", "#9a9a9a"),
    ("harness", "#c4c4c4"),
    ("tm_wheel", "#1f77b4"),
    ("btree_map", "#2ca02c"),
    ("binary_heap", "#98c379"),
    ("delay_queue", "#9467bd"),
    ("straight_port", "#8c564b"),
    ("unpurged_port", "#c49c94"),
    ("tokio_idiom", "#e8a317"),
    ("hash_wheel", "#17becf"),
    ("nexus_wheel", "#e377c2"),
    ("full_check", "#f0927f"),
    ("resolved_key", "#7a1f12"),
    ("after_lock", "#f2b134"),
    ("resolved_keys", "#7a1f12"),
    ("unordered_list", "#c4c4c4"),
    ("ordered_list", "#8a8a8a"),
    ("heap", "#2ca02c"),
    ("simple_wheel", "#e8a317"),
    ("sorted_hashed_wheel", "#9467bd"),
    ("hashed_wheel", "#1f77b4"),
    ("stepped_wheel", "#8c564b"),
    ("hierarchical_wheel", "#d1351f"),
    ("", "#444444"),
];

fn colour(candidate: &str) -> &'static str {
    let known = COLOURS.iter().find(|(name, _)| *name == candidate);
    known.unwrap_or(&COLOURS[COLOURS.len() - 1]).1
}

/// Every plot of a report, with the name of its file.
pub(super) fn draw(report: &Report) -> Vec<(String, String)> {
    report
        .charts
        .iter()
        .flat_map(|chart| match *chart {
            Chart::Bars { metric } => report.bars(metric),
            Chart::Spread { metrics, label } => report.spreads(metrics, label),
            Chart::Lines {
                metric,
                along,
                unit,
            } => report.lines(metric, along, unit),
        })
        .collect()
}

impl Report {
    /// Those that have any of the values.
    fn series<'a, K: 'a>(
        &'a self,
        places: &'a [K],
        find: impl Fn(&'a str, &K) -> Option<(&'a Outcome, usize)>,
    ) -> Vec<Series> {
        let candidates = self.candidates().into_iter();
        candidates
            .map(|name| Series {
                name,
                colour: colour(name),
                values: places
                    .iter()
                    .map(|place| find(name, place).and_then(|(outcome, of)| outcome.summary(of)))
                    .collect(),
            })
            .filter(|series| series.values.iter().any(Option::is_some))
            .collect()
    }

    fn title(&self) -> String {
        format!("{}: {}", self.workload, self.title)
    }

    fn bars(&self, metric: usize) -> Vec<(String, String)> {
        let cases: Vec<_> = self
            .cases()
            .into_iter()
            .filter(|case| self.has(case, metric))
            .collect();
        if cases.is_empty() {
            return Vec::new();
        }
        let quantity = &self.metrics[metric];
        let plot = Plot {
            title: &self.title(),
            subtitle: &self.subtitle(quantity.name),
            y_label: &quantity.label(),
            series: self.series(&cases, |name, case| Some((self.find(name, case)?, metric))),
        };
        let groups: Vec<String> = cases.iter().map(|case| compact(case)).collect();
        vec![(self.file(&[quantity.name]), plot.bars(&groups))]
    }

    fn spreads(&self, metrics: &[usize], y_label: &str) -> Vec<(String, String)> {
        let drawing = |case: &[(&'static str, usize)]| {
            let plot = Plot {
                title: &self.title(),
                subtitle: &self.subtitle(&label(case)),
                y_label,
                series: self.series(metrics, |name, &metric| {
                    Some((self.find(name, case)?, metric))
                }),
            };
            let groups: Vec<String> = metrics
                .iter()
                .map(|&metric| self.metrics[metric].name.to_owned())
                .collect();
            (self.file(&[y_label, &label(case)]), plot.bars(&groups))
        };
        self.cases().into_iter().map(drawing).collect()
    }

    fn lines(&self, metric: usize, along: &str, unit: &str) -> Vec<(String, String)> {
        let mut settings: Vec<Parameters> = Vec::new();
        for case in self.cases() {
            let others = without(case, along);
            if parameter(case, along).is_some() && !settings.contains(&others) {
                settings.push(others);
            }
        }
        let quantity = &self.metrics[metric];
        let mut drawings = Vec::new();
        for setting in settings {
            let cases: Vec<_> = self
                .cases()
                .into_iter()
                .filter(|case| parameter(case, along).is_some() && without(case, along) == setting)
                .collect();
            // One point is no line.
            if cases.len() < 2 {
                continue;
            }
            let places: Vec<f64> = cases
                .iter()
                .filter_map(|case| parameter(case, along))
                .map(|place| place as f64)
                .collect();
            let plot = Plot {
                title: &self.title(),
                subtitle: &self.subtitle(&label(&setting)),
                y_label: &quantity.label(),
                series: self.series(&cases, |name, case| Some((self.find(name, case)?, metric))),
            };
            let x_label = if unit.is_empty() {
                along.to_owned()
            } else {
                format!("{along} [{unit}]")
            };
            let file = self.file(&[quantity.name, along, &label(&setting)]);
            drawings.push((file, plot.lines(&places, &x_label)));
        }
        drawings
    }

    fn subtitle(&self, what: &str) -> String {
        let rounds = self
            .outcomes
            .first()
            .map_or(0, |outcome| outcome.rounds.len());
        format!("{what}; median of {rounds} rounds, whiskers from least to most")
    }

    /// `W1-life-over-parked-keys-3.svg`, from words as they come.
    fn file(&self, parts: &[&str]) -> String {
        let mut name = self.workload.to_owned();
        for part in parts {
            let words = part.split(|letter: char| !letter.is_ascii_alphanumeric());
            for word in words.filter(|word| !word.is_empty()) {
                name.push('-');
                name.push_str(&word.to_lowercase());
            }
        }
        name + ".svg"
    }
}

fn without(case: &[(&'static str, usize)], name: &str) -> Parameters {
    let others = case.iter().filter(|(other, _)| *other != name);
    others.copied().collect()
}
