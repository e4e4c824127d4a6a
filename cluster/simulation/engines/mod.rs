//! Simulated engines on virtual time, below the shipped feeds: what the client crates would have spoken with.

pub mod nats_server;
pub mod redis_server;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// A message of an engine, to be counted.
#[derive(Debug, Clone, Copy)]
pub enum Traffic {
    /// The bytes of a command or a message of a node.
    In(usize),
    /// The number of keys that were asked for.
    Read(usize),
    /// The bytes of what a node is answered or told.
    Out(usize),
}

/// What an engine stands in: its data, and what goes wrong.
pub trait Host: Send + Sync + 'static {
    /// How long a message is on its way, this time.
    fn delay(&self) -> Duration;

    fn epoch(&self) -> u64;

    fn version(&self, key: u64) -> u64;

    /// No server takes connections.
    fn is_gone(&self) -> bool {
        false
    }

    fn is_unread(&self) -> bool {
        false
    }

    fn refuses_sessions(&self) -> bool {
        false
    }

    /// Whether this connection is not told of this.
    fn loses(&self, connection: u64) -> bool {
        let _ = connection;
        false
    }

    /// How much later than a server another one of its cluster learns of a subscription. `None`: it is alone.
    fn spread(&self) -> Option<Duration> {
        None
    }

    fn count(&self, traffic: Traffic) {
        let _ = traffic;
    }
}

/// Takes one of the connections out, `chosen` among as many as there are.
fn take_one<C>(
    connections: &mut BTreeMap<u64, C>,
    chosen: impl FnOnce(usize) -> usize,
) -> Option<C> {
    let chosen = chosen(connections.len());
    let number = connections.keys().nth(chosen).copied()?;
    connections.remove(&number)
}

/// One direction of a connection: what is sent arrives after a while, in the order in which it was sent, until the
/// connection is cut.
pub struct Pipe<T> {
    host: Arc<dyn Host>,
    last: Mutex<Instant>,
    sent: mpsc::UnboundedSender<(Instant, T)>,
}

impl<T: Send + 'static> Pipe<T> {
    pub fn new(
        host: &Arc<dyn Host>,
        is_cut: &Arc<AtomicBool>,
        mut arrive: impl FnMut(T) + Send + 'static,
    ) -> Self {
        let (sent, mut messages) = mpsc::unbounded_channel::<(Instant, T)>();
        let is_cut = is_cut.clone();
        tokio::spawn(async move {
            while let Some((at, message)) = messages.recv().await {
                sleep_until(at).await;
                if is_cut.load(Ordering::Relaxed) {
                    return;
                }
                arrive(message);
            }
        });
        Self {
            host: host.clone(),
            last: Mutex::new(Instant::now()),
            sent,
        }
    }

    pub fn send(&self, message: T) {
        let mut last = self.last.lock().expect("no test panics with it");
        *last = (*last).max(Instant::now() + self.host.delay());
        // The connection may be cut.
        drop(self.sent.send((*last, message)));
    }
}
