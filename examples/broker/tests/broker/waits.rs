//! What waits, for how long, and what ends it.

use crate::process::Broker;
use crate::requests::{
    Fetch, REQUEST_TIMED_OUT, create_topic, offset_at, produce, produce_body, produce_to,
    receive_produced,
};
use crate::timing::assert_median_below;
use crate::wire::{API_VERSIONS, Connection, PRODUCE, Writer, batch};
use std::time::{Duration, Instant};

// Where something has to end a wait, the wait asked for is longer than the patience of these tests, so that its
// expiry cannot pass for that.

const PROMPT: Duration = Duration::from_millis(50);

/// For what must not wait at all, on a machine that may be busy.
const AT_ONCE: Duration = Duration::from_secs(2);

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn a_fetch_returns_soon_after_the_produce() {
    let broker = Broker::start();
    let mut consumer = Connection::open(broker.address());
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", 1);
    let mut offset = 0;
    assert_median_below(PROMPT, 9, || {
        let fetch = Fetch::new("t", 5_000).at(offset);
        let correlation = fetch.send(&mut consumer);
        broker.wait_for_parked(1);
        let produced = Instant::now();
        produce(&mut producer, "t", b"value");
        let (_, fetched) = fetch.receive(&mut consumer, correlation);
        assert!(!fetched[0].records.is_empty());
        offset += 1;
        produced.elapsed()
    });
    drop((consumer, producer));
    broker.assert_clean();
}

#[test]
fn a_fetch_returns_empty_handed_after_max_wait() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    assert_median_below(milliseconds(1_050), 3, || {
        let started = Instant::now();
        let fetched = Fetch::new("t", 1_000).run(&mut connection);
        let waited = started.elapsed();
        assert_eq!((fetched[0].error, &fetched[0].records[..]), (0, &[][..]));
        assert!(waited >= milliseconds(1_000), "too early: {waited:?}");
        waited
    });
    drop(connection);
    broker.assert_clean();
}

#[test]
fn any_partition_wakes_a_fetch_of_many() {
    const PARTITIONS: i32 = 50;
    let broker = Broker::start();
    let mut consumer = Connection::open(broker.address());
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", PARTITIONS);
    let mut fetch = Fetch::new("t", 5_000).of_partitions(PARTITIONS);
    let mut partition = PARTITIONS - 1;
    assert_median_below(PROMPT, 9, || {
        let correlation = fetch.send(&mut consumer);
        broker.wait_for("watched partitions", |report| report.watched == 50);
        let produced = Instant::now();
        produce_to(&mut producer, 1, "t", partition, &batch(&[b"value"]));
        let (_, fetched) = fetch.receive(&mut consumer, correlation);
        let with_data: Vec<_> = fetched
            .iter()
            .filter(|fetched| !fetched.records.is_empty())
            .map(|fetched| fetched.partition)
            .collect();
        assert_eq!(with_data, [partition]);
        fetch.partitions[partition as usize].1 = 1;
        partition -= 6;
        produced.elapsed()
    });
    drop((consumer, producer));
    broker.assert_clean();
}

#[test]
fn min_bytes_are_counted_over_all_partitions() {
    let broker = Broker::start();
    let mut consumer = Connection::open(broker.address());
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", 3);
    let records = batch(&[&[0; 100]]);
    let fetch = Fetch {
        min_bytes: 3 * records.len() as i32,
        ..Fetch::new("t", 60_000).of_partitions(3)
    };
    let correlation = fetch.send(&mut consumer);
    broker.wait_for_parked(1);
    for partition in [0, 2] {
        let produced = produce_to(&mut producer, -1, "t", partition, &records);
        assert_eq!(produced.error, 0);
        // It was looked at, and still waits.
        broker.wait_for_parked(1);
    }
    produce_to(&mut producer, -1, "t", 2, &records);
    let (_, fetched) = fetch.receive(&mut consumer, correlation);
    let lengths: Vec<_> = fetched.iter().map(|part| part.records.len()).collect();
    assert_eq!(lengths, [records.len(), 0, 2 * records.len()]);
    drop((consumer, producer));
    broker.assert_clean();
}

#[test]
fn too_few_bytes_are_handed_out_after_max_wait() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    produce(&mut connection, "t", b"value");
    let fetch = Fetch {
        min_bytes: 1_000,
        ..Fetch::new("t", 300)
    };
    let started = Instant::now();
    let fetched = fetch.run(&mut connection);
    assert!(started.elapsed() >= milliseconds(300));
    assert_eq!(fetched[0].records.len(), batch(&[b"value"]).len());
    drop(connection);
    broker.assert_clean();
}

#[test]
fn a_fetch_that_wants_nothing_does_not_wait() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    let started = Instant::now();
    for (max_wait, min_bytes) in [
        (0, 1),
        (-1, 1),
        (i32::MIN, i32::MAX),
        (60_000, 0),
        (60_000, -1),
    ] {
        let fetch = Fetch {
            min_bytes,
            ..Fetch::new("t", max_wait)
        };
        let fetched = fetch.run(&mut connection);
        assert_eq!((fetched[0].error, &fetched[0].records[..]), (0, &[][..]));
    }
    assert!(started.elapsed() < AT_ONCE);
    drop(connection);
    broker.assert_clean();
}

#[test]
fn the_longest_wait_parks_and_wakes_like_any_other() {
    let broker = Broker::start();
    let mut consumer = Connection::open(broker.address());
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", 1);
    let fetch = Fetch::new("t", i32::MAX);
    let correlation = fetch.send(&mut consumer);
    broker.wait_for_parked(1);
    produce(&mut producer, "t", b"value");
    let (_, fetched) = fetch.receive(&mut consumer, correlation);
    assert!(!fetched[0].records.is_empty());
    drop((consumer, producer));
    broker.assert_clean();
}

/// As in Kafka's own broker, the next request of a connection is begun when the one before it is answered.
#[test]
fn a_connection_has_one_request_at_a_time() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", 1);
    let fetch = Fetch::new("t", 60_000);
    let first = fetch.send(&mut connection);
    let second = connection.send(API_VERSIONS, &Writer::body(API_VERSIONS, 0));
    let next = fetch.clone().at(1);
    let third = next.send(&mut connection);
    broker.wait_for("parked fetch", |report| {
        report.parked_fetch == 1 && report.received == 2
    });
    // Another connection is not held up by what is parked here.
    produce(&mut producer, "t", b"value");
    fetch.receive(&mut connection, first);
    connection.receive(API_VERSIONS, 0, second);
    broker.wait_for_parked(1);
    produce(&mut producer, "t", b"value");
    next.receive(&mut connection, third);
    drop((connection, producer));
    broker.assert_clean();
}

#[test]
fn all_requests_that_are_sent_at_once_are_answered() {
    const REQUESTS: usize = 60;
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    let fetch = Fetch::new("t", 20);
    let sent: Vec<_> = (0..REQUESTS).map(|_| fetch.send(&mut connection)).collect();
    for correlation in sent {
        fetch.receive(&mut connection, correlation);
    }
    drop(connection);
    broker.assert_clean();
}

#[test]
fn acks_all_waits_for_the_follower_and_so_do_consumers() {
    let broker = Broker::with_arguments(&["--replica-lag-ms", "400"]);
    let mut consumer = Connection::open(broker.address());
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", 1);
    let fetch = Fetch::new("t", 60_000);
    let correlation = fetch.send(&mut consumer);
    broker.wait_for_parked(1);

    let started = Instant::now();
    let records = batch(&[b"value"]);
    let body = produce_body(8, -1, 10_000, "t", &[(0, Some(&records))]);
    let produced = producer.send(PRODUCE, &body);
    broker.wait_for("parked produce", |report| report.parked_produce == 1);
    // Appended, but not to be seen before the follower has it.
    assert_eq!(offset_at(&mut consumer_of(&broker), "t", -1), (0, 0));

    let (_, fetched) = fetch.receive(&mut consumer, correlation);
    let waited = started.elapsed();
    assert!(waited >= milliseconds(400), "too early: {waited:?}");
    assert_eq!(fetched[0].high_watermark, 1);
    let produced = receive_produced(producer.receive(PRODUCE, 8, produced));
    assert_eq!((produced[0].error, produced[0].base_offset), (0, 0));
    assert!(started.elapsed() < milliseconds(400) + AT_ONCE);
    drop((consumer, producer));
    broker.assert_clean();
}

#[test]
fn acks_1_does_not_wait_for_the_follower() {
    let broker = Broker::with_arguments(&["--replica-lag-ms", "20000"]);
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", 1);
    let started = Instant::now();
    let produced = produce_to(&mut producer, 1, "t", 0, &batch(&[b"value"]));
    assert_eq!((produced.error, produced.base_offset), (0, 0));
    assert!(started.elapsed() < AT_ONCE);
    drop(producer);
    broker.assert_clean();
}

#[test]
fn acks_all_times_out_when_the_follower_is_too_slow() {
    let broker = Broker::with_arguments(&["--replica-lag-ms", "1500"]);
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", 1);
    let records = batch(&[b"value"]);
    for (timeout, waits) in [(300, 300), (0, 0), (-5, 0)] {
        let started = Instant::now();
        let body = produce_body(8, -1, timeout, "t", &[(0, Some(&records))]);
        let produced = receive_produced(producer.request(PRODUCE, &body));
        let waited = started.elapsed();
        assert_eq!(
            (produced[0].error, produced[0].base_offset),
            (REQUEST_TIMED_OUT, -1)
        );
        assert!(waited >= milliseconds(waits), "too early: {waited:?}");
        assert!(waited < milliseconds(1_500), "too late: {waited:?}");
    }
    // The records are there all the same, once the follower has them.
    let all = Fetch {
        min_bytes: 3 * records.len() as i32,
        ..Fetch::new("t", 60_000)
    };
    let fetched = all.run(&mut producer);
    assert_eq!(fetched[0].high_watermark, 3);
    drop(producer);
    broker.assert_clean();
}

#[test]
fn a_client_that_leaves_takes_its_requests_along() {
    let broker = Broker::with_arguments(&["--replica-lag-ms", "60000"]);
    let mut setup = consumer_of(&broker);
    create_topic(&mut setup, "t", 10);
    drop(setup);
    let fetch = Fetch::new("t", 60_000).of_partitions(10);
    let records = batch(&[b"value"]);
    let produce = produce_body(8, -1, 60_000, "t", &[(0, Some(&records))]);

    let mut clients: Vec<_> = (0..20).map(|_| consumer_of(&broker)).collect();
    for pair in clients.chunks_mut(2) {
        fetch.send(&mut pair[0]);
        pair[1].send(PRODUCE, &produce);
    }
    broker.wait_for("parked requests", |report| {
        report.parked_fetch == 10 && report.parked_produce == 10
    });
    drop(clients);
    let report = broker.wait_for("nothing parked", |report| {
        report.parked_fetch + report.parked_produce + report.watched == 0
    });
    assert_eq!(report.abandoned, 20);
    broker.assert_clean();
}

#[test]
fn a_client_that_leaves_is_noticed_however_it_leaves() {
    let broker = Broker::start();
    let mut setup = consumer_of(&broker);
    create_topic(&mut setup, "t", 1);
    drop(setup);
    let fetch = Fetch::new("t", 60_000);

    // Its machine crashes: a reset instead of a close.
    let mut client = consumer_of(&broker);
    client.send(API_VERSIONS, &Writer::body(API_VERSIONS, 0));
    fetch.send(&mut client);
    broker.wait_for_parked(1);
    client.reset();
    broker.wait_for_parked(0);

    // With more requests on their way than the broker takes up.
    let mut client = consumer_of(&broker);
    for _ in 0..100 {
        fetch.send(&mut client);
    }
    broker.wait_for_parked(1);
    drop(client);
    broker.wait_for_parked(0);

    // With more on its way than is read ahead.
    let mut client = consumer_of(&broker);
    for _ in 0..600 {
        fetch.send(&mut client);
    }
    broker.wait_for_parked(1);
    drop(client);
    broker.wait_for_parked(0);

    // In the middle of a request.
    let mut client = consumer_of(&broker);
    fetch.send(&mut client);
    client.send_raw(&[0, 0, 1, 0, 1, 2, 3]);
    broker.wait_for_parked(1);
    drop(client);
    broker.wait_for_parked(0);
    broker.assert_clean();
}

fn consumer_of(broker: &Broker) -> Connection {
    Connection::open(broker.address())
}
