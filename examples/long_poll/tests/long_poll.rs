//! The long-poll server as its clients see it: the real program, over sockets. (Signals end it in order.)
#![cfg(unix)]

#[path = "long_poll/http.rs"]
mod http;

use http::receive;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use testing::eventually;
use testing::program::{Program, Signal, available, run};

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_long_poll"))
}

/// A server on a free port. Killed when dropped.
struct Server {
    program: Program,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        Self::with(&[])
    }

    fn with(arguments: &[&str]) -> Self {
        let listen = ["--listen", "127.0.0.1:0"];
        let program = Program::start(command().args(listen).args(arguments));
        let address = program.said("listening on ");
        Self { program, address }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        http::send(self.address, method, path, body)
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        http::ask(self.address, method, path, body)
    }

    fn wait_for_parked(&self, count: usize) {
        let expected = (200, format!("{count}\n"));
        eventually("so many parked", || {
            self.ask("GET", "/parked", "") == expected
        });
    }
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
fn one_request_too_many_is_told_to_come_again() {
    let server = Server::with(&["--most", "1"]);
    let waiting = server.send("GET", "/topics/a?wait=300s", "");
    server.wait_for_parked(1);
    let mut refused = String::new();
    let read = server
        .send("GET", "/topics/a?wait=300s", "")
        .read_to_string(&mut refused);
    read.expect("an answer");
    let (head, body) = refused.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 503"), "{refused}");
    let later = head
        .lines()
        .find_map(|line| line.strip_prefix("retry-after: "));
    let later = later.and_then(|seconds| seconds.parse::<u32>().ok());
    assert!(later.is_some_and(|it| (1..=5).contains(&it)), "{refused}");
    assert!(!body.is_empty());
    // What need not wait is served.
    assert_eq!(server.ask("POST", "/topics/a", "one").0, 201);
    assert_eq!(receive(waiting), (200, "1 one\n".into()));
}

/// Before the server has read the request, while it waits, and while the answer is on its way. What `axum::serve` does.
#[test]
fn who_closes_the_sending_half_is_sent_no_more_and_leaves_no_wait() {
    let server = Server::start();
    let half_close = |socket: &TcpStream| socket.shutdown(Shutdown::Write).expect("it is open");
    let received = |mut socket: TcpStream| {
        let mut answer = String::new();
        let read = socket.read_to_string(&mut answer);
        read.expect("it is closed in order");
        answer
    };
    for round in 0..100 {
        let topic = format!("/topics/{round}");
        let post = server.send("POST", &topic, "x");
        let poll = server.send("GET", "/topics/none?wait=300s", "");
        match round % 3 {
            0 => {}
            1 => thread::sleep(Duration::from_micros(20 * round)),
            _ => server.wait_for_parked(1),
        }
        half_close(&post);
        half_close(&poll);
        let posted = received(post);
        let is_whole = posted.starts_with("HTTP/1.1 201") && posted.ends_with("\r\n\r\n1\n");
        assert!(posted.is_empty() || is_whole, "{posted:?}");
        assert_eq!(received(poll), "");
        server.wait_for_parked(0);
        // Done whole or not at all, and done if that was said.
        let (status, found) = server.ask("GET", &topic, "");
        match status {
            200 => assert_eq!(found, "1 x\n"),
            _ => assert_eq!((status, &*posted), (204, "")),
        }
    }
    let long = "x".repeat(2_000_000);
    for _ in 0..4 {
        assert_eq!(server.ask("POST", "/topics/long", &long).0, 201);
    }
    let read = server.send("GET", "/topics/long", "");
    read.peek(&mut [0]).expect("the answer begins");
    half_close(&read);
    thread::sleep(Duration::from_millis(100));
    // If it is cut off, that shows: the head says how long it should be.
    let answer = received(read);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let whole = 4 * (long.len() + 3);
    assert!(head.contains(&format!("content-length: {whole}")), "{head}");
    assert!(body.len() <= whole);
}

/// What is written of `curl` at the head of the example works.
#[test]
fn curl_waits_for_a_message_and_for_nothing() {
    if !available("curl", &["--version"]) {
        return;
    }
    let server = Server::start();
    let address = server.address;
    let curl = |path: &str, more: &[&str]| {
        let url = format!("http://{address}/topics/{path}");
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "50"]);
        command
            .args(["--write-out", "%{http_code}", &url])
            .args(more);
        command.stdout(Stdio::piped());
        command
    };
    let answer = |mut curl: Command| {
        let output = run(&mut curl, "");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let waiting = curl("news?after=1&wait=30s", &[]).spawn();
    let waiting = waiting.expect("start curl");
    server.wait_for_parked(1);
    assert_eq!(answer(curl("news", &["-d", "hello"])), "1\n201");
    server.wait_for_parked(1);
    assert_eq!(answer(curl("news", &["-d", "world"])), "2\n201");
    let output = waiting.wait_with_output().expect("curl ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2 world\n200");
    let both = curl("news?after=0&wait=30s", &[]);
    assert_eq!(answer(both), "1 hello\n2 world\n200");
    assert_eq!(answer(curl("news?after=2&wait=20ms", &[])), "204");
}

#[test]
fn a_small_load_is_answered_whole() {
    let output = command().args(["--load", "200"]).output();
    let output = output.expect("run the load");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout.contains("200 requests parked"), "{stdout}");
    assert!(stdout.contains("left: 0 parked"), "{stdout}");
}

/// Asked to end, the server answers each parked request, and then ends.
#[test]
fn an_orderly_shutdown_answers_what_is_parked() {
    let mut server = Server::start();
    let waiting =
        [1, 2, 3].map(|topic| server.send("GET", &format!("/topics/{topic}?wait=300s"), ""));
    server.wait_for_parked(waiting.len());
    server.program.signal(Signal::TERM);
    for request in waiting {
        assert_eq!(receive(request).0, 503);
    }
    assert!(server.program.wait().success());
}

/// One that does not read the answer, and one that has not sent the whole request.
#[test]
fn an_orderly_shutdown_does_not_wait_long_for_slow_clients() {
    let mut server = Server::start();
    let long = "x".repeat(2_000_000);
    for _ in 0..4 {
        assert_eq!(server.ask("POST", "/topics/long", &long).0, 201);
    }
    let unread = server.send("GET", "/topics/long", "");
    unread.peek(&mut [0]).expect("the answer begins");
    let mut unsent = TcpStream::connect(server.address).expect("connect");
    let part = b"POST /topics/long HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\npart";
    unsent.write_all(part).expect("send");
    let waiting = server.send("GET", "/topics/none?wait=300s", "");
    server.wait_for_parked(1);
    server.program.signal(Signal::TERM);
    assert_eq!(receive(waiting).0, 503);
    assert!(server.program.wait().success());
    drop((unread, unsent));
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
