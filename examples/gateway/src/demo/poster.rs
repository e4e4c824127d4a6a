//! Clients that post: each event through a node of their choice, again until it is acknowledged.

use super::client::Connection;
use super::ledger::Ledger;
use hyper::StatusCode;
use request_purgatory_cluster::Position;
use serde::Deserialize;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Posts on their way at once.
const POSTERS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Answer {
    position: String,
}

/// Posts `count` events, `rate` of them in a second, and returns when all are acknowledged.
pub(super) async fn post(ledger: &Arc<Ledger>, addresses: &[SocketAddr], count: u32, rate: u32) {
    let start = Instant::now();
    let next = Arc::new(AtomicU32::new(0));
    let mut posters = JoinSet::new();
    for _ in 0..POSTERS {
        let mut poster = Poster {
            ledger: ledger.clone(),
            addresses: addresses.to_vec(),
            connections: HashMap::new(),
        };
        let next = next.clone();
        posters.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                sleep_until(start + Duration::from_secs(1) * number / rate).await;
                poster.post().await;
            }
        });
    }
    while let Some(ended) = posters.join_next().await {
        if let Err(error) = ended {
            ledger.fail(format!("a poster panicked: {error}"));
        }
    }
}

struct Poster {
    ledger: Arc<Ledger>,
    addresses: Vec<SocketAddr>,
    connections: HashMap<usize, Connection>,
}

impl Poster {
    async fn post(&mut self) {
        let topic = fastrand::usize(..self.ledger.topics());
        loop {
            let node = fastrand::usize(..self.addresses.len());
            match timeout(PATIENCE, self.attempt(node, topic)).await {
                Ok(Ok(Some(position))) => {
                    self.ledger.acknowledge(topic, position.version);
                    return;
                }
                // The node could not reach the store: later.
                Ok(Ok(None)) => sleep(Duration::from_millis(100)).await,
                // The node has ended, or hangs: post to another.
                Ok(Err(_)) | Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    }

    async fn attempt(&mut self, node: usize, topic: usize) -> std::io::Result<Option<Position>> {
        // Back into the map only after an answer.
        let mut connection = match self.connections.remove(&node) {
            Some(connection) => connection,
            None => Connection::open(self.addresses[node]).await?,
        };
        let number = self.ledger.attempt(node);
        let path = format!("/topics/topic-{topic}");
        let (status, body) = connection.post(&path, number.to_string()).await?;
        self.connections.insert(node, connection);
        match status {
            StatusCode::CREATED => {
                let answer = serde_json::from_slice::<Answer>(&body);
                let position = answer.ok().and_then(|it| it.position.parse().ok());
                if position.is_none() {
                    self.ledger
                        .fail("the answer to a post has no position".into());
                }
                Ok(position)
            }
            StatusCode::SERVICE_UNAVAILABLE => Ok(None),
            status => {
                let body = String::from_utf8_lossy(&body);
                self.ledger
                    .fail(format!("a post was answered with {status}: {body}"));
                Ok(None)
            }
        }
    }
}
