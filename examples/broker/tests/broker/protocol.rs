//! Versions, errors and limits, request by request.

use crate::process::Broker;
use crate::requests::{
    Fetch, Fetched, UNKNOWN_TOPIC_OR_PARTITION, create_topic, create_topics_body,
    list_offsets_body, metadata_body, offset_at, produce, produce_body, produce_to,
    receive_created, receive_metadata, receive_offset, receive_produced,
};
use crate::wire::{
    API_VERSIONS, CREATE_TOPICS, Connection, DELETE_GROUPS, DELETE_TOPICS, DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS, FETCH, FIND_COORDINATOR, HEARTBEAT, INIT_PRODUCER_ID, JOIN_GROUP, LEAVE_GROUP,
    LIST_GROUPS, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, PRODUCE,
    Reader, SYNC_GROUP, Writer, batch, batch_from,
};
use std::time::{Duration, Instant};

const OFFSET_OUT_OF_RANGE: i16 = 1;
const CORRUPT_MESSAGE: i16 = 2;
const MESSAGE_TOO_LARGE: i16 = 10;
const INVALID_TOPIC: i16 = 17;
const INVALID_REQUIRED_ACKS: i16 = 21;
const UNSUPPORTED_VERSION: i16 = 35;
const TOPIC_ALREADY_EXISTS: i16 = 36;
const INVALID_PARTITIONS: i16 = 37;
const INVALID_REPLICATION_FACTOR: i16 = 38;
const INVALID_REPLICA_ASSIGNMENT: i16 = 39;
const INVALID_REQUEST: i16 = 42;
const POLICY_VIOLATION: i16 = 44;
const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
const INVALID_PRODUCER_EPOCH: i16 = 47;
const FETCH_SESSION_ID_NOT_FOUND: i16 = 70;
const INVALID_RECORD: i16 = 87;

const SUPPORTED: [(i16, i16, i16); 20] = [
    (PRODUCE, 3, 9),
    (FETCH, 4, 12),
    (LIST_OFFSETS, 1, 6),
    (METADATA, 0, 9),
    (OFFSET_COMMIT, 2, 8),
    (OFFSET_FETCH, 1, 8),
    (FIND_COORDINATOR, 0, 4),
    (JOIN_GROUP, 0, 9),
    (HEARTBEAT, 0, 4),
    (LEAVE_GROUP, 0, 5),
    (SYNC_GROUP, 0, 5),
    (DESCRIBE_GROUPS, 0, 5),
    (LIST_GROUPS, 0, 4),
    (DELETE_GROUPS, 0, 2),
    (OFFSET_DELETE, 0, 0),
    (API_VERSIONS, 0, 3),
    (CREATE_TOPICS, 2, 6),
    (DELETE_TOPICS, 1, 5),
    (DESCRIBE_CONFIGS, 1, 4),
    (INIT_PRODUCER_ID, 0, 4),
];

fn api_versions(version: i16) -> Writer {
    Writer::body(API_VERSIONS, version)
        .since(3, |body| body.string("test").string("1.0"))
        .end()
}

/// Error, and the ranges of versions.
fn receive_api_versions(mut answer: Reader) -> (i16, Vec<(i16, i16, i16)>) {
    let error = answer.int16();
    let supported = answer.list(|answer| {
        let range = (answer.int16(), answer.int16(), answer.int16());
        answer.end();
        range
    });
    answer.since(1, |answer| assert_eq!(answer.int32(), 0, "throttle time"));
    answer.end();
    answer.finish();
    (error, supported)
}

#[test]
fn api_versions_lists_what_is_handled() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    for version in 0..=3 {
        let answer = connection.request(API_VERSIONS, &api_versions(version));
        assert_eq!(receive_api_versions(answer), (0, SUPPORTED.to_vec()));
    }
    drop(connection);
    broker.assert_clean();
}

#[test]
fn api_versions_of_the_future_is_answered_in_version_0() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    // What follows the correlation id may look like anything by then.
    let body = api_versions(4).raw(b"whatever comes");
    let correlation = connection.send(API_VERSIONS, &body);
    let answer = connection.receive(API_VERSIONS, 0, correlation);
    let (error, supported) = receive_api_versions(answer);
    assert_eq!(
        (error, &supported[..]),
        (UNSUPPORTED_VERSION, &SUPPORTED[..])
    );

    // The client goes on with a version that is there.
    let answer = connection.request(API_VERSIONS, &api_versions(3));
    assert_eq!(receive_api_versions(answer).0, 0);
    drop(connection);
    broker.assert_clean();
}

#[test]
fn every_advertised_version_works() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    for version in 2..=6 {
        let body = create_topics_body(version, &[(&format!("t{version}"), 1, 1, 0)], false);
        let errors = receive_created(connection.request(CREATE_TOPICS, &body));
        assert_eq!(errors, [0], "CreateTopics v{version}");
    }
    for version in 0..=9 {
        let body = metadata_body(version, Some(&["t2"]), true);
        let topics = receive_metadata(connection.request(METADATA, &body), broker.address());
        assert_eq!(topics, [(0, "t2".to_owned(), 1)], "Metadata v{version}");
        let body = metadata_body(version, None, true);
        let topics = receive_metadata(connection.request(METADATA, &body), broker.address());
        assert_eq!(topics.len(), 5, "Metadata v{version}");
    }
    for version in 0..=4 {
        let body = Writer::body(INIT_PRODUCER_ID, version)
            .null_string()
            .int32(0)
            .since(3, |body| body.int64(-1).int16(-1))
            .end();
        let mut answer = connection.request(INIT_PRODUCER_ID, &body);
        assert_eq!((answer.int32(), answer.int16()), (0, 0));
        assert_eq!(answer.int64(), i64::from(version), "a new id each time");
        assert_eq!(answer.int16(), 0);
        answer.end();
        answer.finish();
    }
    for version in 3..=9 {
        let records = batch(&[b"value"]);
        let body = produce_body(version, 1, 1_000, "t2", &[(0, Some(&records))]);
        let produced = receive_produced(connection.request(PRODUCE, &body));
        let offset = i64::from(version) - 3;
        assert_eq!(
            (produced[0].error, produced[0].base_offset),
            (0, offset),
            "Produce v{version}"
        );
    }
    // Until the follower has it all.
    Fetch::new("t2", 5_000).at(6).run(&mut connection);
    for version in 1..=6 {
        let body = list_offsets_body(version, "t2", 0, -1);
        let latest = receive_offset(connection.request(LIST_OFFSETS, &body));
        assert_eq!(latest, (0, 7), "ListOffsets v{version}");
    }
    for version in 4..=12 {
        let fetch = Fetch {
            version,
            ..Fetch::new("t2", 0)
        };
        let fetched = fetch.run(&mut connection);
        assert_eq!(fetched[0].high_watermark, 7, "Fetch v{version}");
        assert_eq!(fetched[0].records.len(), 7 * batch(&[b"value"]).len());
    }
    drop(connection);
    broker.assert_clean();
}

#[test]
fn metadata_creates_topics_only_when_asked_to() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    let mut metadata = |topics: &[&str], create| {
        let body = metadata_body(8, Some(topics), create);
        let topics = receive_metadata(connection.request(METADATA, &body), broker.address());
        topics.iter().map(|topic| topic.0).collect::<Vec<_>>()
    };
    assert_eq!(metadata(&["new"], false), [UNKNOWN_TOPIC_OR_PARTITION]);
    assert_eq!(metadata(&["new"], true), [0]);
    assert_eq!(metadata(&["new"], false), [0]);
    let long = "x".repeat(250);
    let illegal = ["", ".", "..", "a/b", "a b", "\u{e4}", &long];
    assert_eq!(metadata(&illegal, true), [INVALID_TOPIC; 7]);
    let nameless = Writer::body(METADATA, 1).count(1).null_string();
    let answer = connection.request(METADATA, &nameless);
    let topics = receive_metadata(answer, broker.address());
    assert_eq!(topics, [(INVALID_TOPIC, String::new(), 0)]);
    drop(connection);
    broker.assert_clean();
}

#[test]
fn create_topics_refuses_what_it_cannot_do() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    let mut create = |topics: &[_], only_check| {
        let body = create_topics_body(4, topics, only_check);
        receive_created(connection.request(CREATE_TOPICS, &body))
    };
    assert_eq!(create(&[("checked", 3, 1, 0)], true), [0]);
    assert_eq!(create(&[("checked", 3, 1, 0)], false), [0]);
    let wrong = [
        ("checked", 3, 1, 0),
        ("none", 0, 1, 0),
        ("negative", -2, 1, 0),
        ("huge", i32::MAX, 1, 0),
        ("replicas", 1, 3, 0),
        ("assigned", -1, -1, 2),
        ("a*b", 1, 1, 0),
        ("twice", 1, 1, 0),
        ("twice", 1, 1, 0),
        ("default", -1, -1, 0),
    ];
    let errors = [
        TOPIC_ALREADY_EXISTS,
        INVALID_PARTITIONS,
        INVALID_PARTITIONS,
        INVALID_PARTITIONS,
        INVALID_REPLICATION_FACTOR,
        INVALID_REPLICA_ASSIGNMENT,
        INVALID_TOPIC,
        INVALID_REQUEST,
        INVALID_REQUEST,
        0,
    ];
    assert_eq!(create(&wrong, false), errors);
    // There is a limit for all topics together, too.
    let errors = create(&[("most", 9_000, 1, 0), ("more", 9_000, 1, 0)], false);
    assert_eq!(errors, [0, POLICY_VIOLATION]);
    drop(connection);
    broker.assert_clean();
}

#[test]
fn produce_refuses_bad_batches() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    let good = batch(&[b"one", b"two"]);
    let patched = |at: usize, bytes: &[u8]| {
        let mut batch = good.clone();
        batch[at..at + bytes.len()].copy_from_slice(bytes);
        batch
    };
    let flipped = |at: usize| patched(at, &[good[at] ^ 1]);
    let mut error = |records: &[u8]| produce_to(&mut connection, 1, "t", 0, records).error;

    assert_eq!(error(b""), CORRUPT_MESSAGE, "empty");
    assert_eq!(error(&good[..60]), CORRUPT_MESSAGE, "header cut short");
    assert_eq!(error(&good[..good.len() - 1]), CORRUPT_MESSAGE, "cut short");
    assert_eq!(error(&flipped(good.len() - 1)), CORRUPT_MESSAGE, "bit flip");
    assert_eq!(error(&flipped(17)), CORRUPT_MESSAGE, "wrong checksum");
    assert_eq!(
        error(&patched(8, &[0xff; 4])),
        CORRUPT_MESSAGE,
        "negative length"
    );
    assert_eq!(error(&patched(8, &[0; 4])), CORRUPT_MESSAGE, "length 0");
    assert_eq!(error(&patched(16, &[1])), INVALID_RECORD, "old format");
    assert_eq!(
        error(&[good.clone(), good.clone()].concat()),
        INVALID_RECORD,
        "two batches"
    );
    assert_eq!(error(&batch(&[])), INVALID_RECORD, "no records");
    assert_eq!(error(&vec![0; 17 << 20]), MESSAGE_TOO_LARGE);

    // Counts that do not match what is there, under a checksum that is right.
    let checked = |at: usize, bytes: &[u8]| {
        let mut batch = patched(at, bytes);
        let checksum = crc32c::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&checksum.to_be_bytes());
        batch
    };
    assert_eq!(
        error(&checked(57, &[0, 0, 0, 3])),
        INVALID_RECORD,
        "record count"
    );
    let both = checked(23, &[0x7f, 0xff, 0xff, 0xfe]);
    assert_eq!(error(&both), INVALID_RECORD, "last offset");
    assert_eq!(
        error(&checked(22, &[1 << 5])),
        INVALID_RECORD,
        "control batch"
    );

    assert_eq!(error(&good), 0);
    let nothing = produce_body(8, 1, 0, "t", &[(0, None)]);
    let produced = receive_produced(connection.request(PRODUCE, &nothing));
    assert_eq!(
        (produced[0].error, produced[0].base_offset),
        (INVALID_RECORD, -1)
    );
    // Nothing but the good one was appended.
    assert_eq!(produce(&mut connection, "t", b"three").base_offset, 2);
    drop(connection);
    broker.assert_clean();
}

#[test]
fn produce_answers_per_partition() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 2);
    let records = batch(&[b"value"]);
    let partitions = [0, 1, 2, -1].map(|index| (index, Some(&records[..])));
    for acks in [1, -1] {
        let body = produce_body(8, acks, 5_000, "t", &partitions);
        let produced = receive_produced(connection.request(PRODUCE, &body));
        let errors: Vec<_> = produced.iter().map(|produced| produced.error).collect();
        let unknown = UNKNOWN_TOPIC_OR_PARTITION;
        assert_eq!(errors, [0, 0, unknown, unknown], "acks {acks}");
    }
    let body = produce_body(8, 2, 5_000, "t", &partitions);
    let produced = receive_produced(connection.request(PRODUCE, &body));
    assert!(
        produced
            .iter()
            .all(|produced| produced.error == INVALID_REQUIRED_ACKS)
    );
    let missing = produce(&mut connection, "missing", b"value");
    assert_eq!(missing.error, UNKNOWN_TOPIC_OR_PARTITION);
    drop(connection);
    broker.assert_clean();
}

#[test]
fn produce_with_acks_0_gets_no_answer() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    let records = batch(&[b"value"]);
    for _ in 0..100 {
        connection.send(PRODUCE, &produce_body(8, 0, 0, "t", &[(0, Some(&records))]));
    }
    // The next answer belongs to the next request that wants one.
    assert_eq!(produce(&mut connection, "t", b"last").base_offset, 100);

    // A failure can only be told by closing the connection.
    connection.send(
        PRODUCE,
        &produce_body(8, 0, 0, "missing", &[(0, Some(&records))]),
    );
    connection.assert_closed();
    broker.wait_for_log("produce with acks 0");
    broker.assert_clean();
}

#[test]
fn a_batch_sent_again_is_not_appended_again() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    let mut send = |epoch, sequence| {
        let records = batch_from(7, epoch, sequence, &[b"a", b"b"]);
        let produced = produce_to(&mut connection, -1, "t", 0, &records);
        (produced.error, produced.base_offset)
    };
    assert_eq!(send(0, 0), (0, 0));
    assert_eq!(send(0, 2), (0, 2));
    assert_eq!(send(0, 2), (0, 2), "repeat of the last");
    assert_eq!(send(0, 0), (0, 0), "repeat of an earlier one");
    assert_eq!(send(0, 6), (OUT_OF_ORDER_SEQUENCE_NUMBER, -1));
    assert_eq!(send(1, 0), (0, 4), "a new epoch starts again");
    assert_eq!(send(0, 4), (INVALID_PRODUCER_EPOCH, -1));
    assert_eq!(offset_at(&mut connection, "t", -1), (0, 6));
    drop(connection);
    broker.assert_clean();
}

#[test]
fn fetch_answers_errors_at_once() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    produce(&mut connection, "t", b"value");

    let started = Instant::now();
    let refused = |partition, error| Fetched {
        partition,
        error,
        high_watermark: -1,
        records: Vec::new(),
    };
    let unknown = Fetch::new("missing", 60_000).run(&mut connection);
    assert_eq!(unknown, [refused(0, UNKNOWN_TOPIC_OR_PARTITION)]);
    for offset in [-1, 2, i64::MAX, i64::MIN] {
        let out_of_range = Fetch::new("t", 60_000).at(offset).run(&mut connection);
        assert_eq!(out_of_range, [refused(0, OFFSET_OUT_OF_RANGE)]);
    }
    // One bad partition is enough, and the others are answered with what they have.
    let mixed = Fetch {
        min_bytes: 1 << 20,
        ..Fetch::new("t", 60_000).of_partitions(2)
    };
    let mixed = mixed.run(&mut connection);
    assert_eq!((mixed[0].error, mixed[0].records.is_empty()), (0, false));
    assert_eq!(mixed[1], refused(1, UNKNOWN_TOPIC_OR_PARTITION));

    let in_session = Fetch {
        session: 5,
        ..Fetch::new("t", 60_000)
    };
    let correlation = in_session.send(&mut connection);
    let answer = in_session.receive(&mut connection, correlation);
    assert_eq!(answer, (FETCH_SESSION_ID_NOT_FOUND, Vec::new()));
    assert!(started.elapsed() < Duration::from_secs(10));
    drop(connection);
    broker.assert_clean();
}

#[test]
fn fetch_of_nothing_is_answered_at_once() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    let fetched = Fetch::new("t", 60_000)
        .of_partitions(0)
        .run(&mut connection);
    assert_eq!(fetched, []);
    drop(connection);
    broker.assert_clean();
}

#[test]
fn fetch_keeps_to_its_limits_but_for_the_first_batch() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 2);
    let records = batch(&[&[7; 1_000]]);
    let length = records.len() as i32;
    for partition in [0, 0, 0, 1, 1, 1] {
        produce_to(&mut connection, -1, "t", partition, &records);
    }
    // Batches per partition, for limits given in batches and bytes.
    let mut batches = |max_bytes: i32, partition_max_bytes: i32| {
        let fetch = Fetch {
            max_bytes,
            partitions: vec![(0, 0, partition_max_bytes), (1, 0, partition_max_bytes)],
            ..Fetch::new("t", 0)
        };
        let fetched = fetch.run(&mut connection);
        [0, 1].map(|at| fetched[at].records.len() as i32 / length)
    };
    assert_eq!(batches(1 << 20, 1 << 20), [3, 3]);
    assert_eq!(batches(1 << 20, 2 * length), [2, 2]);
    assert_eq!(batches(1 << 20, 2 * length - 1), [1, 1]);
    assert_eq!(batches(4 * length, 1 << 20), [3, 1]);
    assert_eq!(
        batches(1 << 20, 1),
        [1, 0],
        "only one batch may be too long"
    );
    assert_eq!(batches(1, 1 << 20), [1, 0]);
    assert_eq!(batches(0, 0), [1, 0]);
    assert_eq!(batches(-1, i32::MIN), [1, 0]);

    // Whole batches, from the one that holds the offset.
    let fetched = Fetch::new("t", 0).at(2).run(&mut connection);
    assert_eq!(fetched[0].records[..8], 2_i64.to_be_bytes());
    assert_eq!(fetched[0].records[12..16], [0xff; 4], "no leader epoch");
    assert_eq!(fetched[0].records[16..], records[16..]);
    drop(connection);
    broker.assert_clean();
}

#[test]
fn offsets_are_found_by_time() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    assert_eq!(
        offset_at(&mut connection, "t", -1),
        (0, 0),
        "latest of nothing"
    );
    assert_eq!(
        offset_at(&mut connection, "t", 0),
        (0, -1),
        "any time of nothing"
    );
    for _ in 0..3 {
        produce(&mut connection, "t", b"value");
    }
    assert_eq!(offset_at(&mut connection, "t", -1), (0, 3), "latest");
    assert_eq!(offset_at(&mut connection, "t", -2), (0, 0), "earliest");
    assert_eq!(offset_at(&mut connection, "t", 1_000), (0, 0));
    assert_eq!(offset_at(&mut connection, "t", 1_001), (0, -1));
    assert_eq!(offset_at(&mut connection, "t", -7).0, INVALID_REQUEST);
    assert_eq!(
        offset_at(&mut connection, "missing", -1).0,
        UNKNOWN_TOPIC_OR_PARTITION
    );
    drop(connection);
    broker.assert_clean();
}

#[test]
fn old_batches_go_when_there_are_too_many() {
    let broker = Broker::start();
    let mut connection = Connection::open(broker.address());
    create_topic(&mut connection, "t", 1);
    let value = vec![0; 15 << 20];
    let records = batch(&[&value]);
    for offset in 0..6 {
        let produced = produce_to(&mut connection, -1, "t", 0, &records);
        assert_eq!((produced.error, produced.base_offset), (0, offset));
    }
    // 64 MiB are kept: four such batches.
    assert_eq!(offset_at(&mut connection, "t", -2), (0, 2));
    let gone = Fetch::new("t", 0).at(1).run(&mut connection);
    assert_eq!(gone[0].error, OFFSET_OUT_OF_RANGE);
    let oldest = Fetch::new("t", 0).at(2).run(&mut connection);
    assert_eq!(oldest[0].records.len(), records.len());
    drop(connection);
    broker.assert_clean();
}
