//! The example long-poll server as its clients see it: the real program, over sockets.
//!
//! `cargo test` builds that program; `cargo test --test long_poll_example` alone takes the one that was built last.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{PATIENCE, eventually};

/// The program, which `cargo test` has built beside this test.
fn command() -> Command {
    let mut path = std::env::current_exe().expect("path of the test");
    // target/<profile>/deps/<test> -> target/<profile>/examples/long_poll
    path.pop();
    path.pop();
    path.push("examples");
    path.push(format!("long_poll{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "{} is missing: run the whole 'cargo test', or 'cargo build --example long_poll' first",
        path.display()
    );
    Command::new(path)
}

/// A server on a free port. Killed when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let mut child = command()
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the server");
        let mut first = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut first)
            .expect("read the first line");
        let address = first.trim().strip_prefix("listening on ");
        let address = address.and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address in {first:?}"));
        Self { child, address }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).expect("connect");
        let timeout = socket.set_read_timeout(Some(PATIENCE));
        timeout.expect("the timeout is not zero");
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        socket.write_all(request.as_bytes()).expect("send");
        socket
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        receive(self.send(method, path, body))
    }

    fn wait_for_parked(&self, count: usize) {
        let expected = (200, format!("{count}\n"));
        eventually("so many parked requests", || {
            self.ask("GET", "/parked", "") == expected
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status and the body of an answer.
fn receive(mut socket: TcpStream) -> (u16, String) {
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}

#[test]
fn a_request_waits_for_the_message_that_it_asks_for() {
    let server = Server::start();
    let (all, second) = ("/topics/a?wait=30s", "/topics/a?after=1&wait=30s");
    let waiting = [all, second].map(|path| server.send("GET", path, ""));
    server.wait_for_parked(2);
    let [first, other] = waiting;
    assert_eq!(
        server.ask("POST", "/topics/b", "elsewhere"),
        (201, "1\n".into())
    );
    assert_eq!(server.ask("POST", "/topics/a", "one"), (201, "1\n".into()));
    assert_eq!(receive(first), (200, "1 one\n".into()));
    server.wait_for_parked(1);
    assert_eq!(server.ask("POST", "/topics/a", "two"), (201, "2\n".into()));
    assert_eq!(receive(other), (200, "2 two\n".into()));
    assert_eq!(server.ask("GET", all, ""), (200, "1 one\n2 two\n".into()));
    server.wait_for_parked(0);
}

#[test]
fn a_wait_ends_with_its_time_or_with_its_client() {
    let server = Server::start();
    let begun = Instant::now();
    let empty = server.ask("GET", "/topics/a?wait=50ms", "");
    assert_eq!(empty, (204, String::new()));
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert_eq!(server.ask("GET", "/topics/a?wait=soon", "").0, 400);

    let leaving = server.send("GET", "/topics/a?wait=300s", "");
    server.wait_for_parked(1);
    leaving.shutdown(Shutdown::Both).expect("it is open");
    drop(leaving);
    server.wait_for_parked(0);
}

#[test]
fn a_small_load_is_answered_whole() {
    let output = command().args(["--load", "200"]).output();
    let output = output.expect("run the load");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout.contains("200 requests parked"), "{stdout}");
    assert!(stdout.contains("left: 0 parked, 0 watches"), "{stdout}");
}

#[test]
fn nonsense_is_refused() {
    for arguments in [
        &[][..],
        &["--load", "0"],
        &["--load"],
        &["--listen", "nowhere"],
    ] {
        let output = command().args(arguments).output().expect("run it");
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}
