//! The model of a store: versions, the moments of their commits, and a log of what the present history knows.

use request_purgatory_cluster::{Epoch, Position, Reading};
use std::time::Duration;

pub const KEYS: u64 = 4;
const COUNT: usize = KEYS as usize;

#[derive(Clone)]
pub struct Store {
    pub epoch: Epoch,
    /// Grows with every loss of data; no node can read it.
    pub history: u64,
    /// When the present history began.
    pub began: Duration,
    /// For each key, when each version was committed.
    commits: [Vec<Duration>; COUNT],
    /// For each epoch that is over, the last versions.
    past: Vec<[u64; COUNT]>,
}

impl Store {
    pub fn new() -> Self {
        Self {
            epoch: Epoch(1),
            history: 0,
            began: Duration::ZERO,
            commits: Default::default(),
            past: Vec::new(),
        }
    }

    pub fn commit(&mut self, key: u64, now: Duration) -> u64 {
        self.commits[key as usize].push(now);
        self.version(key)
    }

    pub fn version(&self, key: u64) -> u64 {
        self.commits[key as usize].len() as u64
    }

    pub fn position(&self, key: u64) -> Position {
        Position {
            epoch: self.epoch,
            version: self.version(key),
        }
    }

    /// When the version after `seen` was committed.
    pub fn committed_after(&self, key: u64, seen: u64) -> Option<Duration> {
        self.commits[key as usize].get(seen as usize).copied()
    }

    pub fn read(&self, keys: &[u64]) -> Reading {
        Reading {
            epoch: self.epoch,
            versions: keys.iter().map(|&key| Some(self.version(key))).collect(),
            head: None,
            floor: None,
        }
    }

    /// Whether `position` was ever committed, as far as its epoch tells.
    pub fn has_had(&self, key: u64, position: Position) -> bool {
        let past = self.past.get(position.epoch.0 as usize - 1);
        past.is_none_or(|versions| position.version <= versions[key as usize])
    }

    /// All data is lost.
    pub fn flush(&mut self, now: Duration) {
        let mut past = std::mem::take(&mut self.past);
        past.push(std::array::from_fn(|key| self.version(key as u64)));
        *self = Self {
            past,
            epoch: Epoch(self.epoch.0 + 1),
            history: self.history + 1,
            began: now,
            commits: Default::default(),
        };
    }

    /// An older copy takes over.
    pub fn roll_back(&mut self, to: Duration, now: Duration) {
        for commits in &mut self.commits {
            commits.retain(|&at| at <= to);
        }
        self.history += 1;
        self.began = now;
    }
}
