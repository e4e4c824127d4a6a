//! One group: its members, and how far they have come in agreeing who reads what.
//!
//! The states are Kafka's:
//!
//! ```text
//!            first join              all have joined              the leader has assigned
//!   Empty ──────────────▶ Preparing ──────────────────▶ Completing ──────────────────────▶ Stable
//!     ▲                   Rebalance ◀────────────────── Rebalance                            │
//!     │      none left     │    ▲     a member comes,                                        │
//!     └────────────────────┘    │     leaves or expires                                      │
//!                               └────────────────────────────────────────────────────────────┘
//! ```
//!
//! and `Dead` once the group has been deleted.

use super::journal::Offsets;
use super::member::{Charge, Id, MAX_CLIENT_ID, Member, Memory, Parked};
use crate::exchange::{Outcome, Waiter, ensure};
use crate::messages::*;
use parking_lot::{Mutex, MutexGuard};
use request_purgatory::purgatory::RejectReason;
use request_purgatory::{Completion, DelayedOperation, Purgatory, ResolvedKey};
use request_purgatory_tracker::Tracker;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What all groups share.
pub(super) struct Shared {
    pub(super) max_members: usize,
    pub(super) initial_delay: Duration,
    pub(super) rebalances: Purgatory<DelayedPhase>,
    /// The sessions of all members, by the member's number: one timer each, which heartbeats push back.
    pub(super) sessions: Tracker<u64, Weak<Group>>,
    pub(super) memory: Memory,
    /// Numbers members. (Relaxed: it guards no memory.)
    pub(super) numbers: AtomicU64,
    /// Tells the member ids of this process from those of another.
    pub(super) process: String,
}

impl Shared {
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    /// A member id that no other member has, has had, or will have.
    pub(super) fn fresh_id(&self, client_id: &str) -> Id {
        let (process, number) = (&self.process, self.next_number());
        Id::from(format!("{client_id}-{process}-{number}"))
    }

    /// Whether this process gives such ids. Any other would be kept as long as its member, whatever it is.
    pub(super) fn has_given(&self, member: &str) -> bool {
        let mut parts = member.rsplitn(3, '-');
        let [number, process, client_id] = [(); 3].map(|()| parts.next());
        let is_number = |text: &str| {
            let number = text.parse().ok();
            let given = number.filter(|number| *number < self.numbers.load(Relaxed));
            // None begins with a zero or a plus.
            given.is_some_and(|given: u64| given.to_string() == text)
        };
        number.is_some_and(is_number)
            && process == Some(&self.process)
            && client_id.is_some_and(|text| text.len() <= MAX_CLIENT_ID)
    }

    /// A sign of life of a member. While a request of it waits, its session is suspended.
    ///
    /// # Errors
    /// Its session is over by the clock, also if that came while the broker stood still. Its expiry, which is on its way,
    /// removes the member; the client is told now.
    fn renew(&self, member: &Member) -> Outcome {
        let timeout = match member.parked {
            Some(_) => Duration::MAX,
            None => member.terms.session_timeout,
        };
        match self.sessions.reschedule(&member.number, timeout) {
            true => Ok(()),
            false if self.sessions.is_shut_down() => Err(Code::NotCoordinator),
            false => Err(Code::UnknownMemberId),
        }
    }
}

/// A group. What its lock is held for, and what not, stands at the head of [`super`].
pub(super) struct Group {
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// What its phases wait on.
    phases: ResolvedKey<DelayedPhase>,
}

pub(super) struct State {
    pub(super) id: Id,
    pub(super) shared: Arc<Shared>,
    /// The group itself, for the sessions of its members.
    pub(super) group: Weak<Group>,
    pub(super) phase: Phase,
    /// The group was empty: its rebalance waits for members that are not known yet.
    pub(super) awaits_more: bool,
    /// Counts rebalances and the generations that came of them: tells whether a parked operation still means this one.
    pub(super) round: u64,
    /// How often the members have agreed, or the last of them has left. Clients name it in every request.
    pub(super) generation: i32,
    /// What kind of group it is ("consumer"); set by the first member.
    pub(super) protocol_type: Option<Id>,
    /// What the members have agreed on in this generation.
    pub(super) protocol: Option<Id>,
    pub(super) leader: Option<Id>,
    pub(super) members: BTreeMap<Id, Member>,
    /// The memory of their assignments.
    pub(super) assigned: Option<Charge>,
    pub(super) offsets: Offsets,
    /// A phase has begun, which may last this long: it is to be parked when the lock has been released.
    pub(super) begun: Option<Duration>,
}

/// Administrators are told of it by these names, which are Kafka's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Empty,
    PreparingRebalance,
    CompletingRebalance,
    Stable,
    Dead,
}

impl Group {
    pub(super) fn new(id: Id, shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new_cyclic(|group| Self {
            shared: Arc::clone(shared),
            phases: shared.rebalances.resolve(Id::clone(&id)),
            state: Mutex::new(State {
                id,
                shared: Arc::clone(shared),
                group: Weak::clone(group),
                phase: Phase::Empty,
                awaits_more: false,
                round: 0,
                generation: 0,
                protocol_type: None,
                protocol: None,
                leader: None,
                members: BTreeMap::new(),
                assigned: None,
                offsets: Offsets::new(),
                begun: None,
            }),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the state under the lock, then does what follows from it without the lock.
    pub(super) fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, begun, round) = {
            let mut state = self.lock();
            (change(&mut state), state.begun.take(), state.round)
        };
        if let Some(timeout) = begun {
            let phase = DelayedPhase {
                group: Arc::clone(self),
                round,
                timeout,
            };
            let (rebalances, watched) = (&self.shared.rebalances, [self.phases.watch()]);
            if let Err(rejected) = rebalances.try_complete_else_watch(phase, watched) {
                match rejected.into_parts() {
                    (RejectReason::ShutDown, phase) => phase.refuse(),
                    (_, phase) => phase.end(),
                }
            }
        }
        // The state was changed under the lock that `try_complete` takes.
        self.phases.check_and_complete_after_lock();
        changed
    }
}

/// Kafka's `DelayedJoin` and `DelayedSync`: a phase of a rebalance. It waits until all members have joined, and the next
/// until all have asked for their assignments, at most for the rebalance timeout: then the others are left behind.
///
/// It is parked under the group's id, and every [change](Group::change) of the group checks that key. The answers to the
/// members lie with the members: this is the one operation that ends all their waits.
pub(super) struct DelayedPhase {
    group: Arc<Group>,
    /// The phase that is meant, as [`State::round`](State::round) counts them.
    round: u64,
    timeout: Duration,
}

impl DelayedOperation for DelayedPhase {
    type Key = Id;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.group.lock().is_over(self.round)
    }

    fn on_complete(self, completion: Completion) {
        match completion {
            Completion::Satisfied | Completion::Expired => self.end(),
            _ => self.refuse(),
        }
    }
}

impl DelayedPhase {
    fn end(self) {
        self.group.change(|state| state.end_phase(self.round));
    }

    /// The broker shuts down: every request that waits is answered with an error, since nothing else would end it.
    fn refuse(self) {
        let mut state = self.group.lock();
        if state.round == self.round {
            for (id, member) in &mut state.members {
                member.fail(id, Code::NotCoordinator);
            }
        }
    }
}

impl State {
    /// The member id of a static member.
    pub(super) fn named(&self, instance: &str) -> Option<&Id> {
        let mut members = self.members.iter();
        let found = members.find(|(_, member)| member.instance.as_deref() == Some(instance));
        found.map(|(id, _)| id)
    }

    pub(super) fn check_exists(&self) -> Outcome {
        ensure(self.phase != Phase::Dead, Code::CoordinatorNotAvailable)
    }

    pub(super) fn check_member(&self, id: &str, name: Option<&str>, generation: i32) -> Outcome {
        self.check_identity(id, name)?;
        ensure(generation == self.generation, Code::IllegalGeneration)
    }

    /// Checks that a member is who it says it is.
    pub(super) fn check_identity(&self, member: &str, instance: Option<&str>) -> Outcome {
        match instance.map(|instance| self.named(instance)) {
            // Another client has taken over the name.
            Some(Some(current)) if **current != *member => Err(Code::FencedInstanceId),
            Some(None) => Err(Code::UnknownMemberId),
            _ if !self.members.contains_key(member) => Err(Code::UnknownMemberId),
            _ => Ok(()),
        }
    }

    pub(super) fn renew(&self, member: &str) -> Outcome {
        let member = self.members.get(member).ok_or(Code::UnknownMemberId)?;
        self.shared.renew(member)
    }

    /// A request of a member waits. A second one takes the place of the first.
    pub(super) fn park(&mut self, id: &Id, request: Parked, waiter: Waiter) {
        if let Some(member) = self.members.get_mut(id) {
            member.fail(id, Code::RebalanceInProgress);
            member.parked = Some((request, waiter));
            if let Err(error) = self.shared.renew(member) {
                member.fail(id, error);
            }
        }
    }

    pub(super) fn heartbeat(&self, request: &HeartbeatRequest) -> Outcome {
        let instance = request.group_instance_id.as_deref();
        self.check_member(&request.member_id, instance, request.generation_id)?;
        self.renew(&request.member_id)?;
        let may_go_on = self.phase != Phase::PreparingRebalance;
        ensure(may_go_on, Code::RebalanceInProgress)
    }

    /// Whether the sender of `request` may commit now. A member that does is alive.
    pub(super) fn check_commit(&self, request: &OffsetCommitRequest) -> Outcome {
        let (member, generation) = (&*request.member_id, request.generation_id_or_member_epoch);
        let instance = request.group_instance_id.as_deref();
        if generation < 0 && member.is_empty() && instance.is_none() {
            // A client that assigns its partitions itself, or an administrator: not beside members.
            self.check_exists()?;
            return ensure(self.phase == Phase::Empty, Code::UnknownMemberId);
        }
        self.check_member(member, instance, generation)?;
        self.renew(member)?;
        // What it has read until it joins, it may still commit.
        let is_assigned = self.phase != Phase::CompletingRebalance;
        ensure(is_assigned, Code::RebalanceInProgress)
    }

    /// Takes out the members that are meant. Where the phase may await a sync of theirs, the caller begins another.
    pub(super) fn remove_where(&mut self, is_meant: impl Fn(&Member) -> bool) -> usize {
        let meant = self.members.iter().filter(|(_, member)| is_meant(member));
        let meant: Vec<_> = meant.map(|(id, _)| Id::clone(id)).collect();
        meant.iter().for_each(|id| self.remove_member(id));
        meant.len()
    }

    pub(super) fn remove_member(&mut self, id: &Id) {
        if let Some(mut member) = self.members.remove(id) {
            // If it is expiring at this moment, its expiry finds no such member.
            drop(self.shared.sessions.complete(&member.number));
            member.fail(id, Code::UnknownMemberId);
        }
    }

    /// A client that waits sends no more. Its member stays for as long as a session lasts: it may come back.
    pub(super) fn client_gone(&mut self, client: &Arc<()>) {
        for (id, member) in &mut self.members {
            if matches!(&member.parked, Some((_, waiter)) if Arc::ptr_eq(&waiter.client, client)) {
                member.fail(id, Code::RebalanceInProgress);
                // A session that was suspended is not over. At the shutdown there is none any more.
                let _ = self.shared.renew(member);
            }
        }
    }
}
