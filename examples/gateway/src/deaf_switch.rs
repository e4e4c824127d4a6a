//! A switch that makes a node deaf: its sessions stay open, and hear nothing. The demo freezes a subscription with it.

use request_purgatory_cluster::{Change, Changes, Config, Feed, FeedError, Key};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The switch. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct DeafSwitch(Arc<AtomicBool>);

impl DeafSwitch {
    pub fn set(&self, is_on: bool) {
        // ORDERING: Relaxed: a switch for people, nothing is published with it.
        self.0.store(is_on, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A feed behind the switch.
#[derive(Debug)]
pub struct DeafFeed<F> {
    pub feed: F,
    pub deaf: DeafSwitch,
}

impl<K: Key, F: Feed<K>> Feed<K> for DeafFeed<F> {
    type Interests = F::Interests;
    type Changes = DeafChanges<F::Changes>;

    async fn open(&self, config: &Config) -> Result<(Self::Interests, Self::Changes), FeedError> {
        let (interests, changes) = self.feed.open(config).await?;
        let deaf = self.deaf.clone();
        Ok((interests, DeafChanges { changes, deaf }))
    }
}

/// The changes of a session that are heard while the switch is off.
#[derive(Debug)]
pub struct DeafChanges<C> {
    changes: C,
    deaf: DeafSwitch,
}

impl<K: Key, C: Changes<K>> Changes<K> for DeafChanges<C> {
    async fn next(&mut self) -> Result<Vec<Change<K>>, FeedError> {
        loop {
            let changes = self.changes.next().await?;
            if !self.deaf.is_on() {
                return Ok(changes);
            }
        }
    }
}
