//! What the sessions and the engine share.

use crate::feed::Change;
use crate::position::Epoch;
use std::collections::{HashMap, HashSet};
use tokio::sync::mpsc;

/// What a session's channel holds before the session counts as too slow.
pub(super) const CAPACITY: usize = 4_096;

pub(super) struct Subscriber<K> {
    pub(super) watched: HashSet<K>,
    pub(super) changes: mpsc::Sender<Change<K>>,
    /// Taken when something was dropped.
    pub(super) lagged: bool,
}

pub(super) struct Store<K> {
    pub(super) epoch: Epoch,
    pub(super) versions: HashMap<K, u64>,
    pub(super) subscribers: HashMap<u64, Subscriber<K>>,
    pub(super) sessions: u64,
    pub(super) is_muted: bool,
    pub(super) refuses_reads: bool,
    pub(super) capacity: usize,
}
