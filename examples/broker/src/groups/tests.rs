//! The coordinator without sockets: its clients, and a clock that is moved by hand.

mod offsets;
mod rebalances;
mod sequences;

use super::*;
use crate::exchange::{Answer, Caller, Reply, Waiting, answered_later};
use crate::requests::*;
use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::{Decodable, Request};
use member::Parked;
use request_purgatory::time::ManualClock;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::sync::oneshot::error::TryRecvError;

const INITIAL_DELAY: Duration = Duration::from_millis(100);
/// The timeouts of [`join_request`].
const SESSION: Duration = Duration::from_secs(10);
const REBALANCE: Duration = Duration::from_secs(30);

struct World {
    coordinator: Coordinator,
    clock: ManualClock,
    client_id: String,
}

/// A request that was sent. Dropped, its client has gone.
struct Asked<R> {
    waiting: Waiting,
    version: i16,
    kind: PhantomData<R>,
}

type Joining = Asked<JoinGroupRequest>;
type Syncing = Asked<SyncGroupRequest>;

impl<R: Request> Asked<R> {
    /// The answer as its client reads it, if it is there.
    fn poll(&mut self) -> Option<R::Response> {
        let Answer { size, read } = match self.waiting.answer.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Closed) => panic!("a request ended without an answer"),
        };
        let mut bytes = BytesMut::new();
        read().encode(&mut bytes, self.version).expect("an answer");
        // What may be long has memory.
        let long = [
            OffsetFetchRequest::KEY,
            ListGroupsRequest::KEY,
            DescribeGroupsRequest::KEY,
            JoinGroupRequest::KEY,
            SyncGroupRequest::KEY,
        ];
        let is_long = long.contains(&R::KEY);
        // (An error may name a member.)
        let is_counted = bytes.len() <= size + 250 || size == 0 && !is_long;
        assert!(is_counted, "there is memory for {size}");
        Some(R::Response::decode(&mut bytes, self.version).expect("a response"))
    }

    fn waits(&mut self) -> bool {
        self.poll().is_none()
    }

    fn answer(&mut self) -> R::Response {
        self.poll().expect("an answer")
    }
}

/// What the leader assigns to a member in these tests.
fn share(member: &str, generation: i32) -> Bytes {
    Bytes::from(format!("{member} in {generation}"))
}

fn sync_request(member: &str, generation: i32, members: &[&str]) -> SyncGroupRequest {
    let assignments = members.iter().map(|member| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(share(member, generation))
    });
    SyncGroupRequest::default()
        .with_group_id(group(GROUP))
        .with_generation_id(generation)
        .with_member_id(text(member))
        .with_assignments(assignments.collect())
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let clock = ManualClock::new();
        let mut settings = Settings {
            initial_delay: INITIAL_DELAY,
            max_groups: 2,
            max_members: 100,
            max_sessions: 1_000,
            max_bytes: 1 << 20,
            offsets: None,
            clock: Arc::new(clock.clone()),
            reaper: clock.reaper(),
        };
        change(&mut settings);
        Self {
            coordinator: Coordinator::open(settings, |_| true).expect("no threads are needed"),
            clock,
            client_id: "a-client".to_owned(),
        }
    }

    fn ask<R: Request + Into<RequestKind>>(&self, request: R, version: i16) -> Asked<R> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9092));
        let caller = Caller {
            address,
            client: address,
            client_id: self.client_id.clone(),
            version,
            weight: 0,
            refusals: Default::default(),
        };
        let is_partition = |topic: &str, index| topic == "t" && (0..1_000).contains(&index);
        let request = request.into();
        let waiting = match self.coordinator.handle(request, &caller, &is_partition) {
            Reply::Later(waiting) => waiting,
            Reply::Now(answer) => {
                let (waiter, waiting) = answered_later();
                waiter.answer(answer);
                waiting
            }
            _ => panic!("no answer is to come"),
        };
        self.check();
        Asked {
            waiting,
            version,
            kind: PhantomData,
        }
    }

    /// A client joins for the first time: it gets a member id, and joins with that.
    fn join(&self) -> (String, Joining) {
        let given = self.ask(join_request(""), 4).answer();
        assert_eq!(given.error_code, 79, "MEMBER_ID_REQUIRED");
        let id = given.member_id.to_string();
        let asked = self.rejoin(&id);
        (id, asked)
    }

    fn rejoin(&self, member: &str) -> Joining {
        self.ask(join_request(member), 9)
    }

    fn sync(&self, member: &str, generation: i32, members: &[&str]) -> Syncing {
        self.ask(sync_request(member, generation, members), 3)
    }

    fn heartbeat(&self, member: &str, generation: i32) -> i16 {
        let request = heartbeat_request(member, generation);
        self.ask(request, 4).answer().error_code
    }

    /// Deletes the group; the error, behind that of another that is not there.
    fn delete(&self) -> i16 {
        let both = ["missing", GROUP].map(group).to_vec();
        let request = DeleteGroupsRequest::default().with_groups_names(both);
        self.ask(request, 2).answer().results[1].error_code
    }

    /// The error of one that leaves, behind another that no group knows.
    fn leave(&self, member: &str, instance: Option<&str>) -> i16 {
        let identity = MemberIdentity::default()
            .with_member_id(text(member))
            .with_group_instance_id(instance.map(text));
        let request = LeaveGroupRequest::default()
            .with_group_id(group(GROUP))
            .with_members(vec![MemberIdentity::default(), identity.clone()]);
        let left = &self.ask(request, 3).answer().members[1];
        // An administrator finds it by these.
        let names = (&left.member_id, &left.group_instance_id);
        assert_eq!(names, (&identity.member_id, &identity.group_instance_id));
        left.error_code
    }

    /// Moves the clock, which expires what is due, one deadline after the other.
    fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.expire();
    }

    /// Expires what is due, also where the clock does not.
    fn expire(&self) {
        self.coordinator.shared.rebalances.advance();
        self.coordinator.shared.sessions.advance();
        self.check();
    }

    /// Takes the answers to joins that have come, of which each is a member now; their ids.
    fn joined(joins: &mut [Joining]) -> Vec<String> {
        let joined = joins.iter_mut().map(Asked::answer);
        let ids = joined.map(|joined| {
            assert_eq!(joined.error_code, 0);
            joined.member_id.to_string()
        });
        ids.collect()
    }

    /// Makes a stable group of `joins`, the leader first, in generation 1. The first `synced` ask for their assignment.
    fn stabilised(&self, mut joins: Vec<Joining>, synced: usize) -> Vec<String> {
        self.pass(INITIAL_DELAY);
        let ids = Self::joined(&mut joins);
        let names: Vec<_> = ids.iter().map(String::as_str).collect();
        for id in &names[..synced] {
            assert_eq!(self.sync(id, 1, &names).answer().error_code, 0);
        }
        assert_eq!(self.phase(), "Stable");
        ids
    }

    fn stable(&self, members: usize) -> Vec<String> {
        self.stabilised((0..members).map(|_| self.join().1).collect(), members)
    }

    fn described(&self) -> DescribedGroup {
        let request = DescribeGroupsRequest::default().with_groups(vec![group(GROUP)]);
        self.ask(request, 5).answer().groups.remove(0)
    }

    fn phase(&self) -> String {
        self.described().group_state.to_string()
    }

    fn members(&self) -> usize {
        let [_, sessions] = self.coordinator.stats();
        sessions.parked
    }

    /// Bytes that groups take.
    fn memory_in_use(&self) -> usize {
        let shared = &self.coordinator.shared;
        self.coordinator.settings.max_bytes - shared.memory.available_permits()
    }

    /// What always holds when no request is in progress: it is checked after each, and whenever time has passed.
    fn check(&self) {
        let coordinator = &self.coordinator;
        if coordinator.shared.sessions.is_shut_down() {
            return;
        }
        let sessions = &coordinator.shared.sessions;
        // An expiry is on its way, and takes the member along.
        let next = sessions.next_deadline();
        let is_due = next.is_some_and(|at| at <= self.clock.now());
        let (mut members, mut phases) = (0, 0);
        for group in coordinator.all() {
            let state = group.lock();
            members += state.members.len();
            phases += usize::from(!state.is_over(state.round));
            for (id, member) in &state.members {
                assert!(is_due || sessions.contains(&member.number), "{id}");
                // Neither a join nor a sync waits for nothing.
                match member.parked {
                    Some((Parked::Join, _)) => assert_eq!(state.phase, Phase::PreparingRebalance),
                    Some((Parked::Sync, _)) => assert_eq!(state.phase, Phase::CompletingRebalance),
                    None => {}
                }
            }
            let empty = matches!(state.phase, Phase::Empty | Phase::Dead);
            assert_eq!(state.members.is_empty(), empty, "{:?}", state.phase);
        }
        let parked = coordinator.stats().map(|stats| stats.parked);
        assert_eq!(parked, [phases, members], "phases, and sessions");
    }
}
