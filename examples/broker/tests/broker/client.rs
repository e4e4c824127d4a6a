//! A client that sends what it is told to, and reads the answers.

use super::*;
use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

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

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("send");
    }

    /// Sends a request and returns its correlation id.
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
}

pub(crate) fn frame<R: Request>(version: i16, correlation: i32, request: &R) -> Vec<u8> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(Some(StrBytes::from_static_str("test")));
    let mut bytes = BytesMut::new();
    let encoded = header.encode(&mut bytes, R::header_version(version));
    encoded.expect("encode the header");
    let encoded = request.encode(&mut bytes, version);
    encoded.expect("encode the request");
    framed(&bytes)
}

/// Bytes behind their length.
pub(crate) fn framed(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as i32).to_be_bytes()[..], bytes].concat()
}
