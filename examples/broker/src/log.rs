//! Lines on standard error. Clients can cause most of them, so there are few of each kind in a second.

use parking_lot::Mutex;
use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Most lines in a second, of each place in the source that writes any: else one client hides what another place has to
/// say. (Relaxed: it guards no memory.)
pub(crate) static LINES: AtomicU32 = AtomicU32::new(10);

/// Longest line, in bytes: names that clients choose are in it.
const LONGEST: usize = 1024;

const SECOND: Duration = Duration::from_secs(1);

/// A place in the source that writes lines.
pub(crate) struct Place(Mutex<Written>);

struct Written {
    since: Option<Instant>,
    /// In this second, with those that were left out.
    lines: u32,
}

impl Place {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Written {
            since: None,
            lines: 0,
        }))
    }

    /// Writes a line, or counts it. The next that is written says how many were not. If standard error is closed, the
    /// line is lost.
    pub(crate) fn write(&self, line: Arguments<'_>) {
        if let Some(line) = self.next(Instant::now(), line) {
            let _ = writeln!(std::io::stderr().lock(), "broker: {line}");
        }
    }

    fn next(&self, now: Instant, line: Arguments<'_>) -> Option<String> {
        let (mut written, most) = (self.0.lock(), LINES.load(Relaxed));
        let mut left_out = 0;
        let is_over = |since: Instant| now.saturating_duration_since(since) >= SECOND;
        if written.since.is_none_or(is_over) {
            left_out = written.lines.saturating_sub(most);
            (written.since, written.lines) = (Some(now), 0);
        }
        written.lines = written.lines.saturating_add(1);
        if written.lines > most {
            return None;
        }
        let mut line = line.to_string();
        line.truncate(line.floor_char_boundary(LONGEST));
        if left_out > 0 {
            line = format!("{line} (before it, {left_out} such lines were left out)");
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_writes_few_lines_in_a_second_and_says_how_many_it_has_left_out() {
        let (place, start) = (Place::new(), Instant::now());
        let written = |seconds: f64| {
            let now = start + Duration::from_secs_f64(seconds);
            let lines = (0..1_000).filter_map(|_| place.next(now, format_args!("a line")));
            lines.collect::<Vec<_>>()
        };
        assert_eq!(written(0.0), ["a line"; 10]);
        assert_eq!(written(0.9), [""; 0]);
        let lines = written(1.0);
        let told = "a line (before it, 1990 such lines were left out)";
        assert_eq!(lines[0], told);
        assert_eq!(lines[1..], ["a line"; 9]);
        let long = "ä".repeat(LONGEST);
        let line = Place::new().next(start, format_args!("x{long}"));
        assert_eq!(line.map(|it| it.len()), Some(LONGEST - 1));
    }
}
