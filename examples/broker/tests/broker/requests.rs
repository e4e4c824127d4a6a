//! The requests that tests make, in any version.

use crate::wire::{
    CREATE_TOPICS, Connection, FETCH, LIST_OFFSETS, METADATA, PRODUCE, Reader, Writer, batch,
};
use std::net::SocketAddr;

pub(crate) const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
pub(crate) const REQUEST_TIMED_OUT: i16 = 7;

/// A fetch from partitions of one topic.
#[derive(Debug, Clone)]
pub(crate) struct Fetch<'a> {
    pub(crate) version: i16,
    pub(crate) max_wait: i32,
    pub(crate) min_bytes: i32,
    pub(crate) max_bytes: i32,
    pub(crate) session: i32,
    pub(crate) topic: &'a str,
    /// Partition, offset, max bytes.
    pub(crate) partitions: Vec<(i32, i64, i32)>,
}

/// What came back for one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) partition: i32,
    pub(crate) error: i16,
    pub(crate) high_watermark: i64,
    pub(crate) records: Vec<u8>,
}

impl<'a> Fetch<'a> {
    /// From the start of partition 0, waiting up to `max_wait` milliseconds for the first byte.
    pub(crate) fn new(topic: &'a str, max_wait: i32) -> Self {
        Self {
            version: 11,
            max_wait,
            min_bytes: 1,
            max_bytes: 1 << 20,
            session: 0,
            topic,
            partitions: vec![(0, 0, 1 << 20)],
        }
    }

    pub(crate) fn at(mut self, offset: i64) -> Self {
        self.partitions = vec![(0, offset, 1 << 20)];
        self
    }

    /// From the start of the first `count` partitions.
    pub(crate) fn of_partitions(mut self, count: i32) -> Self {
        self.partitions = (0..count).map(|index| (index, 0, 1 << 20)).collect();
        self
    }

    pub(crate) fn body(&self) -> Writer {
        let mut body = Writer::body(FETCH, self.version)
            .int32(-1)
            .int32(self.max_wait)
            .int32(self.min_bytes)
            .int32(self.max_bytes)
            .int8(0)
            .since(7, |body| body.int32(self.session).int32(-1))
            .count(1)
            .string(self.topic)
            .count(self.partitions.len());
        for (partition, offset, max_bytes) in &self.partitions {
            body = body
                .int32(*partition)
                .since(9, |body| body.int32(-1))
                .int64(*offset)
                .since(12, |body| body.int32(-1))
                .since(5, |body| body.int64(-1))
                .int32(*max_bytes)
                .end();
        }
        body.end()
            .since(7, |body| body.count(0))
            .since(11, |body| body.string(""))
            .end()
    }

    pub(crate) fn send(&self, connection: &mut Connection) -> i32 {
        connection.send(FETCH, &self.body())
    }

    /// Reads the answer to a fetch that was sent: the error of the whole, and the partitions.
    pub(crate) fn receive(
        &self,
        connection: &mut Connection,
        correlation: i32,
    ) -> (i16, Vec<Fetched>) {
        let mut answer = connection.receive(FETCH, self.version, correlation);
        assert_eq!(answer.int32(), 0, "throttle time");
        let error = answer.since(7, |answer| {
            let error = answer.int16();
            assert_eq!(answer.int32(), 0, "session id");
            error
        });
        let topics = answer.list(|answer| {
            assert_eq!(answer.string().as_deref(), Some(self.topic));
            let partitions = answer.list(Fetched::read);
            answer.end();
            partitions
        });
        answer.end();
        answer.finish();
        (error.unwrap_or(0), topics.concat())
    }

    /// Sends it and reads the answer for its partitions.
    pub(crate) fn run(&self, connection: &mut Connection) -> Vec<Fetched> {
        let correlation = self.send(connection);
        let (error, partitions) = self.receive(connection, correlation);
        assert_eq!(error, 0);
        partitions
    }
}

impl Fetched {
    fn read(answer: &mut Reader) -> Self {
        let partition = answer.int32();
        let error = answer.int16();
        let high_watermark = answer.int64();
        assert_eq!(answer.int64(), if error == 0 { high_watermark } else { -1 });
        answer.since(5, Reader::int64);
        answer.list(|_| panic!("an aborted transaction"));
        answer.since(11, |answer| assert_eq!(answer.int32(), -1));
        let records = answer.blob().expect("records empty rather than null");
        answer.end();
        Self {
            partition,
            error,
            high_watermark,
            records,
        }
    }
}

/// The outcome for one partition of a produce request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Produced {
    pub(crate) error: i16,
    pub(crate) base_offset: i64,
}

/// A produce request for partitions of one topic; `None` sends null for records.
pub(crate) fn produce_body(
    version: i16,
    acks: i16,
    timeout: i32,
    topic: &str,
    partitions: &[(i32, Option<&[u8]>)],
) -> Writer {
    let mut body = Writer::body(PRODUCE, version)
        .null_string()
        .int16(acks)
        .int32(timeout)
        .count(1)
        .string(topic)
        .count(partitions.len());
    for (partition, records) in partitions {
        body = body.int32(*partition);
        body = match records {
            Some(records) => body.blob(records),
            None => body.null(),
        }
        .end();
    }
    body.end().end()
}

pub(crate) fn receive_produced(mut answer: Reader) -> Vec<Produced> {
    let topics = answer.list(|answer| {
        answer.string();
        let partitions = answer.list(|answer| {
            answer.int32();
            let produced = Produced {
                error: answer.int16(),
                base_offset: answer.int64(),
            };
            assert_eq!(answer.int64(), -1, "log append time");
            answer.since(5, Reader::int64);
            answer.since(8, |answer| {
                answer.list(|_| panic!("a record error"));
                answer.string();
            });
            answer.end();
            produced
        });
        answer.end();
        partitions
    });
    assert_eq!(answer.int32(), 0, "throttle time");
    answer.end();
    answer.finish();
    topics.concat()
}

/// Produces to one partition and returns the outcome.
pub(crate) fn produce_to(
    connection: &mut Connection,
    acks: i16,
    topic: &str,
    partition: i32,
    records: &[u8],
) -> Produced {
    let body = produce_body(8, acks, 10_000, topic, &[(partition, Some(records))]);
    let produced = receive_produced(connection.request(PRODUCE, &body));
    produced[0]
}

/// Produces one record to partition 0, waiting for the replicas.
pub(crate) fn produce(connection: &mut Connection, topic: &str, value: &[u8]) -> Produced {
    produce_to(connection, -1, topic, 0, &batch(&[value]))
}

pub(crate) fn metadata_body(version: i16, topics: Option<&[&str]>, create: bool) -> Writer {
    let mut body = Writer::body(METADATA, version);
    match topics {
        None if version == 0 => body = body.count(0),
        None => body = body.null(),
        Some(topics) => {
            body = body.count(topics.len());
            for topic in topics {
                body = body.string(topic).end();
            }
        }
    }
    body.since(4, |body| body.int8(i8::from(create)))
        .since(8, |body| body.int8(0).int8(0))
        .end()
}

/// The topics in an answer: error, name, number of partitions.
pub(crate) fn receive_metadata(
    mut answer: Reader,
    broker: SocketAddr,
) -> Vec<(i16, String, usize)> {
    answer.since(3, |answer| assert_eq!(answer.int32(), 0, "throttle time"));
    let brokers = answer.list(|answer| {
        let node = answer.int32();
        let host = answer.string().expect("a host");
        let port = answer.int32();
        answer.since(1, |answer| assert_eq!(answer.string(), None, "rack"));
        answer.end();
        (node, format!("{host}:{port}"))
    });
    assert_eq!(brokers, [(1, broker.to_string())]);
    answer.since(2, |answer| answer.string().expect("a cluster id"));
    answer.since(1, |answer| assert_eq!(answer.int32(), 1, "controller"));
    let topics = answer.list(|answer| {
        let error = answer.int16();
        let name = answer.string().expect("a name");
        answer.since(1, |answer| assert_eq!(answer.int8(), 0, "internal"));
        let partitions = answer.list(|answer| {
            assert_eq!(answer.int16(), 0, "error of a partition");
            let index = answer.int32();
            assert_eq!(answer.int32(), 1, "leader");
            answer.since(7, Reader::int32);
            assert_eq!(answer.list(Reader::int32), [1], "replicas");
            assert_eq!(answer.list(Reader::int32), [1], "in sync");
            answer.since(5, |answer| answer.list(Reader::int32));
            answer.end();
            index
        });
        answer.since(8, Reader::int32);
        answer.end();
        assert!((0..).zip(&partitions).all(|(at, index)| at == *index));
        (error, name, partitions.len())
    });
    answer.since(8, Reader::int32);
    answer.end();
    answer.finish();
    topics
}

/// A topic to create: name, partitions, replication factor, manual assignments.
pub(crate) type NewTopic<'a> = (&'a str, i32, i16, usize);

pub(crate) fn create_topics_body(
    version: i16,
    topics: &[NewTopic<'_>],
    only_check: bool,
) -> Writer {
    let mut body = Writer::body(CREATE_TOPICS, version).count(topics.len());
    for (name, partitions, replication, assignments) in topics {
        body = body
            .string(name)
            .int32(*partitions)
            .int16(*replication)
            .count(*assignments);
        for index in 0..*assignments {
            body = body.int32(index as i32).count(1).int32(1).end();
        }
        body = body.count(0).end();
    }
    body.int32(1_000).int8(i8::from(only_check)).end()
}

/// The error code per topic.
pub(crate) fn receive_created(mut answer: Reader) -> Vec<i16> {
    assert_eq!(answer.int32(), 0, "throttle time");
    let errors = answer.list(|answer| {
        answer.string();
        let error = answer.int16();
        assert_eq!(answer.string().is_some(), error != 0, "a message per error");
        answer.since(5, |answer| {
            answer.int32();
            answer.int16();
            answer.list(|_| panic!("a config"));
        });
        answer.end();
        error
    });
    answer.end();
    answer.finish();
    errors
}

pub(crate) fn create_topic(connection: &mut Connection, name: &str, partitions: i32) {
    let body = create_topics_body(4, &[(name, partitions, 1, 0)], false);
    let errors = receive_created(connection.request(CREATE_TOPICS, &body));
    assert_eq!(errors, [0]);
}

pub(crate) fn list_offsets_body(
    version: i16,
    topic: &str,
    partition: i32,
    timestamp: i64,
) -> Writer {
    Writer::body(LIST_OFFSETS, version)
        .int32(-1)
        .since(2, |body| body.int8(0))
        .count(1)
        .string(topic)
        .count(1)
        .int32(partition)
        .since(4, |body| body.int32(-1))
        .int64(timestamp)
        .end()
        .end()
        .end()
}

/// Error and offset of the one partition asked for.
pub(crate) fn receive_offset(mut answer: Reader) -> (i16, i64) {
    answer.since(2, |answer| assert_eq!(answer.int32(), 0, "throttle time"));
    let topics = answer.list(|answer| {
        answer.string();
        let partitions = answer.list(|answer| {
            answer.int32();
            let error = answer.int16();
            answer.int64();
            let offset = answer.int64();
            answer.since(4, |answer| assert_eq!(answer.int32(), -1, "epoch"));
            answer.end();
            (error, offset)
        });
        answer.end();
        partitions
    });
    answer.end();
    answer.finish();
    topics.concat()[0]
}

pub(crate) fn offset_at(connection: &mut Connection, topic: &str, timestamp: i64) -> (i16, i64) {
    let body = list_offsets_body(5, topic, 0, timestamp);
    receive_offset(connection.request(LIST_OFFSETS, &body))
}
