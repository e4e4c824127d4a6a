//! What one client may take of a node.

mod support;

use gateway::gateway::Patience;
use gateway::store::MemoryStore;
use std::time::{Duration, Instant};
use support::{LONG, Node, eventually, get, is_served, post, print_row, settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

fn patience() -> Patience {
    let short = Duration::from_millis(800);
    Patience {
        head: short,
        body: short,
        unread: short,
    }
}

async fn node(store: &MemoryStore) -> Node {
    let mut settings = settings();
    settings.patience = patience();
    Node::start_with(store, settings).await
}

/// Whether the node has closed the connection, reading what it has sent before.
async fn is_closed(client: &mut TcpStream) -> bool {
    let mut bytes = [0; 64 * 1024];
    let read = async { while client.read(&mut bytes).await.is_ok_and(|count| count > 0) {} };
    timeout(LONG, read).await.is_ok()
}

#[tokio::test]
async fn f8_a_head_that_does_not_end_and_an_idle_connection_are_closed() {
    let node = node(&MemoryStore::new()).await;
    let mut closed = Vec::new();
    for sent in ["G", "", "GET /stats HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut client = TcpStream::connect(node.address).await.expect("it listens");
        client.write_all(sent.as_bytes()).await.expect("it reads");
        let start = Instant::now();
        assert!(is_closed(&mut client).await, "{sent:?}");
        assert!(start.elapsed() >= Duration::from_millis(500), "{sent:?}");
        closed.push(start.elapsed());
    }
    let then = format!("closed after {closed:.1?}");
    print_row(
        "a head that does not end",
        1,
        0,
        is_served(&node).await,
        then,
    );
    // One that waits for an answer is not idle.
    let poll = get(node.address, "/topics/a?after=0&wait=2").await;
    assert_eq!(poll.status, 204);
}

/// A client that has little room for what it has not read.
async fn narrow_client(node: &Node) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("there is a file");
    socket.set_recv_buffer_size(16 * 1024).expect("it may");
    socket.connect(node.address).await.expect("it listens")
}

/// What a client that sends these bytes, and then reads, is answered until the node closes.
async fn answer(node: &Node, bytes: &[u8]) -> String {
    let mut client = TcpStream::connect(node.address).await.expect("it listens");
    client.write_all(bytes).await.expect("it reads");
    let mut answer = Vec::new();
    let read = timeout(LONG, client.read_to_end(&mut answer)).await;
    // The node may close before it has read all.
    drop(read.expect("it closes"));
    String::from_utf8(answer).expect("it is text")
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let node = node(&MemoryStore::new()).await;
    let head = |headers: usize, length: usize| {
        let header = format!("x: {}\r\n", "y".repeat(length));
        format!("GET /stats HTTP/1.1\r\n{}\r\n", header.repeat(headers))
    };
    for (headers, length, status) in [(64, 100, "200"), (65, 100, "431"), (1, 20_000, "431")] {
        let answer = answer(&node, head(headers, length).as_bytes()).await;
        let is_it = answer.starts_with(&format!("HTTP/1.1 {status} "));
        assert!(is_it, "{headers} of {length} bytes: {answer}");
    }
}

#[tokio::test]
async fn a_body_that_stops_is_refused() {
    let mut settings = settings();
    // Nothing else closes it in time.
    settings.patience = Patience {
        head: 100 * LONG,
        unread: 100 * LONG,
        ..patience()
    };
    let node = Node::start_with(&MemoryStore::new(), settings).await;
    let half = b"POST /topics/a HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf";
    let answer = answer(&node, half).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(node.gateway.stats().posts, 0);
}

#[tokio::test]
async fn f8_a_client_that_pipelines_and_leaves_takes_its_wait_along() {
    let node = node(&MemoryStore::new()).await;
    let mut client = TcpStream::connect(node.address).await.expect("it listens");
    let ask = "GET /topics/a?after=0&wait=60 HTTP/1.1\r\nhost: x\r\n\r\n";
    client
        .write_all(ask.repeat(3).as_bytes())
        .await
        .expect("it reads");
    node.parked(1).await;
    drop(client);
    let gone = Instant::now();
    node.parked(0).await;
    let then = format!("its wait ended after {:.1?}", gone.elapsed());
    // What is sent to it then shows that there is no one: it may take one more wait.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(node.gateway.stats().parked, 0, "nor the next ones");
    let served = is_served(&node).await;
    print_row("pipelines and leaves", 1, 0, served, then);
}

/// Before the node has read the request, while it waits, and while the answer is on its way.
#[tokio::test]
async fn who_closes_the_sending_half_is_answered_whenever_that_is() {
    let node = Node::start(&MemoryStore::new()).await;
    let post = "POST /topics/a HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx";
    let poll = |topic: &str, after: u64| {
        format!("GET /topics/{topic}?after={after}&wait=60 HTTP/1.1\r\nhost: x\r\n\r\n")
    };
    // Sends all, and closes when so many polls are parked, or after so many microseconds. What it is answered.
    let ask = async |requests: String, parked: usize, micros: u64| {
        let mut client = TcpStream::connect(node.address).await.expect("it listens");
        let sent = client.write_all(requests.as_bytes()).await;
        sent.expect("it reads");
        sleep(Duration::from_micros(micros)).await;
        if parked > 0 {
            node.parked(parked).await;
        }
        client.shutdown().await.expect("it is open");
        let mut answers = String::new();
        let read = timeout(LONG, client.read_to_string(&mut answers)).await;
        read.expect("it closes").expect("it is not reset");
        let statuses = answers.split("HTTP/1.1 ").skip(1);
        statuses.map(|it| it[..3].to_owned()).collect::<Vec<_>>()
    };
    for round in 0..40_u64 {
        assert_eq!(ask(post.into(), 0, 50 * round).await, ["201"], "{round}");
        // There is an event, though this node has yet to learn of it; and more come.
        let topic = format!("t{round}");
        let new = post.replace("/a", &format!("/{topic}"));
        let both = [new, poll(&topic, 0)].concat();
        assert_eq!(ask(both, 0, 50 * round).await, ["201", "200"], "{round}");
    }
    let polls = async |parked, micros| {
        let begun = Instant::now();
        let answers = ask(poll("none", 0), parked, micros).await;
        (answers, begun.elapsed() < Duration::from_secs(20))
    };
    for (parked, micros) in [(0, 0), (0, 300), (1, 0)] {
        assert_eq!(polls(parked, micros).await, (vec!["204".into()], true));
        assert_eq!(node.gateway.stats().parked, 0);
    }
    // Several at once; and one whose news come within the second.
    let three = [post, &poll("none", 0), post].concat();
    assert_eq!(ask(three, 1, 0).await, ["201", "204", "201"]);
    let news = async {
        node.parked(1).await;
        sleep(Duration::from_millis(50)).await;
        support::post(node.address, "/topics/none", "x").await
    };
    let (answers, posted) = tokio::join!(ask(poll("none", 0), 1, 0), news);
    assert_eq!((answers, posted.status.as_u16()), (vec!["200".into()], 201));
    // A part of a request is none, and a part of a body is refused.
    assert_eq!(ask(post[..30].into(), 0, 0).await, [""; 0]);
    let cut = post.replace("length: 1", "length: 2");
    assert_eq!(ask(cut, 0, 0).await, ["400"]);
    // A long answer, of which the client has read nothing yet.
    let long = support::post(node.address, "/topics/long", vec![b'x'; 65_536]).await;
    assert_eq!(long.status, 201);
    let mut client = narrow_client(&node).await;
    let sent = client.write_all(poll("long", 0).as_bytes()).await;
    sent.expect("it reads");
    sleep(Duration::from_millis(300)).await;
    client.shutdown().await.expect("it is open");
    sleep(Duration::from_millis(300)).await;
    let mut answer = String::new();
    let read = timeout(LONG, client.read_to_string(&mut answer)).await;
    read.expect("it closes").expect("it is not reset");
    assert!(answer.contains("200 OK") && answer.ends_with("\"}]}"));
}

#[tokio::test]
async fn f8_a_client_that_does_not_read_is_cut_off() {
    let store = MemoryStore::new();
    let node = node(&store).await;
    for _ in 0..100 {
        assert_eq!(
            post(node.address, "/topics/a", vec![b'x'; 65_536])
                .await
                .status,
            201
        );
    }
    // As many as fit are answered, and the position leads to the rest.
    let first = get(node.address, "/topics/a?after=0").await;
    let length = first.json()["events"].as_array().map(Vec::len);
    assert!(length.is_some_and(|it| (1..=4).contains(&it)), "{length:?}");
    let mut client = narrow_client(&node).await;
    let ask = "GET /topics/a?after=0 HTTP/1.1\r\nhost: x\r\n\r\n";
    client
        .write_all(ask.repeat(200).as_bytes())
        .await
        .expect("it reads");
    // (It answers no more of them than the buffers take.)
    sleep(Duration::from_secs(2)).await;
    let mut sent = Vec::new();
    let read = timeout(LONG, client.read_to_end(&mut sent)).await;
    drop(read.expect("it was closed"));
    assert!(sent.len() < 512 * 1024, "{} bytes", sent.len());
    let then = format!("closed after {} bytes of 50 MB", sent.len());
    let served = is_served(&node).await;
    print_row("200 asked, nothing read", 1, 0, served, then);
}

/// Each byte that it takes shows that it is there.
#[tokio::test]
async fn a_client_that_reads_slowly_is_served() {
    const ANSWERS: usize = 10;
    let node = node(&MemoryStore::new()).await;
    for _ in 0..3 {
        let posted = post(node.address, "/topics/a", vec![b'x'; 65_536]).await;
        assert_eq!(posted.status, 201);
    }
    let mut client = narrow_client(&node).await;
    let ask = "GET /topics/a?after=0 HTTP/1.1\r\nhost: x\r\n\r\n";
    client
        .write_all(ask.repeat(ANSWERS).as_bytes())
        .await
        .expect("it reads");
    let (mut read, mut bytes) = (0, vec![0; 16 * 1024]);
    let start = Instant::now();
    while read < ANSWERS * 3 * 65_536 {
        let more = timeout(LONG, client.read(&mut bytes)).await;
        let more = more.expect("in time").expect("it is not cut off");
        assert_ne!(more, 0, "it is not cut off after {read} bytes");
        read += more;
        sleep(Duration::from_millis(15)).await;
    }
    assert!(
        start.elapsed() > Duration::from_millis(1_600),
        "it was slow"
    );
}

#[tokio::test]
async fn f8_one_connection_more_than_there_is_room_for_waits_its_turn() {
    let mut settings = settings();
    settings.max_polls = 1;
    let node = Node::start_with(&MemoryStore::new(), settings).await;
    // 65 are served.
    let mut served = Vec::new();
    for _ in 0..65 {
        served.push(TcpStream::connect(node.address).await.expect("it listens"));
    }
    let address = node.address;
    let mut late = tokio::spawn(async move { get(address, "/stats").await });
    assert!(
        timeout(Duration::from_millis(500), &mut late)
            .await
            .is_err()
    );
    served.pop();
    let answer = timeout(LONG, late).await.expect("there is room now");
    assert_eq!(answer.expect("no panic").status, 200);
    eventually("the node serves on", || node.gateway.stats().uptime_ms > 0).await;
}

/// They hold every place that there is, and a client that comes then is served when they are closed.
#[tokio::test]
async fn f8_one_byte_on_each_of_all_connections_keeps_no_other_client_out() {
    let mut settings = settings();
    settings.max_polls = 1;
    settings.patience = patience();
    let node = Node::start_with(&MemoryStore::new(), settings).await;
    let (begun, mut held) = (Instant::now(), Vec::new());
    for _ in 0..65 {
        let mut client = TcpStream::connect(node.address).await.expect("it listens");
        client.write_all(b"G").await.expect("there is room");
        held.push(client);
    }
    let asked = Instant::now();
    let answer = timeout(LONG, get(node.address, "/stats")).await;
    assert_eq!(answer.expect("there is room again").status, 200);
    let worst = asked.elapsed();
    let row = "one byte on each of 65 connections, of 65";
    print_row(row, 1, 0, worst, "all are closed");
    assert!(begun.elapsed() >= patience().head, "they held every place");
}
