//! Clients on threads of their own, on the real clock, all in one group at once.

use super::world::{Asked, GROUP, join_request, later, sync_request};
use crate::groups::answers::text;
use crate::groups::settings::Settings;
use crate::groups::{Coordinator, tests::world};
use crate::wire::groups::{GroupRequest, GroupResponse};
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{GroupId, HeartbeatRequest, LeaveGroupRequest};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: usize = 8;
/// What they have to come to: generations, and members that got their shares in one.
const GENERATIONS: usize = 15;
const STAYS: usize = 50;
const PATIENCE: Duration = Duration::from_secs(20);

/// What members of a generation were told: protocol, leader.
type Told = Mutex<BTreeMap<i32, (String, String)>>;

struct Client<'a> {
    coordinator: &'a Arc<Coordinator>,
    told: &'a Told,
    stable: &'a AtomicUsize,
    member: String,
    random: u64,
}

impl Client<'_> {
    fn chance(&mut self, one_in: u64) -> bool {
        // xorshift
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.is_multiple_of(one_in)
    }

    /// The answer to a request, or `None` if this client goes away meanwhile.
    fn answer(&mut self, request: GroupRequest) -> Option<GroupResponse> {
        let asked = later(world::ask(self.coordinator, request, 5));
        if self.chance(20) {
            drop(asked);
            return None;
        }
        Some(wait(asked))
    }

    fn turn(&mut self) {
        let mut join = join_request(&self.member);
        join.session_timeout_ms = 500;
        join.rebalance_timeout_ms = 300;
        let Some(GroupResponse::JoinGroup(joined)) = self.answer(GroupRequest::JoinGroup(join))
        else {
            return;
        };
        match joined.error_code {
            0 | 79 => self.member = joined.member_id.to_string(),
            25 => self.member.clear(),
            15 | 27 => {}
            other => panic!("join: error {other}"),
        }
        if joined.error_code != 0 {
            return;
        }
        let generation = joined.generation_id;
        let protocol = joined
            .protocol_name
            .as_deref()
            .unwrap_or_default()
            .to_owned();
        let told = (protocol, joined.leader.to_string());
        let known = {
            let mut generations = self.told.lock().expect("not poisoned");
            generations
                .entry(generation)
                .or_insert_with(|| told.clone())
                .clone()
        };
        assert_eq!(known, told, "generation {generation}");
        let members: Vec<_> = joined
            .members
            .iter()
            .map(|member| &*member.member_id)
            .collect();
        assert_eq!(*joined.leader == *self.member, !members.is_empty());
        let sync = GroupRequest::SyncGroup(sync_request(&self.member, generation, &members));
        let Some(GroupResponse::SyncGroup(synced)) = self.answer(sync) else {
            return;
        };
        if synced.error_code != 0 {
            assert!(
                [22, 25, 27].contains(&synced.error_code),
                "sync: {synced:?}"
            );
            return;
        }
        let share = world::share(&self.member, generation);
        assert_eq!(synced.assignment, share, "of another generation");
        self.stable.fetch_add(1, Ordering::Relaxed);
        while self.heartbeat(generation) {
            if self.chance(10) {
                return self.leave();
            }
            if self.chance(40) {
                // It dies, and comes again under another name.
                self.member.clear();
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn heartbeat(&self, generation: i32) -> bool {
        let request = HeartbeatRequest::default()
            .with_group_id(GroupId(text(GROUP)))
            .with_generation_id(generation)
            .with_member_id(text(&self.member));
        let reply = world::ask(self.coordinator, GroupRequest::Heartbeat(request), 4);
        match wait(later(reply)) {
            GroupResponse::Heartbeat(answer) => answer.error_code == 0,
            other => panic!("{other:?}"),
        }
    }

    fn leave(&mut self) {
        let identity = MemberIdentity::default().with_member_id(text(&self.member));
        let request = LeaveGroupRequest::default()
            .with_group_id(GroupId(text(GROUP)))
            .with_members(vec![identity]);
        world::ask(self.coordinator, GroupRequest::LeaveGroup(request), 5);
        self.member.clear();
    }
}

fn wait(mut asked: Asked) -> GroupResponse {
    let started = Instant::now();
    loop {
        if let Some(response) = asked.poll() {
            return response;
        }
        assert!(started.elapsed() < PATIENCE, "no answer");
        thread::sleep(Duration::from_micros(200));
    }
}

/// A lock held across a check, or a check forgotten, shows here as an answer that does not come.
#[test]
fn clients_that_come_and_go_at_once_all_get_their_answers() {
    let settings = Settings::new(Duration::from_millis(5)).expect("threads are to be had");
    let coordinator = Coordinator::open(settings, None).expect("threads are to be had");
    let (told, stable) = (Told::default(), AtomicUsize::new(0));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = Client {
                coordinator: &coordinator,
                told: &told,
                stable: &stable,
                member: String::new(),
                random: 0x9e37_79b9 + number as u64,
            };
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    client.turn();
                }
            });
        }
        let started = Instant::now();
        let far_enough = || {
            let generations = told.lock().map_or(0, |told| told.len());
            generations >= GENERATIONS && stable.load(Ordering::Relaxed) >= STAYS
        };
        while !far_enough() && started.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::Relaxed);
        assert!(far_enough(), "{told:?}, {stable:?} stays");
    });
    // Everybody is gone, so everything ends.
    let started = Instant::now();
    while coordinator.members() > 0 || coordinator.joins.len() + coordinator.syncs.len() > 0 {
        assert!(started.elapsed() < PATIENCE, "{coordinator:?}");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(coordinator.joins.stats().panicked, 0);
    assert_eq!(coordinator.syncs.stats().panicked, 0);
}
