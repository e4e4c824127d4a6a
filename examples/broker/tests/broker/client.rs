//! A client that sends what it is told to, and reads the answers.

use super::*;
use bytes::Bytes;
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

pub(crate) const FETCH: i16 = 11;
pub(crate) const PRODUCE: i16 = 8;

/// Longest that an answer may take before it counts as missing.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    next_correlation: i32,
}

impl Client {
    pub(crate) fn open(broker: SocketAddr) -> Self {
        let socket = TcpStream::connect(broker).expect("connect");
        socket.set_nodelay(true).expect("set nodelay");
        socket.set_read_timeout(Some(PATIENCE)).expect("not zero");
        Self {
            socket,
            next_correlation: 1,
        }
    }

    /// Sends a request and does not read its answer, of which the kernel takes little: the rest stays with the broker.
    pub(crate) fn send_unread<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        let limited = rustix::net::sockopt::set_socket_recv_buffer_size(&self.socket, 64 << 10);
        limited.expect("a buffer of this size");
        let sent = self.send(version, request);
        self.socket.peek(&mut [0]).expect("the answer begins");
        sent
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("send");
    }

    pub(crate) fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        let correlation = self.next_correlation;
        self.next_correlation += 1;
        self.send_raw(&frame(version, correlation, request));
        correlation
    }

    /// Reads the answer to the request of this id, which has to be the next one.
    pub(crate) fn receive<R: Request>(&mut self, version: i16, correlation: i32) -> R::Response {
        let mut bytes = self.receive_frame().expect("an answer");
        let header_version = R::Response::header_version(version);
        let header = ResponseHeader::decode(&mut bytes, header_version).expect("a header");
        assert_eq!(header.correlation_id, correlation, "answers out of order");
        let response = R::Response::decode(&mut bytes, version).expect("a response");
        assert!(bytes.is_empty(), "bytes left over");
        response
    }

    pub(crate) fn request<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let correlation = self.send(version, request);
        self.receive::<R>(version, correlation)
    }

    /// The next frame, or `None` at the end of the connection.
    pub(crate) fn receive_frame(&mut self) -> Option<Bytes> {
        let mut length = [0; 4];
        match self.socket.read_exact(&mut length) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no answer"),
            read => read.ok()?,
        }
        let mut bytes = vec![0; i32::from_be_bytes(length) as usize];
        self.socket.read_exact(&mut bytes).expect("a whole frame");
        Some(bytes.into())
    }

    pub(crate) fn assert_closed(&mut self) {
        assert_eq!(self.receive_frame(), None, "the connection is not closed");
    }

    pub(crate) fn receive_fetched(&mut self, correlation: i32) -> Vec<PartitionData> {
        let answer = self.receive::<FetchRequest>(FETCH, correlation);
        assert_eq!(answer.error_code, 0);
        let topics = answer.responses.into_iter();
        let fetched = topics.flat_map(|topic| topic.partitions);
        // Without transactions, what is replicated is stable. With an error there is no offset.
        let checked = fetched.inspect(|found| {
            assert_eq!(found.last_stable_offset, found.high_watermark);
            assert_eq!(found.log_start_offset >= 0, found.error_code == 0);
        });
        checked.collect()
    }

    pub(crate) fn fetch(&mut self, fetch: &FetchRequest) -> Vec<PartitionData> {
        let sent = self.send(FETCH, fetch);
        self.receive_fetched(sent)
    }

    /// Fetches, and returns how many bytes of records came of each partition.
    pub(crate) fn lengths(&mut self, fetch: &FetchRequest) -> Vec<usize> {
        let fetched = self.fetch(fetch).into_iter();
        fetched.map(|data| records(&data).len()).collect()
    }

    pub(crate) fn produce_to(
        &mut self,
        acks: i16,
        topic: &str,
        partition: i32,
        records: &[u8],
    ) -> (i16, i64) {
        let request = produce_request(acks, 10_000, topic, &[(partition, Some(records))]);
        produced(self.request(PRODUCE, &request))[0]
    }

    /// Produces one record to partition 0, waiting for the replicas; returns its offset.
    pub(crate) fn produce(&mut self, topic: &str, value: &[u8]) -> i64 {
        let (error, offset) = self.produce_to(-1, topic, 0, &batch(&[value]));
        assert_eq!(error, 0);
        offset
    }

    pub(crate) fn create_topic(&mut self, name: &str, partitions: i32) {
        let answer = self.request(4, &create_request(&[(name, partitions)]));
        assert_eq!(answer.topics[0].error_code, 0);
    }

    pub(crate) fn delete_topics(&mut self, names: &[&str]) -> Vec<i16> {
        let answer = self.request(5, &delete_topics_request(names));
        let responses = answer.responses.into_iter();
        responses.map(|topic| topic.error_code).collect()
    }

    /// Asks for topics, creating missing ones (in a version that can but want that) or not: error and partitions of each.
    pub(crate) fn metadata(&mut self, topics: &[&str], create: bool) -> Vec<(i16, usize)> {
        let request = metadata_request(topics).with_allow_auto_topic_creation(create);
        let topics = self.request(if create { 0 } else { 8 }, &request).topics;
        let found = |it: &MetadataResponseTopic| (it.error_code, it.partitions.len());
        topics.iter().map(found).collect()
    }

    /// Error and offset of partition 0 at a time; -1 is the latest, -2 the earliest.
    pub(crate) fn offset_at(&mut self, topic: &str, timestamp: i64) -> (i16, i64) {
        let answer = self.request(5, &list_offsets_request(topic, timestamp));
        let found = &answer.topics[0].partitions[0];
        (found.error_code, found.offset)
    }
}
