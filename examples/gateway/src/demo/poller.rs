//! Clients that poll in a loop, and go to another node when theirs has ended.

use super::client::Connection;
use super::ledger::Ledger;
use hyper::StatusCode;
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// What a poll asks for, in seconds: longer than a phase takes to find what was lost.
const WAIT: u64 = 120;

/// All pollers share it.
#[derive(Debug)]
pub(super) struct Crowd {
    pub(super) ledger: Arc<Ledger>,
    pub(super) addresses: Vec<SocketAddr>,
    /// The nodes shut down: a poller leaves after its answer.
    pub(super) is_leaving: AtomicBool,
    pub(super) answered: AtomicU64,
    pub(super) cut: AtomicU64,
}

#[derive(Deserialize)]
struct Answer {
    position: String,
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Gone {
    position: String,
}

#[derive(Deserialize)]
struct Event {
    version: u64,
    body: String,
}

pub(super) fn spawn(crowd: &Arc<Crowd>) -> JoinSet<()> {
    let mut pollers = JoinSet::new();
    for number in 0..crowd.ledger.pollers() {
        // The pollers of a topic are on all nodes.
        let node = number / crowd.ledger.topics() % crowd.addresses.len();
        pollers.spawn(Poller::new(number, node, crowd.clone()).run());
    }
    pollers
}

struct Poller {
    number: usize,
    node: usize,
    crowd: Arc<Crowd>,
    /// The position of the last answer.
    after: String,
    seen: u64,
}

/// Clients that were cut off together do not come back together.
async fn pause(millis: std::ops::Range<u64>) {
    sleep(Duration::from_millis(fastrand::u64(millis))).await;
}

impl Poller {
    fn new(number: usize, node: usize, crowd: Arc<Crowd>) -> Self {
        Self {
            number,
            node,
            crowd,
            after: "0".into(),
            seen: 0,
        }
    }

    async fn run(mut self) {
        // They arrive within a second.
        pause(0..1_000).await;
        let mut connection = None;
        while !self.crowd.is_leaving.load(Ordering::SeqCst) {
            let mut open = match connection.take() {
                Some(connection) => connection,
                None => match Connection::open(self.crowd.addresses[self.node]).await {
                    Ok(connection) => connection,
                    Err(_) => {
                        self.go_elsewhere().await;
                        continue;
                    }
                },
            };
            let topic = self.crowd.ledger.topic_of(self.number);
            let path = format!("/topics/topic-{topic}?after={}&wait={WAIT}", self.after);
            let answer = open.get(&path).await;
            let is_leaving = self.crowd.is_leaving.load(Ordering::SeqCst);
            match answer {
                Ok((status, body)) => {
                    connection = Some(open);
                    self.crowd
                        .answered
                        .fetch_add(u64::from(is_leaving), Ordering::SeqCst);
                    self.take(status, &body).await;
                }
                Err(_) if is_leaving => {
                    self.crowd.cut.fetch_add(1, Ordering::SeqCst);
                }
                Err(_) => self.go_elsewhere().await,
            }
        }
    }

    async fn go_elsewhere(&mut self) {
        let ledger = &self.crowd.ledger;
        ledger.reconnects.fetch_add(1, Ordering::SeqCst);
        let nodes = self.crowd.addresses.len();
        self.node = (self.node + fastrand::usize(1..nodes)) % nodes;
        pause(5..100).await;
    }

    async fn take(&mut self, status: StatusCode, body: &[u8]) {
        let ledger = &self.crowd.ledger;
        match status {
            StatusCode::OK => match serde_json::from_slice::<Answer>(body) {
                Ok(answer) => {
                    let number = |event: &Event| event.body.parse().unwrap_or(usize::MAX);
                    let events = answer.events.iter().map(|it| (it.version, number(it)));
                    let events = events.collect::<Vec<_>>();
                    ledger.tell(self.number, self.node, &events);
                    self.after = answer.position;
                    self.seen = events.last().map_or(self.seen, |(version, _)| *version);
                }
                Err(error) => ledger.fail(format!("an answer makes no sense: {error}")),
            },
            StatusCode::NO_CONTENT => ledger.expire(self.number, self.seen),
            StatusCode::GONE => {
                ledger.resets.fetch_add(1, Ordering::SeqCst);
                let position = serde_json::from_slice::<Gone>(body).ok();
                let position = position.map_or_else(|| "0".into(), |it| it.position);
                let version = position.rsplit('-').next().and_then(|it| it.parse().ok());
                (self.after, self.seen) = (position, version.unwrap_or(0));
            }
            StatusCode::SERVICE_UNAVAILABLE => pause(100..300).await,
            status => {
                let body = String::from_utf8_lossy(body);
                ledger.fail(format!("a poll was answered with {status}: {body}"));
                pause(500..1_000).await;
            }
        }
    }
}
