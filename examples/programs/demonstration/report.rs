//! What happened: one table, one histogram, and whether the counts add up.

use crate::request::Request;
use hdrhistogram::Histogram;
use request_purgatory::purgatory::Stats;
use std::{fmt, thread};

/// The requests of one kind: as the program has counted them, and as the library has.
pub(crate) struct Row {
    pub(crate) requests: u64,
    pub(crate) satisfied: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) library: Stats,
}

impl Row {
    pub(crate) fn ended(&self) -> u64 {
        self.satisfied + self.expired + self.cancelled
    }

    fn parked(&self) -> u64 {
        self.requests - self.library.completed_at_once
    }

    fn contradictions(&self, name: &str) -> Vec<String> {
        let Self { library, .. } = self;
        let checks = [
            ("requests and their endings", self.requests, self.ended()),
            (
                "callbacks of satisfied requests, and the library's count",
                self.satisfied,
                library.completed + library.completed_at_once,
            ),
            ("callbacks of expired ones", self.expired, library.expired),
            ("cancelled ones", self.cancelled, library.cancelled),
            ("parked ones at the end", library.parked as u64, 0),
            ("watches at the end", library.watched as u64, 0),
            ("panics", library.panicked, 0),
        ];
        let wrong = checks.into_iter().filter(|(_, one, other)| one != other);
        wrong
            .map(|(what, one, other)| format!("{name}: {what}: {one}, {other}"))
            .collect()
    }
}

pub(crate) struct Report {
    pub(crate) fetch: Row,
    pub(crate) produce: Row,
    pub(crate) keys_left: usize,
    pub(crate) partitions: usize,
    pub(crate) threads: usize,
    pub(crate) parked_at_once: usize,
    pub(crate) per_second: f64,
    /// Bytes for each parked request.
    pub(crate) memory: Option<f64>,
    /// Nanoseconds.
    pub(crate) wake_ups: Histogram<u64>,
    pub(crate) lateness: Histogram<u64>,
}

impl Report {
    pub(crate) fn contradictions(&self) -> Vec<String> {
        let mut found = self.fetch.contradictions("fetch");
        found.extend(self.produce.contradictions("produce"));
        if self.keys_left > 0 {
            found.push(format!("{} keys are still watched", self.keys_left));
        }
        if self.fetch.satisfied + self.produce.satisfied == 0 {
            found.push("no request was satisfied".into());
        }
        found
    }

    /// What the counts say together.
    fn conclusion(&self) -> String {
        let sum = |of: CountOf| grouped([&self.fetch, &self.produce].map(of).iter().sum());
        let counts = format!(
            "{} requests parked, {} ended, {} left",
            sum(Row::parked),
            sum(|row| row.ended().saturating_sub(row.library.completed_at_once)),
            sum(|row| row.library.parked as u64),
        );
        if self.contradictions().is_empty() {
            format!("{counts}: every parked request ended once, and none is left.")
        } else {
            format!("{counts}: the counts do not add up.")
        }
    }

    fn bars(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bars: Vec<(u64, u64)> = self
            .wake_ups
            .iter_log(250, 2.0)
            .map(|step| {
                (
                    step.value_iterated_to() + 1,
                    step.count_since_last_iteration(),
                )
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        let largest = bars.iter().map(|(_, count)| *count).max().unwrap_or(1);
        for (below, count) in bars {
            let share = 100.0 * count as f64 / self.wake_ups.len() as f64;
            let bar = match (40 * count + largest / 2) / largest {
                0 => "▏".to_owned(),
                length => "█".repeat(length as usize),
            };
            writeln!(f, "  < {:>8}  {share:>6.2} %  {bar}", time(below))?;
        }
        Ok(())
    }
}

type CountOf = fn(&Row) -> u64;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fetch, produce) = (&self.fetch, &self.produce);
        writeln!(
            f,
            "{} requests parked at any time, each on 3 of {} keys; threads that append, replicate and cancel at random: {}\n",
            grouped(self.parked_at_once as u64),
            grouped(self.partitions as u64),
            self.threads,
        )?;
        writeln!(f, "{:<24}{:>14}{:>14}", "", "fetch", "produce")?;
        let rows: [(&str, CountOf); 6] = [
            ("never parked", |row| row.library.completed_at_once),
            ("parked", Row::parked),
            ("satisfied", |row| row.satisfied),
            ("expired", |row| row.expired),
            ("cancelled", |row| row.cancelled),
            ("left", |row| row.library.parked as u64),
        ];
        for (name, of) in rows {
            let (fetch, produce) = (grouped(of(fetch)), grouped(of(produce)));
            writeln!(f, "{name:<24}{fetch:>14}{produce:>14}")?;
        }
        writeln!(f, "{:<24}{:>14}{:>14}{:>14}", "", "p50", "p99", "p99.9")?;
        let times = [
            ("wake-up after the event", &self.wake_ups),
            ("lateness of expiries", &self.lateness),
        ];
        for (name, times) in times {
            let [p50, p99, p999] =
                [0.5, 0.99, 0.999].map(|part| time(times.value_at_quantile(part)));
            writeln!(f, "{name:<24}{p50:>14}{p99:>14}{p999:>14}")?;
        }
        let per_second = grouped(self.per_second as u64);
        writeln!(f, "{:<24}{per_second:>14}", "operations per second")?;
        let memory = match self.memory {
            Some(bytes) => format!("{bytes:.0} bytes"),
            None => "not measured".into(),
        };
        let own = format!("{} of them yours", size_of::<Request>());
        writeln!(f, "{:<24}{memory:>14}  ({own})", "memory per operation")?;
        let processors = thread::available_parallelism().map_or(1, |processors| processors.get());
        writeln!(
            f,
            "Lateness includes the time that threads waited for a processor; this machine has {processors}."
        )?;
        writeln!(f, "\nwake-up, from the event to the callback")?;
        self.bars(f)?;
        writeln!(f, "\n{}", self.conclusion())
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits"))
        .collect();
    groups.join(",")
}

fn time(nanoseconds: u64) -> String {
    match nanoseconds as f64 {
        time if time < 1e3 => format!("{time:.0} ns"),
        time if time < 1e6 => format!("{:.1} µs", time / 1e3),
        time if time < 1e9 => format!("{:.1} ms", time / 1e6),
        time => format!("{:.1} s", time / 1e9),
    }
}
