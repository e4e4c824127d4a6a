//! The JSON: the machine, and every round of every outcome, a line each.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::Report;
use super::machine::Machine;
use crate::outcome::Outcome;

/// Writes a workload's file into `folder`.
pub(crate) fn write(report: &Report, machine: &Machine, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let file = folder.join(format!("{}.json", report.workload));
    fs::write(file, workload(report, machine))
}

fn workload(report: &Report, machine: &Machine) -> String {
    let metric = |metric: &crate::outcome::Metric| {
        let better = format!("{:?}", metric.better).to_lowercase();
        json!({"name": metric.name, "unit": metric.unit, "better": better})
    };
    let about = json!({
        "workload": report.workload,
        "title": report.title,
        "processor": machine.processor,
        "cores": machine.cores,
        "system": machine.system,
        "compiler": machine.compiler,
        "metrics": report.metrics.iter().map(metric).collect::<Value>(),
    });
    let outcomes = report.outcomes.iter();
    let lines: Vec<String> = outcomes
        .map(|outcome| self::outcome(report, outcome).to_string())
        .collect();
    let lines = lines.join(",\n");
    format!("{{\"about\": {about},\n\"outcomes\": [\n{lines}\n]}}\n")
}

/// The rounds of each metric that has a value in one of them.
fn outcome(report: &Report, outcome: &Outcome) -> Value {
    let metrics = report.metrics.iter().enumerate();
    let rounds: serde_json::Map<String, Value> = metrics
        .filter(|&(index, _)| outcome.summary(index).is_some())
        .map(|(index, metric)| {
            let values = outcome.values(index).map(four_places);
            (metric.name.to_owned(), values.collect())
        })
        .collect();
    json!({"candidate": outcome.candidate, "parameters": outcome.parameters, "rounds": rounds})
}

/// Null where it is no number.
fn four_places(value: f64) -> Value {
    json!((value * 1e4).round() / 1e4)
}
