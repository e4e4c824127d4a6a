//! HTTP by hand: one request on a connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for a part of an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends a request, and leaves its answer to [`receive`].
pub(crate) fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    send_host(address, method, path, body, "localhost")
}

fn send_host(address: SocketAddr, method: &str, path: &str, body: &str, host: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("connect");
    let timeout = socket.set_read_timeout(Some(PATIENCE));
    timeout.expect("the timeout is not zero");
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).expect("send");
    socket
}

/// The status and the body of an answer. (Not every server closes the connection after it.)
pub(crate) fn receive(socket: TcpStream) -> (u16, String) {
    let mut socket = BufReader::new(socket);
    let mut status = None;
    let mut length = None;
    loop {
        let mut line = String::new();
        socket.read_line(&mut line).expect("a line of the head");
        let line = line.trim_end().to_ascii_lowercase();
        if status.is_none() {
            let word = line.split(' ').nth(1);
            status = Some(word.and_then(|word| word.parse().ok()).expect("a status"));
        } else if let Some(bytes) = line.strip_prefix("content-length:") {
            length = Some(bytes.trim().parse::<u64>().expect("a length"));
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = String::new();
    let read = socket
        .take(length.unwrap_or(u64::MAX))
        .read_to_string(&mut body);
    read.expect("a body");
    (status.expect("a status"), body)
}

pub(crate) fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    receive(send(address, method, path, body))
}

/// The same, as one that has found the server by another name.
#[allow(
    dead_code,
    reason = "not every test that includes this has servers with names"
)]
pub(crate) fn ask_host(address: SocketAddr, method: &str, path: &str, host: &str) -> (u16, String) {
    receive(send_host(address, method, path, "", host))
}
