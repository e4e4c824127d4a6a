//! Whatever a few clients do: each request is answered once, one leads, and all of a generation are told the same.

use super::*;
use proptest::prelude::*;

const CLIENTS: usize = 5;

/// The protocols that clients offer. All have "b".
const OFFERS: [&[&str]; 3] = [&["a", "b"], &["b", "a"], &["b", "c"]];

/// What a client does, or what happens meanwhile.
#[derive(Debug, Clone)]
enum Step {
    /// In this version, and with this offer.
    Join(i16, usize),
    Sync,
    Heartbeat,
    Leave,
    /// Its connection breaks, with all that it waits for.
    Abandon,
    /// Its process ends, and another one takes its place.
    Restart,
    Pass(u64),
    Delete,
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let version = prop_oneof![Just(3_i16), Just(8), Just(9)];
    let step = prop_oneof![
        6 => (version, 0..OFFERS.len()).prop_map(|(version, offer)| Step::Join(version, offer)),
        6 => Just(Step::Sync),
        3 => Just(Step::Heartbeat),
        1 => Just(Step::Leave),
        1 => Just(Step::Abandon),
        1 => Just(Step::Restart),
        4 => prop_oneof![0_u64..200, 0_u64..12_000].prop_map(Step::Pass),
        1 => Just(Step::Delete),
    ];
    proptest::collection::vec((0..CLIENTS, step), 1..120)
}

#[derive(Default)]
struct Client {
    /// Static, with this name.
    name: Option<&'static str>,
    member: String,
    generation: i32,
    leads: Vec<String>,
    joins: Vec<Joining>,
    syncs: Vec<(i32, Syncing)>,
}

/// Protocol and leader of a generation, as they were told first. A group that is made anew counts from the start.
type Generations = BTreeMap<i32, (String, String)>;

fn take(world: &World, client: &mut Client, generations: &mut Generations, step: &Step) {
    match *step {
        Step::Join(version, offer) => {
            let request = join_request(&client.member)
                .with_group_instance_id(client.name.map(text))
                .with_protocols(protocols(OFFERS[offer]));
            client.joins.push(world.ask(request, version));
        }
        Step::Sync => {
            let members: Vec<_> = client.leads.iter().map(String::as_str).collect();
            let request = sync_request(&client.member, client.generation, &members)
                .with_group_instance_id(client.name.map(text));
            let sync = (client.generation, world.ask(request, 5));
            client.syncs.push(sync);
        }
        Step::Heartbeat => _ = world.heartbeat(&client.member, client.generation),
        Step::Leave => _ = world.leave(&client.member, None),
        Step::Abandon => (client.joins, client.syncs) = Default::default(),
        Step::Restart => client.name = std::mem::take(client).name,
        Step::Pass(milliseconds) => world.pass(Duration::from_millis(milliseconds)),
        Step::Delete if world.delete() == 0 => generations.clear(),
        Step::Delete => {}
    }
}

/// Takes the answers that have come. (`poll` panics if a request ended without one.)
fn collect(client: &mut Client, generations: &mut Generations) {
    client.syncs.retain_mut(|(generation, asked)| {
        let answer = asked.poll();
        // (A static member may still have the assignment of its member id before.)
        let answered = answer.iter().filter(|_| client.name.is_none());
        for answer in answered.filter(|answer| !answer.assignment.is_empty()) {
            assert_eq!(answer.assignment, share(&client.member, *generation));
        }
        answer.is_none()
    });
    for mut asked in std::mem::take(&mut client.joins) {
        match asked.poll() {
            Some(answer) => note(client, generations, &answer),
            None => client.joins.push(asked),
        }
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
        let (world, mut generations) = (World::new(), Generations::new());
        let mut clients: [Client; CLIENTS] = Default::default();
        [clients[0].name, clients[1].name] = [Some("x"), Some("y")];
        for (client, step) in &steps {
            take(&world, &mut clients[*client], &mut generations, step);
            clients.iter_mut().for_each(|it| collect(it, &mut generations));
            world.check();
        }
        // Time enough for everything to end.
        world.pass(2 * (INITIAL_DELAY + REBALANCE + SESSION));
        for client in &mut clients {
            collect(client, &mut generations);
            assert!(client.joins.is_empty(), "a join waits for ever");
            assert!(client.syncs.is_empty(), "a sync waits for ever");
        }
        // Sessions end one after the other, each with a rebalance.
        world.pass(Duration::from_secs(3_600));
        let coordinator = &world.coordinator;
        assert_eq!((world.members(), world.memory_in_use()), (0, 0));
        let stats = coordinator.shared.rebalances.stats();
        assert_eq!((stats.parked, stats.panicked), (0, 0));
        world.check();
    }
}
