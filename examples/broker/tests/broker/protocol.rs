//! Errors and limits, request by request.

use super::*;
use std::io::Write;

#[test]
fn topics_are_created_as_asked_or_refused() {
    let broker = Broker::with(&["--partitions", "4"]);
    let mut client = broker.client();
    let unknown = (UNKNOWN_TOPIC_OR_PARTITION, 0);
    assert_eq!(client.metadata(&["new"], false), [unknown]);
    assert_eq!(client.metadata(&["new"; 2], true), [(0, 4)], "once");
    // Without names version 0 asks for all, and what comes after it for none.
    let nameless = metadata_request(&[""; 0]);
    let [all, none] = [0, 1].map(|version| client.request(version, &nameless).topics);
    assert_eq!((all.len(), none.len()), (1, 0));
    let told = &all[0].partitions[3];
    assert_eq!([&told.replica_nodes, &told.isr_nodes], [&[BrokerId(1)]; 2]);
    let illegal = ["", ".", "..", "a/b", "a b", "\u{e4}", &"x".repeat(250)];
    let refused = (Code::InvalidTopicException.code(), 0);
    assert_eq!(client.metadata(&illegal, true), [refused; 7]);

    let mut create = |request: &CreateTopicsRequest| {
        let answer = client.request(4, request).topics.into_iter();
        answer.map(|topic| topic.error_code).collect::<Vec<_>>()
    };
    let longest = "x".repeat(249);
    let asked = [
        ("a", 1, Code::InvalidReplicationFactor.code()),
        ("b", 1, Code::InvalidReplicaAssignment.code()),
        ("c", 1, Code::InvalidConfig.code()),
        ("d", 1, Code::InvalidConfig.code()),
        ("e", 1, 0),
        ("default", -1, 0),
        ("A_z-0.9", 3, 0),
        (&longest, 3, 0),
        ("new", 3, Code::TopicAlreadyExists.code()),
        ("a*b", 3, Code::InvalidTopicException.code()),
        ("none", 0, Code::InvalidPartitions.code()),
        ("negative", -2, Code::InvalidPartitions.code()),
        ("huge", i32::MAX, Code::InvalidPartitions.code()),
        ("twice", 1, Code::InvalidRequest.code()),
        ("twice", 1, Code::InvalidRequest.code()),
        // There is a limit for all topics together, too: 10,000, with the 15 that are there.
        ("most", 9_000, 0),
        ("more", 986, Code::PolicyViolation.code()),
        ("all", 985, 0),
        ("another", 1, Code::PolicyViolation.code()),
    ];
    let mut request = create_request(&asked.map(|(name, partitions, _)| (name, partitions)));
    request.topics[0].replication_factor = 3;
    request.topics[1].assignments = vec![Default::default()];
    // A setting may be asked for that a topic has anyway.
    let age = "retention.ms";
    let configs = [(age, "1"), ("none", "-1"), (age, "-1")];
    for (topic, (name, value)) in request.topics[2..].iter_mut().zip(configs) {
        let config = CreatableTopicConfig::default().with_name(text(name));
        let config = config.with_value(Some(text(value)));
        // Behind one that has what it has anyway.
        let first = CreatableTopicConfig::default().with_name(text("retention.bytes"));
        topic.configs = vec![first.with_value(None), config];
    }
    // "default" leaves its replicas to the broker, too.
    request.topics[5].replication_factor = -1;
    let errors = asked.map(|(_, _, error)| error);
    // What is only checked, is refused as well; but what comes behind "most" would still have room.
    let checked = create(&request.clone().with_validate_only(true));
    assert_eq!(checked[..16], errors[..16]);
    assert_eq!(create(&request), errors);
    assert_eq!(client.metadata(&["default"], false), [(0, 4)]);
    // There is memory for what is told of all.
    assert_eq!(client.request(0, &nameless).topics.len(), 7);
    // One that goes makes room. The later versions tell what there is now.
    assert_eq!(client.delete_topics(&["all"]), [0]);
    let request = create_request(&[("told", -1), ("none", 0)]);
    let told = client.request(5, &request).topics.into_iter();
    let told = told.map(|topic| (topic.num_partitions, topic.replication_factor));
    assert_eq!(told.collect::<Vec<_>>(), [(4, 1), (-1, -1)]);
}

#[test]
fn settings_are_told_of_what_is_there() {
    const TOPIC: i8 = 2;
    const BROKER: i8 = 4;
    let (invalid, unknown) = (Code::InvalidRequest.code(), UNKNOWN_TOPIC_OR_PARTITION);
    let (_broker, mut client) = Broker::with_topic(1, &["--partitions", "4"]);
    for (kind, name, key, error, value) in [
        (BROKER, "1", "num.partitions", 0, "4"),
        (BROKER, "1", "message.max.bytes", 0, "16777216"),
        (BROKER, "1", "socket.request.max.bytes", 0, "20971520"),
        (BROKER, "1", "log.retention.bytes", 0, "67108864"),
        // What holds for all brokers.
        (BROKER, "", "num.partitions", 0, "4"),
        (BROKER, "2", "num.partitions", invalid, ""),
        (TOPIC, "t", "retention.bytes", 0, "67108864"),
        (TOPIC, "t", "max.message.bytes", 0, "16777216"),
        (TOPIC, "missing", "retention.bytes", unknown, ""),
    ] {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(name))
            .with_configuration_keys(Some(vec![text("none"), text(key)]));
        let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
        let found = client.request(1, &request).results.remove(0);
        let configs = found.configs.iter();
        let values = configs.filter_map(|config| config.value.as_deref());
        let found = (found.error_code, values.collect::<String>());
        assert_eq!(found, (error, value.to_owned()), "{name}");
    }
    // And they hold, to the byte.
    let around = batch(&[&vec![0; 15 << 20]]).len() - (15 << 20);
    let [longest, longer] = [0, 1].map(|more| batch(&[&vec![0; (16 << 20) - around + more]]));
    for offset in 0..4 {
        assert_eq!(client.produce_to(-1, "t", 0, &longest), (0, offset));
    }
    assert_eq!(client.offset_at("t", -2), (0, 0), "four are kept");
    let refused = client.produce_to(-1, "t", 0, &longer);
    assert_eq!(refused, (Code::MessageTooLarge.code(), -1));
}

#[test]
fn f9_produce_refuses_bad_batches() {
    let (_broker, mut client) = Broker::with_topic(1, &[]);
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
    let (mut sent, mut worst) = (0, Duration::ZERO);
    let mut refused = |error: i16, batches: &[(&str, Vec<u8>)]| {
        for (what, records) in batches {
            let asked = Instant::now();
            assert_eq!(client.produce_to(1, "t", 0, records), (error, -1), "{what}");
            (sent, worst) = (sent + 1, worst.max(asked.elapsed()));
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
    refused(Code::CorruptMessage.code(), &corrupt);
    let zeros = vec![0; good.len() - 61];
    let hollow = counted(&patched(&good, 61, &zeros), zeros.len() as i32);
    let wrong = [
        ("old format", with(16, &[1])),
        ("two batches", good.repeat(2)),
        ("record count", patched(&good, 57, &[0, 0, 0, 3])),
        ("last offset", patched(&good, 23, &[0x7f, 0xff, 0xff, 0xfe])),
        ("no records", counted(&good, 0)),
        ("fewer than there are", counted(&good, 1)),
        ("more than there are", counted(&good, 3)),
        ("a record of a negative length", patched(&good, 61, &[0x13])),
        ("as many as there is room for", counted(&good, 15)),
        ("records without fields", hollow),
        ("transactional batch", patched(&good, 22, &[1 << 4])),
        ("control batch", patched(&good, 22, &[1 << 5])),
    ];
    refused(Code::InvalidRecord.code(), &wrong);
    for packed in packed(&good) {
        let wrong = [1, 3].map(|count| ("packed", counted(&packed, count)));
        refused(Code::InvalidRecord.code(), &wrong);
    }
    let unknown = [5, 7].map(|codec| ("codec", patched(&good, 22, &[codec])));
    refused(Code::UnsupportedCompressionType.code(), &unknown);
    println!("| F9 bad batches | broker | {sent} | 0 | {worst:.1?} | all are refused |");
    let nothing = produce_request(1, 0, "t", &[(0, None)]);
    let nothing = produced(client.request(PRODUCE, &nothing));
    assert_eq!(nothing, [(Code::InvalidRecord.code(), -1)]);
    for (offset, packed) in (0..).step_by(2).zip(packed(&good)) {
        assert_eq!(client.produce_to(1, "t", 0, &packed), (0, offset));
    }
    // Nothing but the good ones was appended.
    assert_eq!(client.produce("t", b"three"), 8);
    // A record may be empty.
    assert_eq!(client.produce("t", b""), 9);
}

/// The batch as each codec packs it; snappy as the Java client has it: in blocks behind their lengths.
fn packed(batch: &[u8]) -> [Vec<u8>; 4] {
    use ruzstd::encoding::{CompressionLevel::Fastest, compress_to_vec};
    let records = &batch[61..];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    gzip.write_all(records).expect("pack");
    let mut snappy = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
    for part in records.chunks(50) {
        let block = snap::raw::Encoder::new().compress_vec(part).expect("pack");
        snappy.extend((block.len() as u32).to_be_bytes());
        snappy.extend(block);
    }
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(records).expect("pack");
    let (gzip, lz4) = (gzip.finish().expect("pack"), lz4.finish().expect("pack"));
    let zstd = compress_to_vec(records, Fastest);
    let mut codec = 0;
    [gzip, snappy, lz4, zstd].map(|records| {
        codec += 1;
        let packed = [&batch[..61], &records].concat();
        let length = (packed.len() as i32 - 12).to_be_bytes();
        patched(&patched(&packed, 22, &[codec]), 8, &length)
    })
}

/// 120 MB: its bytes are read to the end and thrown away, and the connection goes on.
#[test]
fn a_produce_request_that_is_too_long_is_refused_in_words() {
    let (broker, mut client) = Broker::with_topic(3, &[]);
    let (memory, records) = (broker.program.resident_memory(), vec![7; 120_000_000]);
    let next = produce_request(-1, 5_000, "t", &[(0, Some(&batch(&[b"value"])))]);
    for (offset, (version, acks)) in (0..).zip([(3, -1), (PRODUCE, 1), (9, -1)]) {
        let records = &records[offset as usize * 20_000..];
        let request = produce_request(acks, 5_000, "t", &[(2, Some(records))]);
        // Another is right behind it, and its start is read along.
        client.send_raw(&[frame(version, 1, &request), frame(PRODUCE, 2, &next)].concat());
        let answer = client.receive::<ProduceRequest>(version, 1);
        let it = &answer.responses[0];
        assert_eq!((&**it.name, it.partition_responses[0].index), ("t", 2));
        assert_eq!(produced(answer), [(Code::MessageTooLarge.code(), -1)]);
        let answer = produced(client.receive::<ProduceRequest>(PRODUCE, 2));
        assert_eq!(answer, [(0, offset)]);
    }
    broker.wait_for_log("bytes of at most 20971520: refused");
    let log = broker.log();
    let once = log.len() == 1 && log[0].contains("too long: 120000");
    assert!(once, "{log:?}");
    assert!(broker.program.resident_memory() < memory + (30 << 20));
    // Longer ones, other requests of such a length, and those which no answer for one partition fits. (A client that awaits
    // none would take one for the answer to its next request.)
    let produce = |acks, topics, partitions| {
        let mut request = produce_request(acks, 0, "t", &vec![(0, None); partitions]);
        request.topic_data = vec![request.topic_data.remove(0); topics];
        frame(PRODUCE, 1, &request)[4..].to_vec()
    };
    for (length, start) in [
        (i32::MAX, produce(-1, 1, 1)),
        (25_000_000, vec![0, 1, 0, 11]),
        (25_000_000, produce(0, 1, 1)),
        (25_000_000, produce(-1, 1, 2)),
        (25_000_000, produce(-1, 2, 1)),
    ] {
        let mut stranger = broker.client();
        stranger.send_raw(&[&length.to_be_bytes()[..], &start, &[0; 4_000]].concat());
        stranger.assert_closed();
    }
    // A client that speaks TLS: as a length, its first bytes are one of 369 MB, and it waits for an answer.
    let mut stranger = broker.client();
    stranger.send_raw(&[&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"[..], &[0; 506]].concat());
    stranger.assert_closed();
}

#[test]
fn a_batch_sent_again_is_not_appended_again() {
    let (_broker, mut client) = Broker::with_topic(1, &[]);
    let gap = (Code::OutOfOrderSequenceNumber.code(), -1);
    let old = (Code::InvalidProducerEpoch.code(), -1);
    let mut send = |id, epoch, sequence, records: usize| {
        let values = &[&b"a"[..], b"b", b"c"][..records];
        let latest = client.offset_at("t", -1);
        let answer = client.produce_to(-1, "t", 0, &batch_from(id, epoch, sequence, values));
        assert!(client.offset_at("t", -1) >= latest);
        answer
    };
    for (epoch, sequence, records, expected, what) in [
        (0, 0, 2, (0, 0), "the first"),
        (0, 2, 2, (0, 2), "the next"),
        (0, 2, 2, (0, 2), "a repeat of the last"),
        (0, 0, 2, (0, 0), "a repeat of an earlier one"),
        (0, 6, 2, gap, "a gap"),
        (1, 4, 2, gap, "a new epoch goes on"),
        (1, 0, 2, (0, 4), "a new epoch starts again"),
        (0, 4, 2, old, "an old epoch"),
        (1, 0, 3, gap, "a repeat has as many records"),
    ] {
        assert_eq!(send(7, epoch, sequence, records), expected, "{what}");
    }
    // A thousand producers are remembered: then the one goes that has sent nothing for longest.
    for number in 0..1_000 {
        assert_eq!(send(8 + number, 1, 0, 1), (0, 6 + number));
    }
    for (id, sequence, records, offset, what) in [
        (8, 1, 1, 1_006, "the next"),
        (8, 0, 1, 6, "a repeat"),
        (7, 9, 1, 1_007, "a gap of one that is not known"),
        (8, 1, 1, 1_006, "a repeat of one that has sent of late"),
        (6, i32::MAX, 1, 1_008, "the last number"),
        (6, 0, 1, 1_009, "the numbers begin anew"),
        (5, i32::MAX, 2, 1_010, "the last number and the first"),
        (5, 1, 1, 1_012, "the numbers have begun anew"),
    ] {
        assert_eq!(send(id, 1, sequence, records), (0, offset), "{what}");
    }
    // A client has five batches in flight, and sends them all again when its connection breaks.
    for sequence in (2..7).chain(2..7) {
        let at = 1_011 + i64::from(sequence);
        assert_eq!(send(5, 1, sequence, 1), (0, at), "{sequence}");
    }
    // No more are remembered.
    assert_eq!(send(5, 1, 7, 1), (0, 1_018), "a sixth");
    assert_eq!(send(5, 1, 2, 1), gap, "one that five have followed");
}

/// A producer that wants no answer hears of an error by the end of its connection.
#[test]
fn acks_are_none_of_the_leader_or_of_all() {
    let (broker, mut client) = Broker::with_topic(1, &[]);
    let one = batch(&[b"value"]);
    for acks in [2, -2] {
        let refused = client.produce_to(acks, "t", 0, &one);
        assert_eq!(refused, (Code::InvalidRequiredAcks.code(), -1));
    }
    let data = [0, 7].map(|partition| (partition, Some(&*one)));
    let unanswered = |partitions| produce_request(0, 1_000, "t", partitions);
    client.send(PRODUCE, &unanswered(&data[..1]));
    assert_eq!(client.produce("t", b"value"), 1);
    // One partition is not there, or one of the topics.
    let mut topics = unanswered(&data[..1]);
    let missing = produce_request(0, 1_000, "missing", &data[..1]);
    topics.topic_data.extend(missing.topic_data);
    for request in [unanswered(&data[1..]), unanswered(&data), topics] {
        let mut client = broker.client();
        client.send(PRODUCE, &request);
        client.assert_closed();
    }
    // What was appended beside an error is there for consumers.
    let mut is_there = || client.offset_at("t", -1) == (0, 4);
    found("record", || is_there().then_some(()));
    broker.wait_for_log("produce with acks 0");
}

#[test]
fn fetch_answers_errors_at_once_and_keeps_to_its_limits() {
    let (_broker, mut client) = Broker::with_topic(2, &[]);
    let one = batch(&[&[7; 1_000]]);
    client.produce_to(-1, "t", 0, &one);
    let started = Instant::now();
    let unknown = client.fetch(&fetch("missing", 1, 60_000));
    assert_eq!(unknown[0].error_code, UNKNOWN_TOPIC_OR_PARTITION);
    for offset in [-1, 2, i64::MAX, i64::MIN] {
        let found = &client.fetch(&fetch_from("t", &[(0, offset)], 60_000))[0];
        assert_eq!(found.error_code, Code::OffsetOutOfRange.code());
        assert_eq!((found.high_watermark, records(found).len()), (-1, 0));
    }
    // One bad partition is enough, and the others are answered with what they have.
    let mixed = client.fetch(&fetch("t", 3, 60_000).with_min_bytes(1 << 20));
    let told = [0, 2].map(|at| (mixed[at].partition_index, mixed[at].error_code));
    assert_eq!(told, [(0, 0), (2, UNKNOWN_TOPIC_OR_PARTITION)]);
    assert_eq!(client.fetch(&fetch("t", 0, 60_000)), []);
    let in_session = client.request(FETCH, &fetch("t", 1, 60_000).with_session_id(5));
    assert_eq!(in_session.error_code, Code::FetchSessionIdNotFound.code());
    assert!(started.elapsed() < Duration::from_secs(10));

    // Only one batch may be longer than the limit, also of several topics.
    client.create_topic("u", 1);
    client.produce_to(-1, "u", 0, &one);
    let mut both = fetch("t", 1, 0).with_max_bytes(1);
    both.topics.extend(fetch("u", 1, 0).topics);
    assert_eq!(client.lengths(&both), [one.len(), 0]);
    // Whole batches, from the one that holds the offset, also if that one is too long.
    let three = batch(&[b"a", b"b", b"c"]);
    assert_eq!(client.produce_to(-1, "u", 0, &three), (0, 1));
    for (offset, max_bytes) in [(1, 1 << 20), (2, 1 << 20), (2, 1)] {
        let fetched = client.fetch(&fetch_from("u", &[(0, offset)], 0).with_max_bytes(max_bytes));
        assert_eq!(records(&fetched[0])[..8], 1_i64.to_be_bytes());
        assert_eq!(records(&fetched[0])[16..], three[16..]);
    }
    // And at once, though the rest of that batch is all there is.
    client.fetch(&fetch_from("u", &[(0, 3)], 600_000));
}

#[test]
fn offsets_are_found_by_time_and_the_oldest_go() {
    // Where a batch says so.
    const MAX_TIMESTAMP: usize = 35;
    let (_broker, mut client) = Broker::with_topic(1, &[]);
    assert_eq!(client.offset_at("t", 0), (0, -1), "of nothing");
    let fifteen = |sequence| batch_from(7, 0, sequence, &[&vec![0; 15 << 20]]);
    (0..3).for_each(|_| _ = client.produce("t", b"value"));
    for at in 3..9 {
        assert_eq!(client.produce_to(-1, "t", 0, &fifteen(at)), (0, at.into()));
    }
    // 64 MiB are kept: the last four.
    for (timestamp, expected) in [(-1, 9), (-2, 5), (1_000, 5), (1_001, -1)] {
        let found = client.offset_at("t", timestamp);
        assert_eq!(found, (0, expected), "{timestamp}");
    }
    // A time within a batch is answered as it was asked for: its records are not looked at.
    let late = 2_000_i64.to_be_bytes();
    let later = patched(&batch(&[b"a", b"b"]), MAX_TIMESTAMP, &late);
    let request = produce_request(-1, 10_000, "t", &[(0, Some(&later))]);
    let answer = client.request(PRODUCE, &request);
    let appended = &answer.responses[0].partition_responses[0];
    let told = (appended.base_offset, appended.log_start_offset);
    assert_eq!((appended.error_code, told), (0, (9, 5)));
    // Clocks of producers differ: what comes later may be older.
    (0..8).for_each(|_| _ = client.produce("t", b"older"));
    for (timestamp, expected) in [(0, (1_000, 5)), (1_500, (1_500, 9)), (2_001, (-1, -1))] {
        let answer = client.request(5, &list_offsets_request("t", timestamp));
        let found = &answer.topics[0].partitions[0];
        assert_eq!((found.timestamp, found.offset), expected, "{timestamp}");
    }
    assert_eq!(client.offset_at("t", -7).0, Code::InvalidRequest.code());
    // Of several topics each is answered by itself.
    let mut both = list_offsets_request("missing", -1);
    both.topics.extend(list_offsets_request("t", -1).topics);
    let found = client.request(5, &both).topics.into_iter();
    let found = found.map(|it| (it.name, it.partitions[0].error_code));
    let errors = [("missing", UNKNOWN_TOPIC_OR_PARTITION), ("t", 0)];
    assert!(found.eq(errors.map(|(name, error)| (topic_name(name), error))));
    let gone = client.fetch(&fetch_from("t", &[(0, 4)], 0));
    assert_eq!(gone[0].error_code, Code::OffsetOutOfRange.code());
    let oldest = client.fetch(&fetch_from("t", &[(0, 5)], 0));
    assert_eq!(records(&oldest[0]).len(), fifteen(0).len());
    assert_eq!(oldest[0].log_start_offset, 5);
}
