//! Whatever a few clients do, in whatever order: every request is answered once, there is one leader, and all members
//! of a generation are told the same.

use super::world::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const CLIENTS: usize = 5;

/// The protocols that clients offer. All have "b".
const OFFERS: [&[&str]; 3] = [&["a", "b"], &["b", "a"], &["b", "c"]];

#[derive(Debug, Clone)]
enum Step {
    /// Client, version, what it offers.
    Join(usize, i16, usize),
    Sync(usize),
    Heartbeat(usize),
    Leave(usize),
    /// Its connection breaks, with all that it waits for.
    Abandon(usize),
    /// Its process ends, and another one takes its place.
    Restart(usize),
    Pass(u64),
    Delete,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = 0..CLIENTS;
    let step = prop_oneof![
        6 => (client.clone(), prop_oneof![Just(3_i16), Just(8), Just(9)], 0..OFFERS.len())
            .prop_map(|(client, version, offer)| Step::Join(client, version, offer)),
        6 => client.clone().prop_map(Step::Sync),
        3 => client.clone().prop_map(Step::Heartbeat),
        1 => client.clone().prop_map(Step::Leave),
        1 => client.clone().prop_map(Step::Abandon),
        1 => client.prop_map(Step::Restart),
        4 => prop_oneof![0_u64..200, 0_u64..12_000].prop_map(Step::Pass),
        1 => Just(Step::Delete),
    ];
    proptest::collection::vec(step, 1..120)
}

#[derive(Default)]
struct Client {
    /// Static, with this name.
    name: Option<&'static str>,
    member: String,
    generation: i32,
    /// The members of the generation that it leads.
    leads: Vec<String>,
    joins: Vec<Joining>,
    syncs: Vec<(i32, Syncing)>,
}

struct Run {
    world: World,
    clients: Vec<Client>,
    /// Protocol and leader of a generation, as they were told first. A group that is made anew counts from the start.
    generations: Generations,
}

type Generations = BTreeMap<i32, (String, String)>;

impl Run {
    fn new() -> Self {
        let client = |number| Client {
            name: [Some("x"), Some("y"), None, None, None][number],
            ..Client::default()
        };
        Self {
            world: World::new(),
            clients: (0..CLIENTS).map(client).collect(),
            generations: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Join(client, version, offer) => self.join(client, version, offer),
            Step::Sync(client) => self.sync(client),
            Step::Heartbeat(client) => {
                let client = &self.clients[client];
                self.world.heartbeat(&client.member, client.generation);
            }
            Step::Leave(client) => _ = self.world.leave(&self.clients[client].member, None),
            Step::Abandon(client) => {
                self.clients[client].joins.clear();
                self.clients[client].syncs.clear();
            }
            Step::Restart(client) => {
                let client = &mut self.clients[client];
                client.name = std::mem::take(client).name;
            }
            Step::Pass(milliseconds) => self.world.pass(Duration::from_millis(milliseconds)),
            Step::Delete => self.delete(),
        }
        self.collect();
        self.world.check();
    }

    fn join(&mut self, number: usize, version: i16, offer: usize) {
        let client = &mut self.clients[number];
        let request = join_request(&client.member)
            .with_group_instance_id(client.name.map(text))
            .with_protocols(protocols(OFFERS[offer]));
        client.joins.push(self.world.ask(request, version));
    }

    fn sync(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let generation = client.generation;
        let members: Vec<_> = client.leads.iter().map(String::as_str).collect();
        let request = sync_request(&client.member, generation, &members)
            .with_group_instance_id(client.name.map(text));
        let asked = self.world.ask(request, 5);
        client.syncs.push((generation, asked));
    }

    fn delete(&mut self) {
        if self.world.delete() == 0 {
            self.generations.clear();
        }
    }

    /// Takes the answers that have come. (`poll` panics if a request ended without one.)
    fn collect(&mut self) {
        for client in &mut self.clients {
            for (generation, mut asked) in std::mem::take(&mut client.syncs) {
                let Some(answer) = asked.poll() else {
                    client.syncs.push((generation, asked));
                    continue;
                };
                // (A static member may still have the assignment of its member id before.)
                if !answer.assignment.is_empty() && client.name.is_none() {
                    assert_eq!(answer.assignment, share(&client.member, generation));
                }
            }
            for mut asked in std::mem::take(&mut client.joins) {
                match asked.poll() {
                    Some(answer) => note(client, &mut self.generations, &answer),
                    None => client.joins.push(asked),
                }
            }
        }
    }

    /// Time enough for everything to end.
    fn finish(mut self) {
        self.world.pass(2 * (INITIAL_DELAY + REBALANCE + SESSION));
        self.collect();
        for client in &self.clients {
            assert!(client.joins.is_empty(), "a join waits for ever");
            assert!(client.syncs.is_empty(), "a sync waits for ever");
        }
        // Sessions end one after the other, each with a rebalance.
        self.world.pass(Duration::from_secs(3_600));
        let coordinator = &self.world.coordinator;
        let memory = coordinator.shared.memory.available_permits();
        assert_eq!((coordinator.members(), memory), (0, self.world.bytes));
        let stats = coordinator.shared.rebalances.stats();
        assert_eq!((stats.parked, stats.panicked), (0, 0));
        self.world.check();
    }
}

fn note(client: &mut Client, generations: &mut Generations, answer: &JoinGroupResponse) {
    match answer.error_code {
        // MEMBER_ID_REQUIRED
        0 | 79 => client.member = answer.member_id.to_string(),
        // UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID
        25 | 82 => client.member.clear(),
        // COORDINATOR_NOT_AVAILABLE, REBALANCE_IN_PROGRESS
        15 | 27 => {}
        other => panic!("error {other}"),
    }
    if answer.error_code != 0 {
        return;
    }
    client.generation = answer.generation_id;
    let members = answer.members.iter();
    client.leads = members.map(|it| it.member_id.to_string()).collect();
    let protocol = answer.protocol_name.as_deref().unwrap_or_default();
    let mut members = answer.members.iter();
    assert!(members.all(|it| it.metadata == format!("about {protocol}")));
    let leads = *answer.leader == *client.member;
    assert_eq!(leads, !client.leads.is_empty(), "the list is the leader's");
    let told = (protocol.to_owned(), answer.leader.to_string());
    let known = generations.entry(answer.generation_id);
    let known = known.or_insert_with(|| told.clone());
    assert_eq!(*known, told, "all are told the same");
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(400)
    })]

    #[test]
    fn every_request_is_answered_once_and_generations_agree(steps in steps()) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        run.finish();
    }
}
