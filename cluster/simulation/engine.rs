//! A store and a feed whose answers and messages take their time, and are lost as the scenario says.

use crate::store::KEYS;
use crate::world::{Backend, World};
use fastrand::Rng;
use request_purgatory_cluster::{
    Change, Changes, Cluster, Config, EngineError, Feed, FeedError, Interests, Reading, Source,
};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// The connection of one session, as the engine sees it.
struct Connection {
    number: u64,
    heard: [bool; KEYS as usize],
    messages: mpsc::UnboundedSender<Change<u64>>,
}

#[derive(Default)]
struct Connections {
    opened: u64,
    present: Option<Connection>,
}

#[derive(Clone)]
pub struct Engine {
    world: Arc<World>,
    connections: Arc<Mutex<Connections>>,
}

impl Backend for Engine {
    fn new(world: &Arc<World>) -> Self {
        Self {
            world: world.clone(),
            connections: Arc::default(),
        }
    }

    fn start(&self, config: Config) -> Cluster<u64> {
        Cluster::start(self.clone(), self.clone(), config).expect("in a runtime")
    }

    fn committed(&self, key: u64, version: u64) {
        self.told(key, version);
    }

    fn cut(&self) {
        self.connections().present = None;
    }

    fn flushed(&self) {}
}

impl Engine {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().expect("no test panics with it")
    }

    fn told(&self, key: u64, version: u64) {
        let (world, scenario) = (&self.world, &self.world.scenario);
        let change = Change {
            key,
            version,
            epoch: Some(world.store().epoch),
        };
        let mut connections = self.connections();
        let Some(connection) = &mut connections.present else {
            return;
        };
        let is_mute =
            connection.number == 1 && scenario.mutes_at.is_some_and(|at| at <= world.now());
        if !connection.heard[key as usize] || is_mute || world.random(Rng::f64) < scenario.loss {
            return;
        }
        // Each takes its own time, so they arrive in disorder; some twice.
        let copies = if world.random(|random| random.u8(..)) < 25 {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let (messages, change) = (connection.messages.clone(), change.clone());
            let delay = world.pause(1..=20);
            tokio::spawn(async move {
                sleep(delay).await;
                // The session may be over.
                drop(messages.send(change));
            });
        }
    }

    fn set_heard(&self, session: u64, keys: &[u64], heard: bool) {
        let mut connections = self.connections();
        if let Some(connection) = connections
            .present
            .as_mut()
            .filter(|it| it.number == session)
        {
            keys.iter()
                .for_each(|&key| connection.heard[key as usize] = heard);
        }
    }
}

impl Source<u64> for Engine {
    async fn versions(&self, keys: &[u64]) -> Result<Reading, EngineError> {
        self.world.sleep(0..=6).await;
        if self.world.is_within(self.world.scenario.is_unread) {
            return Err("nothing can be read".into());
        }
        let reading = self.world.store().read(keys);
        self.world.sleep(0..=6).await;
        Ok(reading)
    }
}

impl Feed<u64> for Engine {
    type Interests = Watcher;
    type Changes = Listener;

    async fn open(&self, _: &Config) -> Result<(Watcher, Listener), FeedError> {
        self.world.sleep(0..=10).await;
        if self.world.scenario.refuses_sessions {
            return Err(FeedError::Refused("this user may not subscribe".into()));
        }
        let (messages, heard) = mpsc::unbounded_channel();
        let mut connections = self.connections();
        connections.opened += 1;
        let number = connections.opened;
        connections.present = Some(Connection {
            number,
            heard: [false; KEYS as usize],
            messages,
        });
        let watcher = Watcher {
            engine: self.clone(),
            number,
        };
        Ok((watcher, Listener(heard)))
    }
}

pub struct Watcher {
    engine: Engine,
    number: u64,
}

impl Watcher {
    async fn tell(&self, keys: &[u64], heard: bool) -> Result<(), FeedError> {
        let world = &self.engine.world;
        let takes = world.pause(1..=world.scenario.watch);
        let spread = world.scenario.late_interest.as_millis() as u64;
        let effective = match heard && spread > 0 {
            true => takes + world.pause(0..=spread),
            false => world.pause(0..=takes.as_millis() as u64),
        };
        let (engine, number, keys) = (self.engine.clone(), self.number, keys.to_vec());
        let set = async move {
            sleep(effective).await;
            engine.set_heard(number, &keys, heard);
        };
        let set = tokio::spawn(set);
        sleep(takes).await;
        if effective <= takes {
            // (Both are over at once, and the order of the two tasks is not to matter.)
            set.await.expect("it does not panic");
        }
        Ok(())
    }
}

impl Interests<u64> for Watcher {
    async fn watch(&mut self, keys: &[u64]) -> Result<(), FeedError> {
        self.tell(keys, true).await
    }

    async fn unwatch(&mut self, keys: &[u64]) -> Result<(), FeedError> {
        self.tell(keys, false).await
    }

    fn is_exact(&self) -> bool {
        self.engine.world.scenario.late_interest == Duration::ZERO
    }
}

pub struct Listener(mpsc::UnboundedReceiver<Change<u64>>);

impl Changes<u64> for Listener {
    async fn next(&mut self) -> Result<Vec<Change<u64>>, FeedError> {
        let change = self.0.recv().await;
        let cut = || FeedError::Cut("the connection was cut".into());
        Ok(vec![change.ok_or_else(cut)?])
    }
}
