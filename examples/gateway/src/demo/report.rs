//! The table at the end.

use super::fleet::Node;
use super::ledger::{Figures, LATE};
use std::fmt;
use std::time::Duration;

/// What the shutdown did to the polls that were parked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Farewell {
    pub(super) parked: usize,
    pub(super) answered: u64,
    pub(super) cut: u64,
    pub(super) took: Duration,
}

#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) phases: Vec<Figures>,
    pub(super) nodes: &'a [Node],
    pub(super) farewell: Farewell,
    pub(super) failures: Vec<String>,
    pub(super) resets: u64,
    pub(super) reconnects: u64,
}

impl Report<'_> {
    pub(super) fn lost(&self) -> u64 {
        self.phases.iter().map(|it| it.lost).sum::<u64>() + self.farewell.cut
    }

    /// Whether the demo shows what it is to show.
    pub(super) fn is_good(&self) -> bool {
        // No engine of the demo loses data, so no client is to start over.
        self.lost() == 0 && self.failures.is_empty() && self.resets == 0
    }

    fn total(&self) -> Figures {
        let mut total = Figures {
            name: "in all",
            ..Figures::default()
        };
        for phase in &self.phases {
            total.events += phase.events;
            total.wakeups += phase.wakeups;
            total.lost += phase.lost;
            total.late += phase.late;
            total.longest = total.longest.max(phase.longest);
            total.elsewhere.extend(&phase.elsewhere);
        }
        total
    }
}

fn millis(time: Duration) -> String {
    match time.as_secs_f64() * 1e3 {
        it if it < 100.0 => format!("{it:.1} ms"),
        it => format!("{it:.0} ms"),
    }
}

fn quantile(sorted: &[Duration], part: f64) -> String {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * part).round() as usize;
    sorted.get(at).map_or("-".into(), |it| millis(*it))
}

fn row(f: &mut fmt::Formatter<'_>, figures: &Figures) -> fmt::Result {
    let mut elsewhere = figures.elsewhere.clone();
    elsewhere.sort_unstable();
    writeln!(
        f,
        "{:<24}{:>8}{:>10}{:>6}{:>7}{:>11}{:>11}{:>11}",
        figures.name,
        figures.events,
        figures.wakeups,
        figures.lost,
        figures.late,
        millis(figures.longest),
        quantile(&elsewhere, 0.5),
        quantile(&elsewhere, 0.99),
    )
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<24}{:>8}{:>10}{:>6}{:>7}{:>11}{:>11}{:>11}",
            "", "events", "wake-ups", "lost", "late", "longest", "p50", "p99"
        )?;
        for phase in &self.phases {
            row(f, phase)?;
        }
        row(f, &self.total())?;
        writeln!(
            f,
            "late: more than {LATE:?} from the POST to an answer; p50, p99: from the POST to the answer on another node\n"
        )?;
        writeln!(
            f,
            "{:<12}{:>9}{:>10}{:>16}{:>14}{:>6}{:>8}",
            "", "CPU", "wake-ups", "CPU per wake-up", "bodies read", "gaps", "healed"
        )?;
        for node in self.nodes {
            let stats = &node.stats;
            let each = stats.cpu_ms * 1e3 / stats.woken.max(1) as f64;
            writeln!(
                f,
                "{:<12}{:>7.2} s{:>10}{each:>13.0} us{:>14}{:>6}{:>8}",
                stats.name,
                stats.cpu_ms / 1e3,
                stats.woken,
                stats.fetches,
                stats.gaps,
                stats.healed,
            )?;
        }
        let Farewell {
            parked,
            answered,
            cut,
            took,
        } = self.farewell;
        writeln!(
            f,
            "\nshutdown: {parked} polls were parked, {answered} answered and {cut} cut off, in {}",
            millis(took)
        )?;
        writeln!(
            f,
            "clients came again {} times; {} were told that the store lost data",
            self.reconnects, self.resets
        )?;
        for failure in self.failures.iter().take(10) {
            writeln!(f, "failure: {failure}")?;
        }
        write!(f, "lost: {}", self.lost())
    }
}
