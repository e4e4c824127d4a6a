//! A line for each second, and one for each phase.

use super::fleet::Fleet;
use super::ledger::Ledger;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Progress {
    ledger: Arc<Ledger>,
    start: Instant,
    shown: Option<Instant>,
}

impl Progress {
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        Self {
            ledger,
            start: Instant::now(),
            shown: None,
        }
    }

    pub(super) fn is_due(&self) -> bool {
        let second = Duration::from_secs(1);
        self.shown.is_none_or(|it| it.elapsed() >= second)
    }

    /// A line, unless there was one within this second.
    pub(super) fn show(&mut self, phase: &str, fleet: &Fleet) {
        if self.is_due() {
            self.line(phase, fleet);
        }
    }

    pub(super) fn end(&mut self, phase: &str, fleet: &Fleet) {
        self.line(&format!("{phase}: done"), fleet);
    }

    fn line(&mut self, phase: &str, fleet: &Fleet) {
        self.shown = Some(Instant::now());
        let parked = fleet.parked();
        let each = parked.iter().map(usize::to_string).collect::<Vec<_>>();
        let (events, wakeups) = self.ledger.last();
        println!(
            "{:>5.1} s  {phase:<30} parked {:>6} ({}), events {events}, wake-ups {wakeups}, not told yet {}",
            self.start.elapsed().as_secs_f64(),
            parked.iter().sum::<usize>(),
            each.join(" + "),
            self.ledger.behind(),
        );
    }
}
