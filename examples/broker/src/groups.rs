//! Consumer groups: Kafka's group coordinator, in the classic protocol.
//!
//! Kafka keeps delayed joins, delayed syncs and heartbeats in purgatories. Here the two phases of a rebalance are
//! [`DelayedPhase`]s in a `Purgatory`, one at a time under the group's id; sessions, in a `Tracker`.
//!
//! # Locks
//!
//! Each group has one lock, and `try_complete` of its operations takes it. So the rule of `check_and_complete` (none
//! of your locks held that a hook takes) becomes a pattern, which [`Group::change`] is the one place for:
//!
//! 1. take the lock, change the state, and note in it a phase that begins;
//! 2. release the lock;
//! 3. park that phase, and check.
//!
//! An event between 2 and 3 is not missed: parking examines the operation anew once it can be found, and a check always
//! comes after its event. A tracker's `track`, `reschedule` and `complete` run no callback, so they are called under the
//! lock: no member is without a session, and no session without its member.
//!
//! Offsets are written to the journal before they count. Its lock, which is taken before a group's, keeps their order.

mod group;
mod journal;
mod member;
mod membership;
mod offset_requests;
mod requests;
#[cfg(test)]
mod tests;

use crate::exchange::{Outcome, ensure};
use crate::messages::*;
use group::{Group, Phase, Shared};
use journal::{Change, Journal};
use member::{Id, MAX_ID, charge};
use parking_lot::{Mutex, RwLock};
use request_purgatory::Purgatory;
use request_purgatory::purgatory::Stats;
use request_purgatory::threads::{Reaper, ReaperThread};
use request_purgatory::time::Clock;
use request_purgatory_tracker::Tracker;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

pub(crate) struct Settings {
    /// How long an empty group waits for more members: Kafka's `group.initial.rebalance.delay.ms`, 3 s there.
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

/// The coordinator of all groups: there is one broker.
pub(crate) struct Coordinator {
    settings: Settings,
    shared: Arc<Shared>,
    /// Taken before the locks of groups.
    journal: Mutex<Journal>,
    /// Taken before the lock of a group, if both are.
    groups: RwLock<BTreeMap<Id, Arc<Group>>>,
}

impl Coordinator {
    /// A coordinator with the offsets that were kept, without those of topics that are gone.
    pub(crate) fn open(settings: Settings, exists: impl Fn(&str) -> bool) -> anyhow::Result<Self> {
        let clock = || Arc::clone(&settings.clock);
        let rebalances = Purgatory::builder("rebalances").clock(clock());
        let sessions = Tracker::builder("sessions").clock(clock());
        let sessions = sessions.max_parked(settings.max_sessions);
        let expire = |number, group: Weak<Group>, _| {
            // Without a group there is no member left either.
            if let Some(group) = group.upgrade() {
                group.change(|state| state.expire(|member| member.number == number));
            }
        };
        let shared = Shared {
            rebalances: rebalances.reaper(settings.reaper.clone()).build()?,
            sessions: sessions.reaper(settings.reaper.clone()).build(expire)?,
            memory: Arc::new(tokio::sync::Semaphore::new(settings.max_bytes)),
            max_members: settings.max_members,
            initial_delay: settings.initial_delay,
            numbers: Default::default(),
            process: format!("{:016x}", RandomState::new().hash_one(std::process::id())),
        };
        let coordinator = Self {
            settings,
            shared: Arc::new(shared),
            journal: Mutex::default(),
            groups: RwLock::default(),
        };
        if let Some(path) = &coordinator.settings.offsets {
            let mut changes = journal::read(path)?;
            // A crash may have come between the deletion of a topic and that of its offsets.
            changes.retain(|(_, topic, ..)| exists(topic));
            for change in changes {
                if let Err(error) = coordinator.restore(change) {
                    log!("an offset that was kept is left out: {error}");
                }
            }
            // All of their offsets were deleted.
            let keeps = |_: &Id, group: &mut Arc<Group>| !group.lock().offsets.is_empty();
            coordinator.groups.write().retain(keeps);
            let kept = coordinator.committed();
            coordinator.journal.lock().begin(path, &kept)?;
        }
        Ok(coordinator)
    }

    /// Answers everything that waits, and parks nothing more.
    pub(crate) fn shutdown(&self) {
        self.shared.rebalances.shutdown();
        self.shared.sessions.shutdown();
    }

    /// Of the rebalances, and of the sessions: there is one for each member.
    pub(crate) fn stats(&self) -> [Stats; 2] {
        [self.shared.rebalances.stats(), self.shared.sessions.stats()]
    }

    /// Sees to it that every offset that was committed outlives the machine.
    pub(crate) fn sync_offsets(&self) -> std::io::Result<()> {
        self.journal.lock().sync()
    }

    /// Does again what was done before the restart.
    fn restore(&self, (group, topic, partition, mut committed): Change) -> Outcome {
        let group = self.group_or_new(&group)?;
        if let Some(committed) = &mut committed {
            committed.charge = Some(charge(&self.shared.memory, committed.size(&topic))?);
        }
        let changes = vec![((topic, partition), committed)];
        // It is in the journal already.
        group.lock().note(&mut Journal::default(), changes)
    }

    fn committed(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for group in self.all() {
            let state = group.lock();
            for ((topic, partition), committed) in &state.offsets {
                let (group, topic) = (Id::clone(&state.id), Id::clone(topic));
                changes.push((group, topic, *partition, Some(committed.clone())));
            }
        }
        changes
    }

    fn group(&self, id: &str) -> Option<Arc<Group>> {
        self.groups.read().get(id).cloned()
    }

    fn all(&self) -> Vec<Arc<Group>> {
        self.groups.read().values().cloned().collect()
    }

    fn group_or_new(&self, id: &str) -> Outcome<Arc<Group>> {
        ensure((1..=MAX_ID).contains(&id.len()), Code::InvalidGroupId)?;
        let mut groups = self.groups.write();
        if let Some(group) = groups.get(id) {
            return Ok(Arc::clone(group));
        }
        if groups.len() >= self.settings.max_groups {
            // An unused group makes room. A thread that has found it meanwhile is told to look it up again.
            let unused = groups.values().find_map(|group| {
                let mut state = group.lock();
                let is_unused = state.phase == Phase::Empty && state.offsets.is_empty();
                is_unused.then(|| {
                    state.phase = Phase::Dead;
                    Id::clone(&state.id)
                })
            });
            groups.remove(&unused.ok_or(Code::PolicyViolation)?);
        }
        let group = Group::new(Id::from(id), &self.shared);
        groups.insert(Id::from(id), Arc::clone(&group));
        Ok(group)
    }
}
