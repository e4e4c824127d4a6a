//! Consumer groups with stock clients: members come, leave and are killed, and every record is read all the same.

use crate::client::Client as Connection;
use crate::process::Broker;
use crate::programs::{Running, available, python, script, signal};
use crate::requests::{batch, create_topic, produce_to};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 6;

/// How long members may be silent; as the script says it.
const SESSION: Duration = Duration::from_secs(3);

/// Longest that members may take for anything.
const PATIENCE: Duration = Duration::from_secs(25);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    ConfluentKafka,
    /// Its partitions are taken from it one by one (cooperative-sticky).
    Cooperative,
    KafkaPython,
    Kcat,
}

impl Kind {
    fn is_installed(self) -> bool {
        match self {
            Self::ConfluentKafka | Self::Cooperative => {
                available(&python(), &["-c", "import confluent_kafka"])
            }
            Self::KafkaPython => available(&python(), &["-c", "import kafka"]),
            Self::Kcat => available("kcat", &["-V"]),
        }
    }

    fn command(self, address: &str, instance: Option<&str>) -> Command {
        let client = match self {
            Self::ConfluentKafka => "confluent_kafka",
            Self::Cooperative => "cooperative",
            Self::KafkaPython => "kafka_python",
            Self::Kcat => {
                let mut command = Command::new("kcat");
                command.args(["-b", address, "-G", "g", "-u", "-f", "record %p %o\n"]);
                for setting in [
                    "auto.offset.reset=earliest",
                    "heartbeat.interval.ms=300",
                    "topic.metadata.refresh.interval.ms=1000",
                    "session.timeout.ms=3000",
                ] {
                    command.args(["-X", setting]);
                }
                command.arg("t");
                return command;
            }
        };
        let mut command = script("group_member.py");
        command.args([client, address, "g", "t"]).args(instance);
        command
    }
}

/// What a member tells.
enum Event {
    Record(i32, i64),
    Committed(i32, i64),
}

/// A stock client in a process of its own. Killed when dropped.
struct Member {
    client: Running,
    lines: mpsc::Receiver<String>,
    /// What it was assigned last.
    assigned: Vec<i32>,
}

impl Member {
    fn start(kind: Kind, broker: &Broker, instance: Option<&str>) -> Self {
        let mut command = kind.command(&broker.address.to_string(), instance);
        let (client, lines) = Running::start(&mut command);
        let assigned = Vec::new();
        Self {
            client,
            lines,
            assigned,
        }
    }

    /// What it has told since.
    fn events(&mut self) -> Vec<Event> {
        let lines: Vec<_> = self.lines.try_iter().collect();
        lines.iter().filter_map(|line| self.event(line)).collect()
    }

    fn event(&mut self, line: &str) -> Option<Event> {
        // kcat: % Group g rebalanced (memberid x): assigned: t [0], t [1]
        if let Some((_, partitions)) = line.split_once("): assigned: ") {
            let partitions = partitions.split(", ").filter_map(|part| {
                let index = part.trim_start_matches("t [").trim_end_matches(']');
                index.parse().ok()
            });
            self.assigned = partitions.collect();
            return None;
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut numbers = rest
            .split(' ')
            .filter_map(|number| number.parse::<i64>().ok());
        match word {
            "assigned" => {
                self.assigned = numbers.map(|number| number as i32).collect();
                None
            }
            "record" => Some(Event::Record(numbers.next()? as i32, numbers.next()?)),
            "committed" => Some(Event::Committed(numbers.next()? as i32, numbers.next()?)),
            _ => None,
        }
    }

    /// Leaves the group in order.
    fn leave(mut self) {
        signal(self.client.0.id(), "TERM");
        let begun = Instant::now();
        loop {
            if let Some(status) = self.client.0.try_wait().expect("wait for the client") {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "a client does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

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
        let mut producer = broker.client();
        create_topic(&mut producer, "t", PARTITIONS);
        Self {
            broker,
            producer,
            produced: BTreeMap::new(),
            read: BTreeMap::new(),
            committed: BTreeMap::new(),
        }
    }

    fn join(&self, kind: Kind) -> Member {
        Member::start(kind, &self.broker, None)
    }

    fn produce(&mut self) {
        for partition in 0..PARTITIONS {
            let produced = produce_to(&mut self.producer, 1, "t", partition, &batch(&[b"value"]));
            assert_eq!(produced.0, 0);
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
                        assert!(offset > committed, "{partition}:{offset} once more");
                        *self.read.entry((partition, offset)).or_default() += 1;
                    }
                    Event::Committed(partition, offset) => {
                        let before = self.committed.insert(partition, offset);
                        assert!(before.is_none_or(|before| before < offset));
                    }
                }
            }
        }
    }

    /// Waits until the members share the partitions, each with some, and returns how long that took.
    fn wait_for_shares(&mut self, members: &mut [Member]) -> Duration {
        let started = Instant::now();
        loop {
            self.listen(members);
            let mut shared: Vec<_> = members
                .iter()
                .flat_map(|member| member.assigned.clone())
                .collect();
            shared.sort_unstable();
            let each = members.iter().all(|member| !member.assigned.is_empty());
            if each && shared == (0..PARTITIONS).collect::<Vec<_>>() {
                return started.elapsed();
            }
            assert!(started.elapsed() < PATIENCE, "shares: {shared:?}");
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
                started.elapsed() < PATIENCE,
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
        self.broker.wait_for_figure("members", 0);
        let report = self.broker.assert_tidy();
        assert_eq!(
            (report.get("joins"), report.get("syncs")),
            (0, 0),
            "{report:?}"
        );
    }
}

/// One, two, three members; one leaves, one is killed; all of these clients, in this order.
fn come_and_go(kinds: [Kind; 3]) {
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
    drop(members.remove(0));
    let took = world.wait_for_shares(&mut members);
    assert!(
        took < SESSION + Duration::from_secs(1),
        "after a kill: {took:?}"
    );
    world.wait_for_records(&mut members);
    world.assert_read_once(PARTITIONS as usize);
    world.finish(members);
}

#[test]
fn members_of_confluent_kafka_come_and_go() {
    come_and_go([Kind::ConfluentKafka; 3]);
}

#[test]
fn members_of_confluent_kafka_come_and_go_cooperatively() {
    come_and_go([Kind::Cooperative; 3]);
}

#[test]
fn members_of_kafka_python_come_and_go() {
    come_and_go([Kind::KafkaPython; 3]);
}

#[test]
fn members_of_kcat_come_and_go() {
    come_and_go([Kind::Kcat; 3]);
}

#[test]
fn members_of_all_kinds_come_and_go() {
    come_and_go([Kind::KafkaPython, Kind::ConfluentKafka, Kind::Kcat]);
}

/// All members end, and another one goes on where they were.
#[test]
fn commits_survive_a_restart_of_the_consumer() {
    let kinds = [
        Kind::KafkaPython,
        Kind::Kcat,
        Kind::ConfluentKafka,
        Kind::KafkaPython,
    ];
    if !kinds.iter().all(|kind| kind.is_installed()) {
        return;
    }
    let mut world = World::new();
    for kind in kinds {
        let mut members = vec![world.join(kind)];
        world.wait_for_shares(&mut members);
        world.wait_for_records(&mut members);
        members.into_iter().for_each(Member::leave);
        world.assert_read_once(0);
        world.broker.wait_for_figure("members", 0);
        // Produced while no member is there.
        world.produce();
    }
    world.finish(Vec::new());
}

/// A static member is killed and started again within its session: the other one does not even notice.
#[test]
fn a_static_member_that_restarts_disturbs_no_other() {
    for kind in [Kind::ConfluentKafka, Kind::KafkaPython] {
        if !kind.is_installed() {
            return;
        }
        let mut world = World::new();
        let start = |world: &World, name| Member::start(kind, &world.broker, Some(name));
        let mut members = vec![start(&world, "a"), start(&world, "b")];
        world.wait_for_shares(&mut members);
        world.wait_for_records(&mut members);
        let rebalances = |world: &World| {
            world
                .broker
                .wait_for("a report", |_| true)
                .get("rebalances")
        };
        let before = rebalances(&world);
        drop(members.remove(1));
        members.push(start(&world, "b"));
        world.wait_for_shares(&mut members);
        world.wait_for_records(&mut members);
        assert_eq!(rebalances(&world), before);
    }
}
