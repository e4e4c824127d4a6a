//! Errors and limits, request by request.

use crate::process::Broker;
use crate::requests::{
    FETCH, PRODUCE, UNKNOWN_TOPIC_OR_PARTITION, batch, batch_from, create_request, create_topic,
    fetch, fetch_from, metadata, offset_at, patched, produce, produce_request, produce_to,
    produced, records, run, text,
};
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, CreateTopicsRequest, GroupId, InitProducerIdRequest,
    TransactionalId,
};
use std::time::{Duration, Instant};

const OFFSET_OUT_OF_RANGE: i16 = 1;
const CORRUPT_MESSAGE: i16 = 2;
const MESSAGE_TOO_LARGE: i16 = 10;
const INVALID_TOPIC: i16 = 17;
const UNSUPPORTED_VERSION: i16 = 35;
const TOPIC_ALREADY_EXISTS: i16 = 36;
const INVALID_PARTITIONS: i16 = 37;
const INVALID_REPLICATION_FACTOR: i16 = 38;
const INVALID_REQUEST: i16 = 42;
const POLICY_VIOLATION: i16 = 44;
const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
const INVALID_PRODUCER_EPOCH: i16 = 47;
const FETCH_SESSION_ID_NOT_FOUND: i16 = 70;
const UNSUPPORTED_COMPRESSION_TYPE: i16 = 76;
const INVALID_RECORD: i16 = 87;

#[test]
fn topics_are_created_as_asked_or_refused() {
    let broker = Broker::with(&["--partitions", "4"]);
    let mut client = broker.client();
    let unknown = (UNKNOWN_TOPIC_OR_PARTITION, 0);
    assert_eq!(metadata(&mut client, &["new"], false), [unknown]);
    assert_eq!(
        metadata(&mut client, &["new"], true),
        [(0, 4)],
        "--partitions"
    );
    let long = "x".repeat(250);
    let illegal = ["", ".", "..", "a/b", "a b", "\u{e4}", &long];
    assert_eq!(
        metadata(&mut client, &illegal, true),
        [(INVALID_TOPIC, 0); 7]
    );

    let checked = create_request(&[("checked", 3)]).with_validate_only(true);
    let mut create = |request: &CreateTopicsRequest| {
        let answer = client.request(4, request).topics;
        answer
            .iter()
            .map(|topic| topic.error_code)
            .collect::<Vec<_>>()
    };
    assert_eq!(create(&checked), [0]);
    let mut replicated = create_request(&[("checked", 3)]);
    replicated.topics[0].replication_factor = 3;
    assert_eq!(create(&replicated), [INVALID_REPLICATION_FACTOR]);
    let wrong = [
        ("new", 3, TOPIC_ALREADY_EXISTS),
        ("none", 0, INVALID_PARTITIONS),
        ("negative", -2, INVALID_PARTITIONS),
        ("huge", i32::MAX, INVALID_PARTITIONS),
        ("a*b", 1, INVALID_TOPIC),
        ("twice", 1, INVALID_REQUEST),
        ("twice", 1, INVALID_REQUEST),
        ("default", -1, 0),
        // There is a limit for all topics together, too.
        ("most", 9_000, 0),
        ("more", 9_000, POLICY_VIOLATION),
    ];
    let request = create_request(&wrong.map(|(name, partitions, _)| (name, partitions)));
    assert_eq!(create(&request), wrong.map(|(_, _, error)| error));
    assert_eq!(metadata(&mut client, &["default"], false), [(0, 4)]);
    drop(client);
    broker.assert_clean();
}

#[test]
fn produce_refuses_bad_batches() {
    let broker = Broker::start();
    let mut client = broker.client();
    create_topic(&mut client, "t", 1);
    let good = batch(&[b"one", &[7; 100]]);
    let with = |at: usize, bytes: &[u8]| {
        let mut batch = good.clone();
        batch[at..at + bytes.len()].copy_from_slice(bytes);
        batch
    };
    let last = good.len() - 1;
    // A count, and the offset of the last record that goes with it, under a checksum that is right.
    let counted = |batch: &[u8], count: i32| {
        let batch = patched(batch, 57, &count.to_be_bytes());
        patched(&batch, 23, &(count - 1).to_be_bytes())
    };
    let mut refused = |error: i16, batches: &[(&str, Vec<u8>)]| {
        for (what, records) in batches {
            let answer = produce_to(&mut client, 1, "t", 0, records);
            assert_eq!(answer, (error, -1), "{what}");
        }
    };
    let corrupt = [
        ("empty", Vec::new()),
        ("header cut short", good[..60].to_vec()),
        ("cut short", good[..last].to_vec()),
        ("bit flip", with(last, &[good[last] ^ 1])),
        ("wrong checksum", with(17, &[good[17] ^ 1])),
        ("negative length", with(8, &[0xff; 4])),
        ("length 0", with(8, &[0; 4])),
        ("no gzip", patched(&good, 22, &[1])),
        ("no snappy", patched(&good, 22, &[2])),
        ("no lz4", patched(&good, 22, &[3])),
        ("no zstd", patched(&good, 22, &[4])),
    ];
    refused(CORRUPT_MESSAGE, &corrupt);
    let wrong = [
        ("old format", with(16, &[1])),
        ("two batches", good.repeat(2)),
        ("record count", patched(&good, 57, &[0, 0, 0, 3])),
        ("last offset", patched(&good, 23, &[0x7f, 0xff, 0xff, 0xfe])),
        ("no records", counted(&good, 0)),
        ("fewer than there are", counted(&good, 1)),
        ("more than there are", counted(&good, 3)),
        ("as many as there is room for", counted(&good, 15)),
        ("more than are packed", counted(&gzipped(&good), 3)),
        ("fewer than are packed", counted(&gzipped(&good), 1)),
        ("control batch", patched(&good, 22, &[1 << 5])),
    ];
    refused(INVALID_RECORD, &wrong);
    refused(MESSAGE_TOO_LARGE, &[("too long", vec![0; 17 << 20])]);
    let unknown = [5, 7].map(|codec| ("codec", patched(&good, 22, &[codec])));
    refused(UNSUPPORTED_COMPRESSION_TYPE, &unknown);
    let nothing = produce_request(1, 0, "t", &[(0, None)]);
    let nothing = produced(client.request(PRODUCE, &nothing));
    assert_eq!(nothing, [(INVALID_RECORD, -1)]);
    assert_eq!(produce_to(&mut client, 1, "t", 0, &gzipped(&good)), (0, 0));
    assert_eq!(produce_to(&mut client, 1, "t", 0, &snapped(&good)), (0, 2));
    // Nothing but the good ones was appended.
    assert_eq!(produce(&mut client, "t", b"three"), 4);
    drop(client);
    broker.assert_clean();
}

/// A batch with its records packed by the codec of this number.
fn packed(batch: &[u8], codec: u8, records: &[u8]) -> Vec<u8> {
    let packed = [&batch[..61], records].concat();
    let length = (packed.len() as i32 - 12).to_be_bytes();
    patched(&patched(&packed, 22, &[codec]), 8, &length)
}

fn gzipped(batch: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    packer.write_all(&batch[61..]).expect("pack");
    packed(batch, 1, &packer.finish().expect("pack"))
}

/// As the Java client has it: blocks behind their lengths.
fn snapped(batch: &[u8]) -> Vec<u8> {
    let mut records = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
    for part in batch[61..].chunks(50) {
        let block = snap::raw::Encoder::new().compress_vec(part).expect("pack");
        records.extend((block.len() as u32).to_be_bytes());
        records.extend(block);
    }
    packed(batch, 2, &records)
}

/// 120 MB: its bytes are read to the end and thrown away, and the connection goes on.
#[test]
fn a_produce_request_that_is_too_long_is_refused_in_words() {
    let broker = Broker::start();
    let mut client = broker.client();
    create_topic(&mut client, "t", 3);
    let memory = broker.resident_memory();
    let records = vec![7; 120_000_000];
    for version in [3, PRODUCE, 9] {
        let request = produce_request(-1, 5_000, "t", &[(2, Some(&records))]);
        let answer = client.request(version, &request);
        let partition = &answer.responses[0].partition_responses[0];
        assert_eq!(
            (partition.index, partition.error_code),
            (2, MESSAGE_TOO_LARGE)
        );
        assert_eq!(
            produce(&mut client, "t", b"value"),
            if version == 9 {
                2
            } else {
                i64::from(version == PRODUCE)
            }
        );
    }
    assert!(broker.resident_memory() < memory + (30 << 20));
    // Other requests of such a length, and lengths that make no sense.
    for frame in [i32::MAX.to_be_bytes(), 25_000_000_i32.to_be_bytes()] {
        let mut stranger = broker.client();
        stranger.send_raw(&[&frame[..], &[0, 1, 0, 11], &[0; 4_000]].concat());
        stranger.assert_closed();
    }
    drop(client);
    broker.assert_clean();
}

#[test]
fn transactions_and_kip_848_are_refused_in_words() {
    let broker = Broker::start();
    let mut client = broker.client();
    let transactional = Some(TransactionalId(text("tx")));
    let request = InitProducerIdRequest::default().with_transactional_id(transactional);
    assert_eq!(client.request(4, &request).error_code, UNSUPPORTED_VERSION);
    broker.wait_for_log("there are no transactions here");
    let request = ConsumerGroupHeartbeatRequest::default().with_group_id(GroupId(text("g")));
    let answer = client.request(0, &request);
    assert_eq!(answer.error_code, UNSUPPORTED_VERSION);
    assert!(
        answer
            .error_message
            .is_some_and(|text| text.contains("KIP-848"))
    );
    broker.wait_for_log("use group.protocol=classic");
    drop(client);
    broker.assert_clean();
}

#[test]
fn a_batch_sent_again_is_not_appended_again() {
    let broker = Broker::start();
    let mut client = broker.client();
    create_topic(&mut client, "t", 1);
    for (epoch, sequence, expected, what) in [
        (0, 0, (0, 0), "the first"),
        (0, 2, (0, 2), "the next"),
        (0, 2, (0, 2), "a repeat of the last"),
        (0, 0, (0, 0), "a repeat of an earlier one"),
        (0, 6, (OUT_OF_ORDER_SEQUENCE_NUMBER, -1), "a gap"),
        (1, 0, (0, 4), "a new epoch starts again"),
        (0, 4, (INVALID_PRODUCER_EPOCH, -1), "an old epoch"),
    ] {
        let records = batch_from(7, epoch, sequence, &[b"a", b"b"]);
        assert_eq!(
            produce_to(&mut client, -1, "t", 0, &records),
            expected,
            "{what}"
        );
    }
    assert_eq!(offset_at(&mut client, "t", -1), (0, 6));
    drop(client);
    broker.assert_clean();
}

#[test]
fn fetch_answers_errors_at_once_and_keeps_to_its_limits() {
    let broker = Broker::start();
    let mut client = broker.client();
    create_topic(&mut client, "t", 2);
    let one = batch(&[&[7; 1_000]]);
    let length = one.len() as i32;
    for partition in [0, 0, 0, 1, 1, 1] {
        produce_to(&mut client, -1, "t", partition, &one);
    }
    let started = Instant::now();
    let unknown = run(&mut client, &fetch("missing", 1, 60_000));
    assert_eq!(unknown[0].error_code, UNKNOWN_TOPIC_OR_PARTITION);
    for offset in [-1, 4, i64::MAX, i64::MIN] {
        let out_of_range = run(&mut client, &fetch_from("t", &[offset], 60_000));
        assert_eq!(out_of_range[0].error_code, OFFSET_OUT_OF_RANGE);
        assert_eq!(
            (
                out_of_range[0].high_watermark,
                records(&out_of_range[0]).len()
            ),
            (-1, 0)
        );
    }
    // One bad partition is enough, and the others are answered with what they have.
    let mixed = run(&mut client, &fetch("t", 3, 60_000).with_min_bytes(1 << 20));
    assert_eq!(
        (mixed[0].error_code, mixed[2].error_code),
        (0, UNKNOWN_TOPIC_OR_PARTITION)
    );
    assert_eq!(run(&mut client, &fetch("t", 0, 60_000)), []);
    let in_session = client.request(FETCH, &fetch("t", 1, 60_000).with_session_id(5));
    assert_eq!(in_session.error_code, FETCH_SESSION_ID_NOT_FOUND);
    assert!(started.elapsed() < Duration::from_secs(10));

    // Batches per partition, for limits of all and of each. Only one batch may be too long.
    for (max_bytes, partition_max_bytes, expected) in [
        (1 << 20, 1 << 20, [3, 3]),
        (1 << 20, 2 * length, [2, 2]),
        (1 << 20, 2 * length - 1, [1, 1]),
        (4 * length, 1 << 20, [3, 1]),
        (1 << 20, 1, [1, 0]),
        (1, 1 << 20, [1, 0]),
        (-1, i32::MIN, [1, 0]),
    ] {
        let mut fetch = fetch("t", 2, 0).with_max_bytes(max_bytes);
        for partition in &mut fetch.topics[0].partitions {
            partition.partition_max_bytes = partition_max_bytes;
        }
        let fetched = run(&mut client, &fetch);
        let batches = [0, 1].map(|at: usize| records(&fetched[at]).len() as i32 / length);
        assert_eq!(batches, expected, "{max_bytes} {partition_max_bytes}");
    }
    // Whole batches, from the one that holds the offset.
    let fetched = run(&mut client, &fetch_from("t", &[2], 0));
    assert_eq!(records(&fetched[0])[..8], 2_i64.to_be_bytes());
    assert_eq!(records(&fetched[0])[16..], one[16..]);
    drop(client);
    broker.assert_clean();
}

#[test]
fn offsets_are_found_by_time_and_the_oldest_go() {
    let broker = Broker::start();
    let mut client = broker.client();
    create_topic(&mut client, "t", 1);
    assert_eq!(
        offset_at(&mut client, "t", 0),
        (0, -1),
        "any time of nothing"
    );
    let fifteen = batch(&[&vec![0; 15 << 20]]);
    for offset in 0..6 {
        assert_eq!(produce_to(&mut client, -1, "t", 0, &fifteen), (0, offset));
    }
    // 64 MiB are kept: four such batches.
    for (timestamp, expected) in [
        (-1, (0, 6)),
        (-2, (0, 2)),
        (1_000, (0, 2)),
        (1_001, (0, -1)),
    ] {
        assert_eq!(
            offset_at(&mut client, "t", timestamp),
            expected,
            "{timestamp}"
        );
    }
    assert_eq!(offset_at(&mut client, "t", -7).0, INVALID_REQUEST);
    assert_eq!(
        offset_at(&mut client, "missing", -1).0,
        UNKNOWN_TOPIC_OR_PARTITION
    );
    let gone = run(&mut client, &fetch_from("t", &[1], 0));
    assert_eq!(gone[0].error_code, OFFSET_OUT_OF_RANGE);
    let oldest = run(&mut client, &fetch_from("t", &[2], 0));
    assert_eq!(records(&oldest[0]).len(), fifteen.len());
    drop(client);
    broker.assert_clean();
}
