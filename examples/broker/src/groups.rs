//! Consumer groups: Kafka's group coordinator, in the classic protocol.
//!
//! Kafka keeps delayed joins, delayed syncs and heartbeats in purgatories. Here a rebalance is a
//! [`DelayedJoin`](delayed_join::DelayedJoin) and then a [`DelayedSync`](delayed_sync::DelayedSync), each in a
//! `Purgatory` under the group's id, and the sessions of the members are in a `Tracker`: a heartbeat touches them.
//!
//! # Locks
//!
//! Each group has one lock, and `try_complete` of its operations takes it. So the rule of `check_and_complete` (none
//! of your locks held that a hook takes) becomes a pattern, which [`Coordinator::change`] is the one place for:
//!
//! 1. take the lock, change the state, and note in an [`After`](group::After) what has to be parked or checked;
//! 2. release the lock;
//! 3. park and check.
//!
//! An event between 2 and 3 is not missed: parking examines the operation anew once it can be found, and a check always
//! comes after its event. A tracker's `track`, `touch` and `complete` run no callback, so they are called under the
//! lock: no member is without a session, and no session without its member.
//!
//! | layer | modules |
//! |---|---|
//! | requests | `requests`, `describe`: the protocol's requests and answers |
//! | the coordinator | this file: finds groups, parks, checks; `delayed_join`, `delayed_sync`, `sessions` |
//! | the state of a group | `group`, and what changes it: `membership`, `rebalance`, `offsets`; `journal` keeps those |
//! | parts | `member`, `answers`, `budget`, `settings` |

mod answers;
mod budget;
mod delayed_join;
mod delayed_sync;
mod describe;
mod group;
mod journal;
mod member;
mod membership;
mod offsets;
mod rebalance;
mod requests;
mod sessions;
pub(crate) mod settings;
#[cfg(test)]
mod tests;

use crate::console::warn;
use crate::figures::metrics::Counter;
use budget::Budget;
use delayed_join::DelayedJoin;
use delayed_sync::DelayedSync;
use group::{After, Context, Delayed, Group, Phase, State};
use journal::{Change, Journal};
use kafka_protocol::ResponseError;
use member::Id;
use parking_lot::RwLock;
use request_purgatory::{Purgatory, RejectReason, purgatory::BuildError, time::Clock};
pub(crate) use requests::{Caller, GroupReply, Waiting};
use sessions::Sessions;
use settings::{MAX_ID, Settings};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

/// The coordinator of all groups: there is one broker.
pub(crate) struct Coordinator {
    settings: Settings,
    pub(crate) joins: Purgatory<DelayedJoin>,
    pub(crate) syncs: Purgatory<DelayedSync>,
    sessions: Sessions,
    /// Taken before the lock of a group, if both are.
    groups: RwLock<BTreeMap<Id, Arc<Group>>>,
    budget: Budget,
    /// Numbers members and requests.
    numbers: Counter,
    /// Tells the member ids of this process from those of another.
    process: u64,
    rebalances: Counter,
    /// Where offsets are kept, if not in memory.
    journal: Option<Journal>,
}

impl Coordinator {
    /// A coordinator with the offsets that are kept in the file `offsets`, or with none, and then they are in memory.
    pub(crate) fn open(settings: Settings, offsets: Option<PathBuf>) -> anyhow::Result<Arc<Self>> {
        let mut coordinator = Self::new(settings)?;
        if let Some(path) = offsets {
            for change in Journal::read(&path)? {
                coordinator.restore(change);
            }
            coordinator.journal = Some(Journal::begin(path, &coordinator.committed())?);
        }
        Ok(Arc::new(coordinator))
    }

    fn new(settings: Settings) -> Result<Self, BuildError> {
        let joins = Purgatory::builder("joins")
            .clock(settings.clock.clone())
            .reaper(settings.reaper.clone())
            .build()?;
        let syncs = Purgatory::builder("syncs")
            .clock(settings.clock.clone())
            .reaper(settings.reaper.clone())
            .build()?;
        Ok(Self {
            joins,
            syncs,
            sessions: Sessions::new(&settings)?,
            groups: RwLock::default(),
            budget: Budget::new(settings.max_bytes),
            numbers: Counter::default(),
            process: RandomState::new().hash_one(std::process::id()),
            rebalances: Counter::default(),
            journal: None,
            settings,
        })
    }

    /// Answers everything that waits, and parks nothing more.
    pub(crate) fn shutdown(&self) {
        self.joins.shutdown();
        self.syncs.shutdown();
        self.sessions.shutdown();
    }

    /// Does again what was done before the restart.
    fn restore(&self, change: Change) {
        let restored = match change {
            Change::Commit(group, topic, partition, committed) => {
                self.group_or_new(&group).and_then(|group| {
                    let offsets = &mut group.lock().offsets;
                    offsets.commit(&topic, partition, committed, &self.budget)
                })
            }
            Change::Delete(group, topic, partition) => match self.group(&group) {
                Some(group) => group.lock().offsets.delete(&topic, partition),
                None => Ok(()),
            },
            Change::DeleteGroup(group) => {
                self.groups.write().remove(&*group);
                Ok(())
            }
        };
        if let Err(error) = restored {
            warn(&format!("an offset that was kept is left out: {error}"));
        }
    }

    /// All offsets of all groups.
    fn committed(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for group in self.all() {
            let state = group.lock();
            for (topic, partition, committed) in state.offsets.all() {
                let (group, topic) = (group.id.to_string(), topic.to_string());
                changes.push(Change::Commit(group, topic, partition, committed.clone()));
            }
        }
        changes
    }

    /// Keeps changes of offsets. To be called without the lock of any group: the file may have to be written anew, with
    /// the offsets of all.
    ///
    /// # Errors
    /// KAFKA_STORAGE_ERROR.
    fn note(&self, changes: &[Change]) -> Result<(), ResponseError> {
        let Some(journal) = self.journal.as_ref().filter(|_| !changes.is_empty()) else {
            return Ok(());
        };
        journal.note(changes, || self.committed()).map_err(|error| {
            warn(&format!("cannot keep offsets: {error}"));
            ResponseError::KafkaStorageError
        })
    }

    /// Sees to it that every offset that was committed outlives the machine.
    pub(crate) fn sync_offsets(&self) -> std::io::Result<()> {
        self.journal.as_ref().map_or(Ok(()), Journal::sync)
    }

    /// A topic was deleted: what was committed for it means nothing to another one of that name.
    pub(crate) fn forget_topic(&self, topic: &str) -> Result<(), ResponseError> {
        let mut changes = Vec::new();
        for group in self.all() {
            for partition in group.lock().offsets.delete_topic(topic) {
                let group = group.id.to_string();
                changes.push(Change::Delete(group, topic.to_owned(), partition));
            }
        }
        self.note(&changes)
    }

    /// Members now, with those that were only given a member id.
    pub(crate) fn members(&self) -> usize {
        self.sessions.len()
    }

    /// Rebalances so far.
    pub(crate) fn rebalances(&self) -> u64 {
        self.rebalances.value()
    }

    /// Changes the state of a group under its lock, then does what follows from it without the lock.
    fn change(
        self: &Arc<Self>,
        group: &Arc<Group>,
        change: impl FnOnce(&mut State, &Context<'_>) -> After,
    ) {
        let after = {
            let context = self.context(group);
            change(&mut group.lock(), &context)
        };
        self.follow_up(group, after);
    }

    fn context<'a>(self: &'a Arc<Self>, group: &'a Arc<Group>) -> Context<'a> {
        Context {
            coordinator: self,
            group,
            now: self.settings.clock.now(),
        }
    }

    /// To be called with no lock held.
    fn follow_up(self: &Arc<Self>, group: &Arc<Group>, after: After) {
        match after.park {
            Some(Delayed::Join { round, timeout }) => {
                let delayed = DelayedJoin {
                    coordinator: Arc::downgrade(self),
                    group: Arc::clone(group),
                    round,
                    timeout,
                };
                match self
                    .joins
                    .try_complete_else_watch_on(delayed, [group.for_joins()])
                {
                    Ok(_) => {}
                    Err(rejected) => match rejected.into_parts() {
                        (RejectReason::ShutDown, delayed) => delayed.refuse(),
                        (_, delayed) => delayed.end_phase(),
                    },
                }
            }
            Some(Delayed::Sync { round, timeout }) => {
                let delayed = DelayedSync {
                    coordinator: Arc::downgrade(self),
                    group: Arc::clone(group),
                    round,
                    timeout,
                };
                match self
                    .syncs
                    .try_complete_else_watch_on(delayed, [group.for_syncs()])
                {
                    Ok(_) => {}
                    Err(rejected) => match rejected.into_parts() {
                        (RejectReason::ShutDown, delayed) => delayed.refuse(),
                        (_, delayed) => delayed.end_phase(),
                    },
                }
            }
            None => {}
        }
        if after.check_joins {
            group.check_joins();
        }
        if after.check_syncs {
            group.check_syncs();
        }
    }

    fn session_expired(self: &Arc<Self>, group: &Arc<Group>, member: &Id) {
        self.change(group, |state, context| {
            state.session_expired(context, member)
        });
        self.forget_if_unused(group);
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
    fn group_or_new(&self, id: &str) -> Result<Arc<Group>, ResponseError> {
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
            let unused = unused.ok_or(ResponseError::PolicyViolation)?;
            groups.remove(&unused.id);
        }
        let id = Id::from(id);
        let group = Arc::new(Group::new(Arc::clone(&id), self));
        groups.insert(id, Arc::clone(&group));
        Ok(group)
    }

    /// Forgets a group that a request has made for nothing.
    fn forget_if_unused(&self, group: &Arc<Group>) {
        let fresh = group.lock().generation == 0;
        if fresh && bury_unused(group) {
            self.forget(group);
        }
    }

    /// To be called without the lock of the group, which is dead.
    fn forget(&self, group: &Arc<Group>) {
        let mut groups = self.groups.write();
        if groups
            .get(&group.id)
            .is_some_and(|found| Arc::ptr_eq(found, group))
        {
            groups.remove(&group.id);
        }
    }

    fn number(&self) -> u64 {
        self.numbers.increase()
    }
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator")
            .field("groups", &self.groups.read().len())
            .field("members", &self.members())
            .finish_non_exhaustive()
    }
}

/// Marks a group as dead if it is unused. A thread that has found it meanwhile is told to look it up again.
fn bury_unused(group: &Group) -> bool {
    let mut state = group.lock();
    let unused = state.is_unused();
    if unused {
        state.phase = Phase::Dead;
    }
    unused
}
