//! Events in memory, for one node, for tests, and for a demo without servers. Clones are the same store.

use super::topic::Topic;
use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::{EngineError, Event, Position};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bodies of each topic, by position.
type Bodies = HashMap<Topic, Vec<Arc<[u8]>>>;

/// Versions in the engine, bodies beside it.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    pub(super) engine: MemoryEngine<Topic>,
    bodies: Arc<Mutex<Bodies>>,
    is_down: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    fn bodies(&self) -> Result<MutexGuard<'_, Bodies>, EngineError> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Err("the store is down".into()),
            false => Ok(self.bodies.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    pub(super) fn commit(&self, topic: &Topic, body: &[u8]) -> Result<Position, EngineError> {
        // Who hears of the version looks for the body, and finds this lock taken until it is there.
        let mut bodies = self.bodies()?;
        let position = self.engine.commit(topic.clone());
        bodies.entry(topic.clone()).or_default().push(body.into());
        Ok(position)
    }

    pub(super) fn events(
        &self,
        topic: &Topic,
        seen: u64,
        limit: usize,
    ) -> Result<Vec<Event>, EngineError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let bodies = self.bodies()?;
        let all = bodies.get(topic).map_or(&[][..], Vec::as_slice);
        let seen = usize::try_from(seen).unwrap_or(usize::MAX);
        let after = all.iter().zip(1..).skip(seen).take(limit);
        let event = |(body, version): (&Arc<[u8]>, u64)| Event {
            version,
            body: body.to_vec(),
        };
        Ok(after.map(event).collect())
    }

    /// How often bodies were read.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }

    /// As if its process was killed, or runs again: sessions end, commits and reads fail.
    pub fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
        self.engine.refuse_reads(is_down);
        self.engine.cut();
    }

    /// Loses all data.
    pub fn flush(&self) {
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        bodies.clear();
        self.engine.flush();
        self.engine.cut();
    }
}
