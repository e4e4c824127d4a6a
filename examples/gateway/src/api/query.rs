//! `?after=N&wait=S`.

use crate::gateway::Seen;
use std::time::Duration;

/// What a poll asks for.
#[derive(Debug, PartialEq)]
pub(super) struct Poll {
    pub(super) seen: Seen,
    pub(super) wait: Duration,
}

impl Poll {
    /// Reads names and values, of which the escapes are undone. Without `after`, all events; without `wait`, at once.
    ///
    /// # Errors
    /// What is wrong, in a sentence.
    pub(super) fn parse(pairs: &[(String, String)], max_wait: Duration) -> Result<Self, String> {
        let (mut seen, mut wait) = (None, None);
        for (name, value) in pairs {
            let is_new = match &**name {
                "after" => seen.replace(parse_seen(value)?).is_none(),
                "wait" => wait.replace(parse_wait(value, max_wait)?).is_none(),
                _ => return Err("a poll takes `after` and `wait`, and nothing else".into()),
            };
            if !is_new {
                return Err(format!("`{name}` is given twice"));
            }
        }
        Ok(Self {
            seen: seen.unwrap_or(Seen::Version(0)),
            wait: wait.unwrap_or(Duration::ZERO),
        })
    }
}

fn parse_seen(text: &str) -> Result<Seen, String> {
    let version = || text.parse().map(Seen::Version).ok();
    let position = || text.parse().map(Seen::Position).ok();
    version().or_else(position).ok_or_else(|| {
        "`after` is a version such as 42, or the `position` of an earlier answer".into()
    })
}

fn parse_wait(text: &str, max: Duration) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let wait = seconds.and_then(|it| Duration::try_from_secs_f64(it).ok());
    wait.filter(|it| *it <= max).ok_or_else(|| {
        let max = max.as_secs_f64();
        format!("`wait` is a number of seconds from 0 to {max} (`--max-wait`)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::extract::Query;
    use request_purgatory_cluster::{Epoch, Position};

    fn parsed(query: &str) -> Result<Poll, String> {
        let uri = format!("/?{query}").parse().expect("a URI");
        let pairs = Query::<Vec<_>>::try_from_uri(&uri).expect("pairs");
        Poll::parse(&pairs, Duration::from_secs(300))
    }

    #[test]
    fn versions_positions_and_times_are_read() {
        let position = Position {
            epoch: Epoch(0x1f),
            version: 42,
        };
        for (query, seen, seconds) in [
            ("", Seen::Version(0), 0.0),
            ("after=7", Seen::Version(7), 0.0),
            ("wait=0.5&after=1f-42", Seen::Position(position), 0.5),
            ("after=0&wait=300", Seen::Version(0), 300.0),
            // As in a path.
            ("wait=%31&after=%37", Seen::Version(7), 1.0),
            (
                "w%61it=1%2E5&&%61fter=1f%2d42&",
                Seen::Position(position),
                1.5,
            ),
        ] {
            let wait = Duration::from_secs_f64(seconds);
            assert_eq!(parsed(query), Ok(Poll { seen, wait }), "{query}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_a_sentence() {
        for query in [
            "after",
            "after=",
            "after=-1",
            "after=x",
            "after=1-",
            "after=99999999999999999999",
            "wait=",
            "wait=-1",
            "wait=301",
            "wait=NaN",
            "wait=inf",
            "wait=1s",
            "after=1&after=2",
            "until=3",
            // Undone once, in what stands between the separators, and only what is an escape.
            "wait=%2531",
            "wait%3D1",
            "after=1%26wait=1",
            "wait=%3",
            "wait=%ff1",
        ] {
            assert!(parsed(query).is_err(), "{query}");
        }
    }
}
