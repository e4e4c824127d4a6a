//! Consumer groups: Kafka's group coordinator, in the classic protocol.
//!
//! Kafka keeps delayed joins, delayed syncs and heartbeats in purgatories. Here the two phases of a rebalance are
//! [`DelayedPhase`]s, each in a `Purgatory` of its own under the group's id, and the sessions of the members are in a
//! `Tracker`: a heartbeat touches them.
//!
//! # Locks
//!
//! Each group has one lock, and `try_complete` of its operations takes it. So the rule of `check_and_complete` (none
//! of your locks held that a hook takes) becomes a pattern, which [`Coordinator::change`] is the one place for:
//!
//! 1. take the lock, change the state, and note in its [`After`](group::After) what has to be parked or checked;
//! 2. release the lock;
//! 3. park and check.
//!
//! An event between 2 and 3 is not missed: parking examines the operation anew once it can be found, and a check always
//! comes after its event. A tracker's `track`, `touch` and `complete` run no callback, so they are called under the
//! lock: no member is without a session, and no session without its member.
//!
//! Offsets are written to the journal before they count, under its lock, which is taken before that of a group: so the
//! journal has them in their order.
//!
//! | layer | modules |
//! |---|---|
//! | requests | `requests`, `offset_requests`, `describe`: the protocol's requests and answers |
//! | the coordinator | this file: finds groups, parks, checks, keeps sessions |
//! | the state of a group | `group`, and what changes it: `membership`, `rebalance`; `journal` keeps its offsets |
//! | parts | `member`, `settings` |

mod describe;
mod group;
mod journal;
mod member;
mod membership;
mod offset_requests;
mod rebalance;
mod requests;
pub(crate) mod settings;
#[cfg(test)]
mod tests;

use crate::console::log;
use crate::exchange::Outcome;
use group::{DelayedPhase, Group, Kind, Phase, State};
use journal::{Change, Journal};
use kafka_protocol::ResponseError;
use member::Id;
use parking_lot::{Mutex, RwLock};
use request_purgatory::purgatory::{BuildError, RejectReason};
use request_purgatory::{Purgatory, Tracker};
use settings::{MAX_ID, Settings};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The coordinator of all groups: there is one broker.
pub(crate) struct Coordinator {
    settings: Settings,
    pub(crate) joins: Purgatory<DelayedPhase>,
    pub(crate) syncs: Purgatory<DelayedPhase>,
    sessions: Sessions,
    /// Taken before the locks of groups.
    journal: Mutex<Journal>,
    /// Taken before the lock of a group, if both are.
    groups: RwLock<BTreeMap<Id, Arc<Group>>>,
    /// Bytes that groups may still take.
    memory: Arc<Semaphore>,
    /// Numbers members and requests. (Relaxed: it guards no memory.)
    numbers: AtomicU64,
    /// Tells the member ids of this process from those of another.
    process: String,
}

/// The sessions of all members of all groups, by group and member: one timer each, which heartbeats push back.
type Sessions = Tracker<(Id, Id), Weak<Coordinator>>;

fn sessions(settings: &Settings) -> Result<Sessions, BuildError> {
    let expire = |(group, member): (Id, Id), coordinator: Weak<Coordinator>, _| {
        // Without a coordinator there is no member left either.
        if let Some(coordinator) = coordinator.upgrade() {
            coordinator.session_expired(&group, &member);
        }
    };
    let mut builder = Tracker::builder("sessions").max_parked(settings.max_sessions);
    if let Some(clock) = &settings.clock {
        builder = builder.clock(clock.clone());
    }
    builder.reaper(settings.reaper.clone()).build(expire)
}

/// Bytes of the coordinator's memory that were taken. Dropping it gives them back.
type Charge = OwnedSemaphorePermit;

impl Coordinator {
    /// A coordinator with the offsets that were kept.
    pub(crate) fn open(settings: Settings) -> anyhow::Result<Arc<Self>> {
        let purgatory = |name: &'static str| {
            let mut builder = Purgatory::builder(name);
            if let Some(clock) = &settings.clock {
                builder = builder.clock(clock.clone());
            }
            builder.reaper(settings.reaper.clone()).build()
        };
        let coordinator = Self {
            joins: purgatory("joins")?,
            syncs: purgatory("syncs")?,
            sessions: sessions(&settings)?,
            journal: Mutex::default(),
            groups: RwLock::default(),
            memory: Arc::new(Semaphore::new(settings.max_bytes)),
            numbers: AtomicU64::default(),
            process: format!("{:016x}", RandomState::new().hash_one(std::process::id())),
            settings,
        };
        if let Some(path) = &coordinator.settings.offsets {
            for change in journal::read(path)? {
                if let Err(error) = coordinator.restore(change) {
                    log!("an offset that was kept is left out: {error}");
                }
            }
            // All of their offsets were deleted.
            let mut groups = coordinator.groups.write();
            groups.retain(|_, group| !group.lock().offsets.is_empty());
            drop(groups);
            let kept = coordinator.committed();
            coordinator.journal.lock().begin(path, &kept)?;
        }
        Ok(Arc::new(coordinator))
    }

    /// Answers everything that waits, and parks nothing more.
    pub(crate) fn shutdown(&self) {
        self.joins.shutdown();
        self.syncs.shutdown();
        self.sessions.shutdown();
    }

    /// Members now.
    pub(crate) fn members(&self) -> usize {
        self.sessions.stats().parked
    }

    /// Sees to it that every offset that was committed outlives the machine.
    pub(crate) fn sync_offsets(&self) -> std::io::Result<()> {
        self.journal.lock().sync()
    }

    /// Does again what was done before the restart.
    fn restore(&self, (group, topic, partition, committed): Change) -> Outcome {
        let group = self.group_or_new(&group)?;
        let mut state = group.lock();
        match committed {
            Some(committed) => {
                let charge = self.charge(committed.size())?;
                state
                    .offsets
                    .insert((topic, partition), (committed, charge));
            }
            None => drop(state.offsets.remove(&(topic, partition))),
        }
        Ok(())
    }

    /// All offsets of all groups.
    fn committed(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for group in self.all() {
            for ((topic, partition), (committed, _)) in &group.lock().offsets {
                let (group, topic) = (Id::clone(&group.id), Id::clone(topic));
                changes.push((group, topic, *partition, Some(committed.clone())));
            }
        }
        changes
    }

    /// Changes the state of a group under its lock, then does what follows from it without the lock.
    fn change<T>(self: &Arc<Self>, group: &Arc<Group>, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, after) = {
            let mut state = group.lock();
            (change(&mut state), std::mem::take(&mut state.after))
        };
        if let Some((kind, round, timeout)) = after.park {
            self.park(DelayedPhase {
                coordinator: Arc::downgrade(self),
                group: Arc::clone(group),
                kind,
                round,
                timeout,
            });
        }
        // The state was changed under the lock that `try_complete` takes.
        if after.check_joins {
            group.joins.check_and_complete_after_lock();
        }
        if after.check_syncs {
            group.syncs.check_and_complete_after_lock();
        }
        changed
    }

    fn park(&self, delayed: DelayedPhase) {
        let group = Arc::clone(&delayed.group);
        let (purgatory, key) = match delayed.kind {
            Kind::Join => (&self.joins, &group.joins),
            Kind::Sync => (&self.syncs, &group.syncs),
        };
        if let Err(rejected) = purgatory.try_complete_else_watch(delayed, [key.watch()]) {
            match rejected.into_parts() {
                (RejectReason::ShutDown, delayed) => delayed.refuse(),
                (_, delayed) => delayed.end(),
            }
        }
    }

    /// Begins the session of a new member, in step with the group: its lock is held.
    ///
    /// # Errors
    /// GROUP_MAX_SIZE_REACHED if there are as many sessions as there may be; NOT_COORDINATOR if the broker shuts down.
    fn begin_session(self: &Arc<Self>, key: (Id, Id), timeout: Duration) -> Outcome {
        let tracked = self.sessions.try_track(key, Arc::downgrade(self), timeout);
        match tracked.map_err(|rejected| rejected.reason()) {
            Ok(_) => Ok(()),
            Err(RejectReason::ShutDown) => Err(ResponseError::NotCoordinator),
            Err(_) => Err(ResponseError::GroupMaxSizeReached),
        }
    }

    fn session_expired(self: &Arc<Self>, group: &str, member: &Id) {
        if let Some(group) = self.group(group) {
            self.change(&group, |state| state.part(self, member));
        }
    }

    fn group(&self, id: &str) -> Option<Arc<Group>> {
        self.groups.read().get(id).cloned()
    }

    fn all(&self) -> Vec<Arc<Group>> {
        self.groups.read().values().cloned().collect()
    }

    /// # Errors
    /// INVALID_GROUP_ID for an empty id and for one that is too long, POLICY_VIOLATION if there are as many groups as
    /// there may be.
    fn group_or_new(&self, id: &str) -> Outcome<Arc<Group>> {
        if let Some(group) = self.group(id) {
            return Ok(group);
        }
        if id.is_empty() || id.len() > MAX_ID {
            return Err(ResponseError::InvalidGroupId);
        }
        let mut groups = self.groups.write();
        if let Some(group) = groups.get(id) {
            return Ok(Arc::clone(group));
        }
        if groups.len() >= self.settings.max_groups {
            // An unused group makes room.
            let unused = groups.values().find(|group| bury_unused(group)).cloned();
            groups.remove(&unused.ok_or(ResponseError::PolicyViolation)?.id);
        }
        let group = Arc::new(Group::new(Id::from(id), self));
        groups.insert(Id::from(id), Arc::clone(&group));
        Ok(group)
    }

    /// Takes `bytes` of the memory for groups, if as many are left.
    fn charge(&self, bytes: usize) -> Outcome<Charge> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let charge = Arc::clone(&self.memory).try_acquire_many_owned(bytes);
        charge.map_err(|_| ResponseError::GroupMaxSizeReached)
    }

    /// A member id that no other member has, has had, or will have.
    fn fresh_id(&self, client_id: &str) -> Id {
        let (process, number) = (&self.process, self.numbers.fetch_add(1, Relaxed));
        Id::from(format!("{client_id}-{process}-{number}"))
    }

    /// Whether this process gave out a member id.
    fn has_given(&self, member: &str) -> bool {
        let mut parts = member.rsplit('-');
        parts.nth(1) == Some(self.process.as_str())
    }
}

/// Marks a group as dead if nothing would be lost with it. A thread that has found it meanwhile is told to look it up
/// again.
fn bury_unused(group: &Group) -> bool {
    let mut state = group.lock();
    let unused = state.phase == Phase::Empty && state.offsets.is_empty();
    if unused {
        state.phase = Phase::Dead;
    }
    unused
}
