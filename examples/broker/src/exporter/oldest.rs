//! Which requests have waited longest.

use crate::broker::partition::TopicPartition;
use crate::broker::purgatories::Purgatories;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use request_purgatory::{DelayedOperation, Purgatory};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How many are shown of each purgatory.
const SHOWN: usize = 8;

/// How many keys of each are named.
const NAMED: usize = 20;

/// A look goes over all that is parked: pages that ask at the same time share one.
const FRESH: Duration = Duration::from_millis(200);

/// The last look, and what it is taken at.
pub(super) struct Oldest {
    purgatories: Purgatories,
    last: Mutex<Option<(Instant, String)>>,
}

impl Oldest {
    pub(super) fn new(purgatories: Purgatories) -> Self {
        Self {
            purgatories,
            last: Mutex::default(),
        }
    }
}

pub(super) async fn answer(State(oldest): State<Arc<Oldest>>) -> impl IntoResponse {
    let mut last = oldest.last.lock().await;
    let found = match &*last {
        Some((at, found)) if at.elapsed() < FRESH => found.clone(),
        _ => {
            let purgatories = oldest.purgatories.clone();
            // Not on a thread that serves requests.
            let found = tokio::task::spawn_blocking(
                move || json!({ "fetch": of(&purgatories.fetch), "produce": of(&purgatories.produce) }),
            );
            let found = found.await.unwrap_or(Value::Null).to_string();
            *last = Some((Instant::now(), found.clone()));
            found
        }
    };
    ([(CONTENT_TYPE, "application/json")], found)
}

fn of<Op: DelayedOperation<Key = TopicPartition>>(purgatory: &Purgatory<Op>) -> Value {
    let parked = purgatory.snapshot().into_iter().take(SHOWN);
    parked
        .map(|operation| {
            let mut keys = operation.keys;
            keys.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
            let named = keys.iter().take(NAMED);
            let named = named.map(|key| format!("{}-{}", key.topic, key.partition));
            json!({
                "keys": named.collect::<Vec<_>>(),
                "more": keys.len().saturating_sub(NAMED),
                "age": operation.age.as_secs_f64(),
                "remaining": operation.remaining.map(|time| time.as_secs_f64()),
            })
        })
        .collect()
}
