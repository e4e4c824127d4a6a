//! A switch that makes a node deaf: its sessions stay open, and hear nothing. The demo freezes a subscription with it.

use request_purgatory_cluster::{Change, Changes, Config, Feed, FeedError, Key};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The switch. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Ears(Arc<AtomicBool>);

impl Ears {
    pub fn close(&self, are_closed: bool) {
        // ORDERING: Relaxed: a switch for people, nothing is published with it.
        self.0.store(are_closed, Ordering::Relaxed);
    }

    fn are_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A feed behind the switch.
#[derive(Debug)]
pub struct Muffled<F> {
    pub feed: F,
    pub ears: Ears,
}

impl<K: Key, F: Feed<K>> Feed<K> for Muffled<F> {
    type Interests = F::Interests;
    type Changes = MuffledChanges<F::Changes>;

    async fn open(&self, config: &Config) -> Result<(Self::Interests, Self::Changes), FeedError> {
        let (interests, changes) = self.feed.open(config).await?;
        let ears = self.ears.clone();
        Ok((interests, MuffledChanges { changes, ears }))
    }
}

/// The changes of a session that are heard while the switch is open.
#[derive(Debug)]
pub struct MuffledChanges<C> {
    changes: C,
    ears: Ears,
}

impl<K: Key, C: Changes<K>> Changes<K> for MuffledChanges<C> {
    async fn next(&mut self) -> Result<Vec<Change<K>>, FeedError> {
        loop {
            let changes = self.changes.next().await?;
            if !self.ears.are_closed() {
                return Ok(changes);
            }
        }
    }
}
