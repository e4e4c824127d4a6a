//! Consumer groups with stock clients: members come, leave and are killed, and every record is read all the same.

mod member;

use crate::process::Broker;
use crate::python;
use crate::requests::{create_topic, produce_to};
use crate::wire::{Connection, batch};
use member::{Client, Event, Member, SESSION};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 6;

/// A broker with a topic, and what has become of its records.
struct World {
    broker: Broker,
    producer: Connection,
    /// Records produced, by partition.
    produced: BTreeMap<i32, i64>,
    /// Records read, by partition and offset, with how often; and committed.
    read: BTreeMap<(i32, i64), usize>,
    committed: BTreeMap<i32, i64>,
}

impl World {
    fn new() -> Self {
        let broker = Broker::start();
        let mut producer = Connection::open(broker.address());
        create_topic(&mut producer, "t", PARTITIONS);
        Self {
            broker,
            producer,
            produced: BTreeMap::new(),
            read: BTreeMap::new(),
            committed: BTreeMap::new(),
        }
    }

    fn join(&self, client: Client) -> Member {
        Member::start(client, self.broker.address(), None)
    }

    fn produce(&mut self) {
        for partition in 0..PARTITIONS {
            let produced = produce_to(&mut self.producer, 1, "t", partition, &batch(&[b"value"]));
            assert_eq!(produced.error, 0);
            *self.produced.entry(partition).or_default() += 1;
        }
    }

    /// Notes what the members tell.
    fn listen(&mut self, members: &mut [Member]) {
        for member in members {
            for event in member.events() {
                match event {
                    Event::Record(partition, offset) => {
                        let committed = self.committed.get(&partition).copied().unwrap_or(-1);
                        assert!(
                            offset > committed,
                            "{} got {partition}:{offset} once more, which was committed",
                            member.name()
                        );
                        *self.read.entry((partition, offset)).or_default() += 1;
                    }
                    Event::Committed(partition, offset) => {
                        let before = self.committed.insert(partition, offset);
                        assert!(before.is_none_or(|before| before < offset));
                    }
                    Event::Assigned | Event::Closed => {}
                }
            }
        }
    }

    /// Waits until the members share the partitions, each with some, and returns how long that took.
    fn wait_for_shares(&mut self, members: &mut [Member]) -> Duration {
        let started = Instant::now();
        loop {
            self.listen(members);
            let mut shared: Vec<_> = members.iter().flat_map(Member::assigned).collect();
            shared.sort_unstable();
            let each = members.iter().all(|member| !member.assigned().is_empty());
            if each && shared == (0..PARTITIONS).collect::<Vec<_>>() {
                return started.elapsed();
            }
            assert!(started.elapsed() < member::PATIENCE, "shares: {shared:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Produces to every partition, and waits until everything produced so far was read.
    fn wait_for_records(&mut self, members: &mut [Member]) {
        self.produce();
        let started = Instant::now();
        let produced: i64 = self.produced.values().sum();
        while (self.read.len() as i64) < produced {
            self.listen(members);
            assert!(
                started.elapsed() < member::PATIENCE,
                "{} of {produced}",
                self.read.len()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(self.read.len() as i64, produced, "nothing is skipped");
    }

    /// Every record was read; once, but for those that a killed member may not have committed.
    fn assert_read_once(&self, but_for: usize) {
        let more = self.read.values().map(|count| count - 1).sum::<usize>();
        assert!(more <= but_for, "{more} records were read more than once");
    }

    fn finish(self, members: Vec<Member>) {
        for member in members {
            member.leave();
        }
        drop(self.producer);
        self.broker
            .wait_for("no members", |report| report.members == 0);
        let report = self.broker.assert_tidy();
        assert_eq!((report.joins, report.syncs), (0, 0), "{report:?}");
    }
}

/// One, two, three members; one leaves, one is killed; all of these clients, in this order.
fn come_and_go(kinds: [Client; 3]) {
    if !kinds.iter().all(|kind| kind.is_installed()) {
        return;
    }
    let mut world = World::new();
    let mut members = Vec::new();
    for kind in kinds {
        members.push(world.join(kind));
        world.wait_for_shares(&mut members);
        world.wait_for_records(&mut members);
    }
    world.assert_read_once(0);

    // One leaves: the others need not wait for its session to expire.
    let left = members.remove(1);
    left.leave();
    let took = world.wait_for_shares(&mut members);
    assert!(took < SESSION, "after leaving: {took:?}");
    world.wait_for_records(&mut members);
    world.assert_read_once(0);

    // It comes again, and continues where the others are.
    members.push(world.join(kinds[1]));
    world.wait_for_shares(&mut members);
    world.wait_for_records(&mut members);
    world.assert_read_once(0);

    // One is killed, which no other member is told.
    let killed = members.remove(0);
    killed.kill();
    let took = world.wait_for_shares(&mut members);
    assert!(
        took < SESSION + Duration::from_secs(1),
        "after a kill: {took:?}"
    );
    println!("rebalanced {took:?} after the kill");
    world.wait_for_records(&mut members);
    world.assert_read_once(PARTITIONS as usize);
    world.finish(members);
}

#[test]
fn members_of_confluent_kafka_come_and_go() {
    come_and_go([Client::ConfluentKafka; 3]);
}

#[test]
fn members_of_kafka_python_come_and_go() {
    come_and_go([Client::KafkaPython; 3]);
}

#[test]
fn members_of_kcat_come_and_go() {
    come_and_go([Client::Kcat; 3]);
}

#[test]
fn members_of_all_kinds_come_and_go() {
    come_and_go([Client::KafkaPython, Client::ConfluentKafka, Client::Kcat]);
}

/// All members end, and another one goes on where they were.
#[test]
fn commits_survive_a_restart_of_the_consumer() {
    let kinds = [Client::KafkaPython, Client::Kcat, Client::ConfluentKafka];
    if !kinds.iter().all(|kind| kind.is_installed()) {
        return;
    }
    let mut world = World::new();
    for kind in kinds {
        let mut members = vec![world.join(kind)];
        world.wait_for_shares(&mut members);
        world.wait_for_records(&mut members);
        world.wait_for_records(&mut members);
        for member in members {
            member.leave();
        }
        world.assert_read_once(0);
        world
            .broker
            .wait_for("no members", |report| report.members == 0);
        // Produced while no member is there.
        world.produce();
    }
    let mut members = vec![world.join(Client::KafkaPython)];
    world.wait_for_records(&mut members);
    world.assert_read_once(0);
    world.finish(members);
}

/// A static member is killed and started again within its session: the other one does not even notice.
#[test]
fn a_static_member_that_restarts_disturbs_nobody() {
    for kind in [Client::ConfluentKafka, Client::KafkaPython] {
        if !kind.is_installed() {
            return;
        }
        let mut world = World::new();
        let start = |world: &World, name| Member::start(kind, world.broker.address(), Some(name));
        let mut members = vec![start(&world, "a"), start(&world, "b")];
        world.wait_for_shares(&mut members);
        world.wait_for_records(&mut members);
        let rebalances = world.broker.wait_for("a report", |_| true).rebalances;
        members.remove(1).kill();
        members.push(start(&world, "b"));
        world.wait_for_shares(&mut members);
        world.wait_for_records(&mut members);
        let report = world.broker.wait_for("a report", |_| true);
        assert_eq!(report.rebalances, rebalances, "{}", members[0].name());
        drop((members, world));
    }
}

#[test]
fn confluent_kafka_administers_groups() {
    python::check("group_admin.py", "confluent_kafka", "confluent_kafka", &[]);
}

#[test]
fn kafka_python_administers_groups() {
    python::check("group_admin.py", "kafka", "kafka_python", &[]);
}
