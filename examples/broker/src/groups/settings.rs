//! What an operator may choose, and what bounds the memory that clients may take.

use request_purgatory::threads::{Reaper, ReaperThread};
use request_purgatory::time::Clock;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shortest and longest session that a member may ask for, as Kafka's `group.min.session.timeout.ms` (6 s there, which
/// is long for trying things out) and `group.max.session.timeout.ms`.
pub(super) const SESSION: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(30 * 60);

/// Longest rebalance timeout granted, whatever a member asks for.
pub(super) const MAX_REBALANCE: Duration = Duration::from_secs(30 * 60);

/// Longest group id and instance id, in bytes.
pub(super) const MAX_ID: usize = 255;

/// Most of a client id that goes into a member id, in bytes.
pub(super) const MAX_CLIENT_ID: usize = 128;

/// Most protocols that one member may offer.
pub(super) const MAX_PROTOCOLS: usize = 64;

/// Longest metadata of a committed offset, as Kafka's `offset.metadata.max.bytes`.
pub(super) const MAX_OFFSET_METADATA: usize = 4096;

/// How a coordinator behaves.
pub(crate) struct Settings {
    /// How long an empty group waits for more members before its first rebalance ends (Kafka's
    /// `group.initial.rebalance.delay.ms`, 3 s there).
    pub(crate) initial_delay: Duration,
    pub(crate) max_groups: usize,
    pub(crate) max_members: usize,
    /// Most members of all groups together.
    pub(crate) max_sessions: usize,
    /// Most bytes of metadata, assignments and offsets of all groups together.
    pub(crate) max_bytes: usize,
    /// The file in which offsets are kept, if not in memory.
    pub(crate) offsets: Option<PathBuf>,
    /// Moved by hand, in tests.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) reaper: Reaper,
}

impl Settings {
    /// With threads of their own.
    pub(crate) fn new(initial_delay: Duration, offsets: Option<PathBuf>) -> std::io::Result<Self> {
        Ok(Self {
            initial_delay,
            max_groups: 10_000,
            max_members: 1_000,
            max_sessions: 100_000,
            max_bytes: 256 * 1024 * 1024,
            offsets,
            clock: Arc::new(Instant::now()),
            // One thread for the deadlines of rebalances and sessions, one for what they lead to.
            reaper: Reaper::Shared(ReaperThread::spawn("groups")?),
        })
    }
}
