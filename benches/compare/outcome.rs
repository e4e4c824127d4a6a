//! What was measured: rounds of values, and what is made of them.

use hdrhistogram::Histogram;

/// A quantity that a workload measures.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    Less,
    More,
    /// It explains the other values, and has no ratio.
    Neither,
}

impl Metric {
    pub(crate) const fn less(name: &'static str, unit: &'static str) -> Self {
        let better = Better::Less;
        Self { name, unit, better }
    }

    pub(crate) const fn more(name: &'static str, unit: &'static str) -> Self {
        let better = Better::More;
        Self { name, unit, better }
    }

    pub(crate) const fn note(name: &'static str, unit: &'static str) -> Self {
        let better = Better::Neither;
        Self { name, unit, better }
    }

    /// `park p99 [µs]`.
    pub(crate) fn label(&self) -> String {
        format!("{} [{}]", self.name, self.unit)
    }
}

/// What distinguishes the cases of a workload, by name.
pub(crate) type Parameters = Vec<(&'static str, usize)>;

/// A value for each metric; NaN where the metric says nothing of the candidate or the case.
pub(crate) type Values = Vec<f64>;

/// For nanoseconds, each within 1 % of itself. To record one allocates nothing; what is over an hour counts as one.
pub(crate) fn histogram() -> Histogram<u64> {
    const HOUR: u64 = 3_600_000_000_000;
    Histogram::new_with_max(HOUR, 2).expect("good bounds")
}

/// All rounds of one contender in one case.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) candidate: &'static str,
    pub(crate) parameters: Parameters,
    pub(crate) rounds: Vec<Values>,
}

/// The rounds of one metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Outcome {
    /// In the order of the rounds.
    pub(crate) fn values(&self, metric: usize) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(move |round| round[metric])
    }

    /// `None` if no round has a value.
    pub(crate) fn summary(&self, metric: usize) -> Option<Summary> {
        let mut sorted: Vec<f64> = self
            .values(metric)
            .filter(|value| !value.is_nan())
            .collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        Some(Summary {
            least: *sorted.first()?,
            most: *sorted.last()?,
            median: if sorted.len() % 2 == 1 {
                sorted[middle]
            } else {
                f64::midpoint(sorted[middle - 1], sorted[middle])
            },
        })
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<usize> {
        parameter(&self.parameters, name)
    }
}

impl Summary {
    /// Half the spread, in percent of the median.
    pub(crate) fn spread(&self) -> f64 {
        (self.most - self.least) / 2.0 / self.median.abs() * 100.0
    }
}

pub(crate) fn parameter(parameters: &[(&'static str, usize)], name: &str) -> Option<usize> {
    let found = parameters.iter().find(|(other, _)| *other == name);
    found.map(|&(_, value)| value)
}

/// `keys=3 parked=1,000`.
pub(crate) fn label(parameters: &[(&str, usize)]) -> String {
    let parts: Vec<_> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", grouped(*value)))
        .collect();
    parts.join(" ")
}

pub(crate) fn grouped(value: usize) -> String {
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

/// With about three digits that count.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", grouped(size.round() as usize))
        }
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
