//! The JSON, by hand: names here are plain words, and a serializer would be one more dependency.

use std::fmt::Write as _;

use super::Report;
use super::machine::Machine;
use crate::outcome::Outcome;

/// One workload: the machine, and every round of every outcome.
pub(super) fn workload(report: &Report, machine: &Machine) -> String {
    let metrics: Vec<String> = report
        .metrics
        .iter()
        .map(|metric| {
            let (name, unit) = (metric.name, metric.unit);
            format!(
                "  {{\"name\": \"{name}\", \"unit\": \"{unit}\", \"better\": \"{}\"}}",
                format!("{:?}", metric.better).to_lowercase()
            )
        })
        .collect();
    let outcomes: Vec<String> = report
        .outcomes
        .iter()
        .map(|outcome| self::outcome(report, outcome))
        .collect();
    format!(
        "{{\n\"workload\": \"{}\",\n\"title\": \"{}\",\n\"processor\": \"{}\",\n\"cores\": {},\n\
         \"system\": \"{}\",\n\"compiler\": \"{}\",\n\"metrics\": [\n{}\n],\n\
         \"outcomes\": [\n{}\n]\n}}\n",
        report.workload,
        report.title,
        plain(&machine.processor),
        machine.cores,
        plain(&machine.system),
        plain(&machine.compiler),
        metrics.join(",\n"),
        outcomes.join(",\n")
    )
}

/// All workloads together.
pub(super) fn all(workloads: &[String]) -> String {
    let trimmed: Vec<_> = workloads.iter().map(|text| text.trim_end()).collect();
    format!("[\n{}\n]\n", trimmed.join(",\n"))
}

fn outcome(report: &Report, outcome: &Outcome) -> String {
    let mut line = String::from("  {");
    for (name, value) in &outcome.parameters {
        write!(line, "\"{name}\": {value}, ").expect("a string takes it");
    }
    let mut metrics = Vec::new();
    for (index, metric) in report.metrics.iter().enumerate() {
        let Some(summary) = outcome.summary(index) else {
            continue;
        };
        let rounds: Vec<String> = outcome.values(index).map(number).collect();
        let ratio = report.ratio(outcome, index).unwrap_or(f64::NAN);
        metrics.push(format!(
            "    \"{}\": {{\"median\": {}, \"min\": {}, \"max\": {}, \"ratio_to_library\": {}, \
             \"rounds\": [{}]}}",
            metric.name,
            number(summary.median),
            number(summary.least),
            number(summary.most),
            number(ratio),
            rounds.join(", ")
        ));
    }
    write!(
        line,
        "\"candidate\": \"{}\", \"values\": {{\n{}}}}}",
        outcome.candidate,
        metrics.join(",\n")
    )
    .expect("a string takes it");
    line
}

fn number(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.4}")
    } else {
        "null".to_owned()
    }
}

fn plain(text: &str) -> String {
    text.replace(['"', '\\'], " ")
}
