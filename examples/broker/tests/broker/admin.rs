//! Topics deleted, and configs described.

use crate::process::Broker;
use crate::requests::{
    Fetch, UNKNOWN_TOPIC_OR_PARTITION, create_topic, produce, produce_body, receive_produced,
};
use crate::wire::{
    CREATE_TOPICS, Connection, DELETE_TOPICS, DESCRIBE_CONFIGS, PRODUCE, Reader, Writer, batch,
};

const INVALID_REQUEST: i16 = 42;
const INVALID_CONFIG: i16 = 40;

/// Deletes topics, and returns the error of each.
pub(crate) fn delete_topics(client: &mut Connection, version: i16, names: &[&str]) -> Vec<i16> {
    let mut body = Writer::body(DELETE_TOPICS, version).count(names.len());
    for name in names {
        body = body.string(name);
    }
    let mut answer = client.request(DELETE_TOPICS, &body.int32(1_000).end());
    assert_eq!(answer.int32(), 0, "throttle time");
    let mut asked = names.iter();
    let errors = answer.list(|answer| {
        assert_eq!(answer.string().as_deref(), asked.next().copied());
        let error = answer.int16();
        let message = answer.since(5, Reader::string).flatten();
        assert_eq!(message.is_some(), error != 0 && version >= 5);
        answer.end();
        error
    });
    answer.end();
    answer.finish();
    errors
}

/// The error, and the configs as (name, value).
fn describe_configs(
    client: &mut Connection,
    version: i16,
    (kind, name): (i8, &str),
    configs: Option<&[&str]>,
) -> (i16, Vec<(String, String)>) {
    let mut body = Writer::body(DESCRIBE_CONFIGS, version)
        .count(1)
        .int8(kind)
        .string(name);
    body = match configs {
        None => body.null(),
        Some(names) => names
            .iter()
            .fold(body.count(names.len()), |body, name| body.string(name)),
    };
    let body = body.end().int8(0).since(3, |body| body.int8(0)).end();
    let mut answer = client.request(DESCRIBE_CONFIGS, &body);
    assert_eq!(answer.int32(), 0, "throttle time");
    let mut found = answer.list(|answer| {
        let error = answer.int16();
        assert_eq!(answer.string().is_some(), error != 0);
        assert_eq!(
            (answer.int8(), answer.string().as_deref()),
            (kind, Some(name))
        );
        let configs = answer.list(|answer| {
            let name = answer.string().expect("a name");
            let value = answer.string().expect("a value");
            assert_eq!(
                (answer.int8(), answer.int8(), answer.int8()),
                (1, 5, 0),
                "{name}"
            );
            assert!(answer.list(|_| ()).is_empty(), "synonyms");
            answer.since(3, |answer| (answer.int8(), answer.string()));
            answer.end();
            (name, value)
        });
        answer.end();
        (error, configs)
    });
    answer.end();
    answer.finish();
    found.pop().expect("one resource")
}

#[test]
fn a_deleted_topic_is_gone_in_every_version() {
    let broker = Broker::start();
    let mut client = Connection::open(broker.address());
    for version in 1..=5 {
        create_topic(&mut client, "t", 3);
        assert_eq!(produce(&mut client, "t", b"value").base_offset, 0);
        let errors = delete_topics(&mut client, version, &["t", "never was"]);
        assert_eq!(errors, [0, UNKNOWN_TOPIC_OR_PARTITION]);
        let fetched = Fetch::new("t", 60_000).run(&mut client);
        assert_eq!(fetched[0].error, UNKNOWN_TOPIC_OR_PARTITION);
    }
    drop(client);
    broker.assert_clean();
}

#[test]
fn what_waits_for_a_deleted_topic_is_told() {
    let broker = Broker::with_arguments(&["--replica-lag-ms", "60000"]);
    let mut admin = Connection::open(broker.address());
    let mut consumer = Connection::open(broker.address());
    let mut producer = Connection::open(broker.address());
    create_topic(&mut admin, "t", 2);
    let fetch = Fetch::new("t", 60_000).of_partitions(2);
    let fetched = fetch.send(&mut consumer);
    let records = batch(&[b"value"]);
    let body = produce_body(8, -1, 60_000, "t", &[(0, Some(&records))]);
    let produced = producer.send(PRODUCE, &body);
    broker.wait_for("parked requests", |report| {
        report.parked_fetch == 1 && report.parked_produce == 1
    });
    assert_eq!(delete_topics(&mut admin, 5, &["t"]), [0]);
    let (_, fetched) = fetch.receive(&mut consumer, fetched);
    let errors: Vec<_> = fetched.iter().map(|fetched| fetched.error).collect();
    assert_eq!(errors, [UNKNOWN_TOPIC_OR_PARTITION; 2]);
    let produced = receive_produced(producer.receive(PRODUCE, 8, produced));
    assert_eq!(produced[0].error, UNKNOWN_TOPIC_OR_PARTITION);
    drop((admin, consumer, producer));
    broker.assert_clean();
}

#[test]
fn configs_are_described_in_every_version() {
    const TOPIC: i8 = 2;
    const BROKER: i8 = 4;
    let broker = Broker::start();
    let mut client = Connection::open(broker.address());
    create_topic(&mut client, "t", 1);
    for version in 1..=4 {
        let mut describe =
            |resource, configs| describe_configs(&mut client, version, resource, configs);
        let (error, configs) = describe((TOPIC, "t"), None);
        let retention = ("retention.bytes".to_owned(), "67108864".to_owned());
        assert!(error == 0 && configs.contains(&retention), "{configs:?}");
        assert_eq!(
            describe((TOPIC, "t"), Some(&["retention.bytes", "no.such"])),
            (0, vec![retention])
        );
        assert_eq!(describe((TOPIC, "t"), Some(&[])), (0, vec![]));
        for name in ["1", ""] {
            let (error, configs) = describe((BROKER, name), None);
            let partitions = ("num.partitions".to_owned(), "1".to_owned());
            assert!(error == 0 && configs.contains(&partitions), "{configs:?}");
        }
        for (resource, error) in [
            ((TOPIC, "u"), UNKNOWN_TOPIC_OR_PARTITION),
            ((BROKER, "2"), INVALID_REQUEST),
            ((77, "t"), INVALID_REQUEST),
        ] {
            assert_eq!(describe(resource, None), (error, vec![]));
        }
    }
    drop(client);
    broker.assert_clean();
}

/// A topic is created with settings only if it will have them.
#[test]
fn settings_that_do_not_hold_are_refused() {
    let broker = Broker::start();
    let mut client = Connection::open(broker.address());
    for (name, value, expected) in [
        ("cleanup.policy", "delete", 0),
        ("cleanup.policy", "compact", INVALID_CONFIG),
        ("no.such", "1", INVALID_CONFIG),
    ] {
        let body = Writer::body(CREATE_TOPICS, 2)
            .count(1)
            .string(&format!("{name}-{value}"));
        let body = body
            .int32(1)
            .int16(1)
            .count(0)
            .count(1)
            .string(name)
            .string(value);
        let mut answer = client.request(CREATE_TOPICS, &body.int32(1_000).int8(0));
        assert_eq!(answer.int32(), 0, "throttle time");
        let errors = answer.list(|answer| {
            answer.string();
            let error = answer.int16();
            answer.string();
            error
        });
        assert_eq!(errors, [expected], "{name}={value}");
    }
    drop(client);
    broker.assert_clean();
}
