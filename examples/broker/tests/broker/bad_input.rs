//! Input that no client library would send. Whatever comes, the broker answers with an error of the protocol or
//! closes that connection with one line on stderr; it does not panic, leaks nothing, and serves everybody else.

use crate::process::Broker;
use crate::requests::{Fetch, UNKNOWN_TOPIC_OR_PARTITION, create_topic, metadata_body, produce};
use crate::wire::{
    API_VERSIONS, CREATE_TOPICS, Connection, FETCH, INIT_PRODUCER_ID, LIST_OFFSETS, METADATA,
    PRODUCE, Writer, frame,
};

const MIB: u64 = 1 << 20;

/// A broker and a client of it that behaves, and has a fetch parked while others misbehave.
struct Witnessed {
    broker: Broker,
    witness: Connection,
    fetch: Fetch<'static>,
    parked: i32,
    memory: u64,
}

impl Witnessed {
    fn start() -> Self {
        let broker = Broker::start();
        let mut witness = Connection::open(broker.address());
        create_topic(&mut witness, "witness", 1);
        let fetch = Fetch::new("witness", 60_000);
        let parked = fetch.send(&mut witness);
        broker.wait_for_parked(1);
        let memory = broker.resident_memory();
        Self {
            broker,
            witness,
            fetch,
            parked,
            memory,
        }
    }

    fn stranger(&self) -> Connection {
        Connection::open(self.broker.address())
    }

    /// Sends bytes from a new connection, which has to be closed for it, with one line that says why.
    fn refuses(&self, bytes: &[u8], reason: &str) {
        let lines = self.broker.log().len();
        let mut stranger = self.stranger();
        stranger.send_raw(bytes);
        stranger.assert_closed();
        self.logged(lines, reason);
    }

    fn logged(&self, lines: usize, reason: &str) {
        // A quiet moment: the line is written before the connection is counted as gone.
        self.broker
            .wait_for("closed connection", |report| report.connections == 1);
        let started = std::time::Instant::now();
        while self.broker.log().len() == lines && started.elapsed() < crate::process::PATIENCE {
            std::thread::yield_now();
        }
        let log = self.broker.log();
        let new = &log[lines..];
        assert!(
            new.len() == 1 && new[0].contains(reason),
            "{reason:?}: {new:#?}"
        );
    }

    /// The witness was not disturbed, and nothing is left of the others.
    fn finish(mut self) {
        let grown = self.broker.resident_memory().saturating_sub(self.memory);
        assert!(grown < 64 * MIB, "memory grew by {} MiB", grown / MIB);
        self.broker.wait_for("only the witness", |report| {
            report.connections == 1 && report.watched == 1
        });
        let mut producer = self.stranger();
        produce(&mut producer, "witness", b"value");
        let (_, fetched) = self.fetch.receive(&mut self.witness, self.parked);
        assert!(!fetched[0].records.is_empty());
        drop((producer, self.witness));
        self.broker.assert_tidy();
    }
}

#[test]
fn a_frame_that_is_cut_short() {
    let witnessed = Witnessed::start();
    let whole = frame(FETCH, 1, &Fetch::new("witness", 60_000).body());
    for length in [1, 3, 4, 5, 11, whole.len() - 1] {
        let lines = witnessed.broker.log().len();
        let mut stranger = witnessed.stranger();
        stranger.send_raw(&whole[..length]);
        drop(stranger);
        witnessed.logged(lines, "closed inside a frame");
    }
    witnessed.finish();
}

#[test]
fn a_frame_that_ends_before_its_fields_do() {
    let witnessed = Witnessed::start();
    let body = Fetch::new("witness", 60_000).body();
    for length in 0..body.bytes.len() {
        let mut body = body.clone();
        body.bytes.truncate(length);
        witnessed.refuses(&frame(FETCH, 1, &body), "malformed Fetch v11");
    }
    witnessed.refuses(&[0, 0, 0, 0], "too short");
    witnessed.refuses(&[0, 0, 0, 7, 0, 1, 0, 11, 0, 0, 0], "too short");
    witnessed.refuses(
        &[0, 0, 0, 8, 0, 1, 0, 11, 0, 0, 0, 1],
        "malformed Fetch v11",
    );
    witnessed.finish();
}

/// As librdkafka's Metadata request does. It is said once, however often it happens.
#[test]
fn a_frame_that_goes_on_after_its_fields_is_answered() {
    let witnessed = Witnessed::start();
    let mut stranger = witnessed.stranger();
    for _ in 0..3 {
        let fetch = Fetch::new("missing", 60_000);
        let body = fetch.body().raw(&[0, 0, 0]);
        let correlation = stranger.send(FETCH, &body);
        let (_, fetched) = fetch.receive(&mut stranger, correlation);
        assert_eq!(fetched[0].error, UNKNOWN_TOPIC_OR_PARTITION);
    }
    drop(stranger);
    let said = "3 bytes after the last field of Fetch v11";
    witnessed.broker.wait_for_log(said);
    assert_eq!(witnessed.broker.log().len(), 1);
    witnessed.finish();
}

#[test]
fn a_length_that_no_frame_has() {
    let witnessed = Witnessed::start();
    for length in [-1, i32::MIN, i32::MAX, 20 * 1024 * 1024 + 1] {
        witnessed.refuses(&length.to_be_bytes(), "frame length");
    }
    // What the first four bytes of other protocols look like.
    witnessed.refuses(b"GET / HTTP/1.1\r\n\r\n", "frame length");
    witnessed.refuses(b"\x16\x03\x01\x02\x00\x01\x00\x01", "frame length");
    witnessed.finish();
}

#[test]
fn a_claimed_length_reserves_no_memory() {
    let witnessed = Witnessed::start();
    let mut strangers: Vec<_> = (0..50).map(|_| witnessed.stranger()).collect();
    for stranger in &mut strangers {
        stranger.send_raw(&(20 * 1024 * 1024_i32).to_be_bytes());
        stranger.send_raw(&[0; 1_000]);
    }
    let all = strangers.len() as u64 + 1;
    witnessed
        .broker
        .wait_for("connections", |report| report.connections == all);
    let grown = witnessed.broker.resident_memory() - witnessed.memory;
    assert!(grown < 16 * MIB, "memory grew by {} MiB", grown / MIB);
    drop(strangers);
    witnessed.finish();
}

#[test]
fn a_count_of_elements_that_are_not_there() {
    let witnessed = Witnessed::start();
    for count in [1, 1_000_000, i32::MAX - 1, -2, i32::MIN] {
        let topics = |api, version| Writer::body(api, version).int32(count);
        let fetch = Writer::body(FETCH, 4).raw(&[0; 17]).int32(count);
        let partitions = Writer::body(FETCH, 4)
            .raw(&[0; 17])
            .int32(1)
            .string("t")
            .int32(count);
        let produce = Writer::body(PRODUCE, 3)
            .null_string()
            .raw(&[0; 6])
            .int32(count);
        let list_offsets = Writer::body(LIST_OFFSETS, 1).int32(-1).int32(count);
        witnessed.refuses(&frame(FETCH, 1, &fetch), "malformed Fetch");
        witnessed.refuses(&frame(FETCH, 1, &partitions), "malformed Fetch");
        witnessed.refuses(&frame(PRODUCE, 1, &produce), "malformed Produce");
        witnessed.refuses(
            &frame(LIST_OFFSETS, 1, &list_offsets),
            "malformed ListOffsets",
        );
        witnessed.refuses(
            &frame(METADATA, 1, &topics(METADATA, 1)),
            "malformed Metadata",
        );
        let create = topics(CREATE_TOPICS, 2);
        witnessed.refuses(&frame(CREATE_TOPICS, 1, &create), "malformed CreateTopics");
    }
    // The same in the newer encoding, where a count is a varint.
    for count in [2, 1_000_000, u32::MAX] {
        let metadata = Writer::body(METADATA, 9).varint(count);
        witnessed.refuses(&frame(METADATA, 1, &metadata), "malformed Metadata");
        let tags = Writer::body(INIT_PRODUCER_ID, 2)
            .varint(0)
            .int32(0)
            .varint(count);
        witnessed.refuses(
            &frame(INIT_PRODUCER_ID, 1, &tags),
            "malformed InitProducerId",
        );
    }
    let endless = Writer::body(METADATA, 9).raw(&[0xff; 16]);
    witnessed.refuses(&frame(METADATA, 1, &endless), "malformed Metadata");
    witnessed.finish();
}

#[test]
fn strings_of_impossible_length_or_not_in_utf_8() {
    let witnessed = Witnessed::start();
    for length in [-2, i16::MIN, i16::MAX] {
        let body = Writer::body(METADATA, 1).int32(1).int16(length).raw(b"t");
        witnessed.refuses(&frame(METADATA, 1, &body), "malformed Metadata");
    }
    let body = Writer::body(METADATA, 1).int32(1).int16(2).raw(b"\xff\xfe");
    witnessed.refuses(&frame(METADATA, 1, &body), "malformed Metadata");
    witnessed.finish();
}

#[test]
fn apis_and_versions_that_are_not_there() {
    let witnessed = Witnessed::start();
    for api in [4, 5, 500, -1, i16::MIN, i16::MAX] {
        let request = frame(api, 1, &Writer::body(api, 0));
        witnessed.refuses(&request, "unknown API key");
    }
    for (api, version) in [
        (PRODUCE, 2),
        (PRODUCE, 10),
        (FETCH, 3),
        (FETCH, 13),
        (FETCH, -1),
        (METADATA, 10),
        (METADATA, i16::MIN),
        (LIST_OFFSETS, 0),
        (CREATE_TOPICS, i16::MAX),
    ] {
        let request = frame(api, 1, &Writer::body(api, version));
        witnessed.refuses(&request, "not supported");
    }
    witnessed.finish();
}

#[test]
fn more_partitions_than_a_request_may_name() {
    let witnessed = Witnessed::start();
    let fetch = Fetch::new("witness", 60_000).of_partitions(20_001);
    witnessed.refuses(&frame(FETCH, 1, &fetch.body()), "more array elements");

    // As many as it may are answered, one by one.
    let mut stranger = witnessed.stranger();
    let fetched = Fetch::new("missing", 60_000)
        .of_partitions(19_000)
        .run(&mut stranger);
    assert_eq!(fetched.len(), 19_000);
    assert!(
        fetched
            .iter()
            .all(|part| part.error == UNKNOWN_TOPIC_OR_PARTITION)
    );
    drop(stranger);
    witnessed.finish();
}

#[test]
fn the_same_partition_many_times_in_one_request() {
    let witnessed = Witnessed::start();
    let mut stranger = witnessed.stranger();
    let fetch = Fetch {
        partitions: vec![(0, 0, 1_000); 10_000],
        ..Fetch::new("witness", 100)
    };
    let fetched = fetch.run(&mut stranger);
    assert_eq!(fetched.len(), 10_000);
    drop(stranger);
    witnessed.finish();
}

#[test]
fn requests_before_the_garbage_do_not_outlive_it() {
    let witnessed = Witnessed::start();
    let mut stranger = witnessed.stranger();
    Fetch::new("witness", 60_000).send(&mut stranger);
    witnessed.broker.wait_for_parked(2);
    stranger.send_raw(&[0xff; 100]);
    stranger.assert_closed();
    witnessed.broker.wait_for_parked(1);
    witnessed.finish();
}

#[test]
fn mutated_requests() {
    const ROUNDS: u64 = 3_000;
    let witnessed = Witnessed::start();
    let records = crate::wire::batch(&[b"one", b"two"]);
    let partitions = [(0, Some(&records[..]))];
    let produce =
        |version| crate::requests::produce_body(version, -1, 10, "witness-not", &partitions);
    let fetch = |version| {
        let fetch = Fetch {
            version,
            ..Fetch::new("witness-not", 10)
        };
        fetch.body()
    };
    let requests = [
        frame(FETCH, 1, &fetch(4)),
        frame(FETCH, 1, &fetch(12)),
        frame(PRODUCE, 1, &produce(3)),
        frame(PRODUCE, 1, &produce(9)),
        frame(
            METADATA,
            1,
            &metadata_body(1, Some(&["witness-not"]), false),
        ),
        frame(
            METADATA,
            1,
            &metadata_body(9, Some(&["witness-not"]), false),
        ),
        frame(
            API_VERSIONS,
            1,
            &Writer::body(API_VERSIONS, 3).string("c").string("1").end(),
        ),
        frame(
            CREATE_TOPICS,
            1,
            &crate::requests::create_topics_body(6, &[("n", 1, 1, 1)], true),
        ),
        frame(
            LIST_OFFSETS,
            1,
            &crate::requests::list_offsets_body(6, "witness-not", 0, -1),
        ),
    ];
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    let interesting = [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff];
    for _ in 0..ROUNDS {
        let mut request = requests[next(requests.len())].clone();
        for _ in 0..=next(4) {
            // Past the length, which other tests are about, so that the rest is read at all.
            let at = 4 + next(request.len() - 4);
            request[at] = match next(2) {
                0 => interesting[next(interesting.len())],
                _ => next(256) as u8,
            };
        }
        let mut stranger = witnessed.stranger();
        stranger.send_raw(&request);
        // Answered, refused, or parked: in the end it leaves.
    }
    witnessed.finish();
}
