//! Kafka requests written and answers read by hand, byte by byte: what a client library would not send can be
//! sent, and nothing is shared with the code under test.

use crate::process::PATIENCE;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

pub(crate) const PRODUCE: i16 = 0;
pub(crate) const FETCH: i16 = 1;
pub(crate) const LIST_OFFSETS: i16 = 2;
pub(crate) const METADATA: i16 = 3;
pub(crate) const OFFSET_COMMIT: i16 = 8;
pub(crate) const OFFSET_FETCH: i16 = 9;
pub(crate) const FIND_COORDINATOR: i16 = 10;
pub(crate) const JOIN_GROUP: i16 = 11;
pub(crate) const HEARTBEAT: i16 = 12;
pub(crate) const LEAVE_GROUP: i16 = 13;
pub(crate) const SYNC_GROUP: i16 = 14;
pub(crate) const DESCRIBE_GROUPS: i16 = 15;
pub(crate) const LIST_GROUPS: i16 = 16;
pub(crate) const API_VERSIONS: i16 = 18;
pub(crate) const CREATE_TOPICS: i16 = 19;
pub(crate) const DELETE_TOPICS: i16 = 20;
pub(crate) const INIT_PRODUCER_ID: i16 = 22;
pub(crate) const DESCRIBE_CONFIGS: i16 = 32;
pub(crate) const DELETE_GROUPS: i16 = 42;
pub(crate) const OFFSET_DELETE: i16 = 47;

/// First version of each API with compact lengths and tagged fields.
fn first_flexible(api: i16) -> i16 {
    match api {
        PRODUCE | METADATA => 9,
        FETCH => 12,
        LIST_OFFSETS => 6,
        API_VERSIONS => 3,
        CREATE_TOPICS => 5,
        INIT_PRODUCER_ID | DELETE_GROUPS => 2,
        DELETE_TOPICS | DESCRIBE_CONFIGS => 4,
        OFFSET_COMMIT => 8,
        OFFSET_FETCH | JOIN_GROUP => 6,
        FIND_COORDINATOR | LIST_GROUPS => 3,
        HEARTBEAT | LEAVE_GROUP | SYNC_GROUP => 4,
        DESCRIBE_GROUPS => 5,
        _ => i16::MAX,
    }
}

/// A request or a part of one.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) version: i16,
    flexible: bool,
}

impl Writer {
    /// A request body.
    pub(crate) fn body(api: i16, version: i16) -> Self {
        Self {
            bytes: Vec::new(),
            version,
            flexible: version >= first_flexible(api),
        }
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn int8(self, value: i8) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn int16(self, value: i16) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn int32(self, value: i32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn int64(self, value: i64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// What is only there from some version on.
    pub(crate) fn since(self, version: i16, write: impl FnOnce(Self) -> Self) -> Self {
        match self.version >= version {
            true => write(self),
            false => self,
        }
    }

    pub(crate) fn string(self, value: &str) -> Self {
        match self.flexible {
            true => self.varint(value.len() as u32 + 1),
            false => self.int16(value.len() as i16),
        }
        .raw(value.as_bytes())
    }

    pub(crate) fn null_string(self) -> Self {
        match self.flexible {
            true => self.varint(0),
            false => self.int16(-1),
        }
    }

    pub(crate) fn blob(self, value: &[u8]) -> Self {
        self.count(value.len()).raw(value)
    }

    pub(crate) fn null(self) -> Self {
        match self.flexible {
            true => self.varint(0),
            false => self.int32(-1),
        }
    }

    /// The length of an array or a byte string.
    pub(crate) fn count(self, count: usize) -> Self {
        match self.flexible {
            true => self.varint(count as u32 + 1),
            false => self.int32(count as i32),
        }
    }

    /// The end of a structure: no tagged fields.
    pub(crate) fn end(self) -> Self {
        match self.flexible {
            true => self.varint(0),
            false => self,
        }
    }

    pub(crate) fn varint(mut self, mut value: u32) -> Self {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
        self
    }
}

/// An answer, read from front to back.
#[derive(Debug)]
pub(crate) struct Reader {
    bytes: Vec<u8>,
    at: usize,
    pub(crate) version: i16,
    flexible: bool,
}

impl Reader {
    fn take(&mut self, count: usize) -> &[u8] {
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("length as asked for")
    }

    pub(crate) fn int8(&mut self) -> i8 {
        i8::from_be_bytes(self.array())
    }

    pub(crate) fn int16(&mut self) -> i16 {
        i16::from_be_bytes(self.array())
    }

    pub(crate) fn int32(&mut self) -> i32 {
        i32::from_be_bytes(self.array())
    }

    pub(crate) fn int64(&mut self) -> i64 {
        i64::from_be_bytes(self.array())
    }

    pub(crate) fn since<T>(
        &mut self,
        version: i16,
        read: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        (self.version >= version).then(|| read(self))
    }

    pub(crate) fn string(&mut self) -> Option<String> {
        let length = match self.flexible {
            true => self.varint() as i32 - 1,
            false => i32::from(self.int16()),
        };
        let bytes = self.take(usize::try_from(length).ok()?).to_vec();
        Some(String::from_utf8(bytes).expect("UTF-8"))
    }

    pub(crate) fn blob(&mut self) -> Option<Vec<u8>> {
        let length = self.count();
        Some(self.take(usize::try_from(length).ok()?).to_vec())
    }

    /// The length of an array; -1 for null.
    pub(crate) fn count(&mut self) -> i32 {
        match self.flexible {
            true => self.varint() as i32 - 1,
            false => self.int32(),
        }
    }

    pub(crate) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.count()).map(|_| read(self)).collect()
    }

    /// The end of a structure. The broker sends no tagged fields.
    pub(crate) fn end(&mut self) {
        if self.flexible {
            assert_eq!(self.varint(), 0, "tagged fields");
        }
    }

    pub(crate) fn varint(&mut self) -> u32 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.take(1)[0];
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }

    /// Everything has to have been read.
    pub(crate) fn finish(self) {
        assert_eq!(self.at, self.bytes.len(), "bytes left over");
    }
}

/// A connection that sends whatever it is told to.
pub(crate) struct Connection {
    socket: TcpStream,
    next_correlation: i32,
}

impl Connection {
    pub(crate) fn open(broker: SocketAddr) -> Self {
        let socket = TcpStream::connect(broker).expect("connect");
        socket.set_nodelay(true).expect("set nodelay");
        socket
            .set_read_timeout(Some(PATIENCE))
            .expect("set timeout");
        Self {
            socket,
            next_correlation: 1,
        }
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("send");
    }

    /// Sends a request and returns its correlation id.
    pub(crate) fn send(&mut self, api: i16, body: &Writer) -> i32 {
        let correlation = self.next_correlation;
        self.next_correlation += 1;
        self.send_raw(&frame(api, correlation, body));
        correlation
    }

    /// Reads the answer to the request of this id, which has to be the next one.
    pub(crate) fn receive(&mut self, api: i16, version: i16, correlation: i32) -> Reader {
        let bytes = self.receive_frame().expect("an answer");
        let flexible = version >= first_flexible(api);
        let mut reader = Reader {
            bytes,
            at: 0,
            version,
            flexible,
        };
        assert_eq!(reader.int32(), correlation, "answers out of order");
        // The one answer whose header never has tagged fields: its readers may not know them yet.
        if api != API_VERSIONS {
            reader.end();
        }
        reader
    }

    pub(crate) fn request(&mut self, api: i16, body: &Writer) -> Reader {
        let correlation = self.send(api, body);
        self.receive(api, body.version, correlation)
    }

    /// The next frame, or `None` at the end of the connection.
    pub(crate) fn receive_frame(&mut self) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        match self.socket.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer"),
            Err(_) => return None,
        }
        let mut bytes = vec![0; i32::from_be_bytes(length) as usize];
        self.socket.read_exact(&mut bytes).expect("a whole frame");
        Some(bytes)
    }

    pub(crate) fn assert_closed(&mut self) {
        assert_eq!(self.receive_frame(), None, "the connection is not closed");
    }

    /// Ends the connection with a reset instead of a close, as a crash does: it leaves an answer unread.
    pub(crate) fn reset(mut self) {
        self.send(API_VERSIONS, &Writer::body(API_VERSIONS, 0));
        self.socket.peek(&mut [0]).expect("an answer to leave");
    }
}

/// A request frame.
pub(crate) fn frame(api: i16, correlation: i32, body: &Writer) -> Vec<u8> {
    let header = Writer {
        bytes: Vec::new(),
        version: body.version,
        flexible: false,
    };
    let mut header = header
        .int16(api)
        .int16(body.version)
        .int32(correlation)
        .string("test");
    header.flexible = body.flexible;
    let header = header.end().bytes;
    let length = (header.len() + body.bytes.len()) as i32;
    [&length.to_be_bytes(), &header[..], &body.bytes].concat()
}

/// A record batch of one record per value.
pub(crate) fn batch(values: &[&[u8]]) -> Vec<u8> {
    batch_from(-1, -1, -1, values)
}

/// A record batch of an idempotent producer.
pub(crate) fn batch_from(id: i64, epoch: i16, sequence: i32, values: &[&[u8]]) -> Vec<u8> {
    const TIMESTAMP: i64 = 1_000;
    let count = values.len() as i32;
    let empty = || Writer::body(-1, 0);
    let zigzag = |value: i32| ((value << 1) ^ (value >> 31)) as u32;
    let mut records = empty();
    for (delta, value) in (0..).zip(values) {
        let record = empty()
            .int8(0)
            .varint(zigzag(0))
            .varint(zigzag(delta))
            .varint(zigzag(-1))
            .varint(zigzag(value.len() as i32))
            .raw(value)
            .varint(zigzag(0));
        records = records
            .varint(zigzag(record.bytes.len() as i32))
            .raw(&record.bytes);
    }
    let checked = empty()
        .int16(0)
        .int32(count - 1)
        .int64(TIMESTAMP)
        .int64(TIMESTAMP)
        .int64(id)
        .int16(epoch)
        .int32(sequence)
        .int32(count)
        .raw(&records.bytes);
    empty()
        .int64(0)
        .int32(checked.bytes.len() as i32 + 9)
        .int32(0)
        .int8(2)
        .int32(crc32c::crc32c(&checked.bytes) as i32)
        .raw(&checked.bytes)
        .bytes
}
