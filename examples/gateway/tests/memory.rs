//! What clients cost a node that is a process of its own: idle ones, slow ones, parked ones, and such as do not read.

mod support;

use std::net::SocketAddr;
use std::time::Duration;
use support::{get, post, start_process};
use testing::program::Program;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Connects `count` clients that each send `bytes`, and keeps them. Returns how much memory each takes of the node.
async fn cost(node: &Program, address: SocketAddr, what: &str, count: usize, bytes: &str) -> u64 {
    let before = node.resident_memory();
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = TcpStream::connect(address).await.expect("it listens");
        // The node may read less than this sends.
        let sent = client.write_all(bytes.as_bytes());
        let _ = timeout(Duration::from_millis(50), sent).await;
        clients.push(client);
    }
    sleep(Duration::from_secs(2)).await;
    let each = node.resident_memory().saturating_sub(before) / count as u64;
    println!("| {what} | {count} | {} KB |", each / 1_000);
    each
}

/// (In a node of its own: what these clients have left would serve the next ones.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_within_a_body_takes_little_more_than_the_body() {
    let (node, address) = start_process();
    let half = format!(
        "POST /topics/half HTTP/1.1\r\nhost: x\r\ncontent-length: 65536\r\n\r\n{}",
        "x".repeat(65_535)
    );
    let body = cost(&node, address, "a body but for its last byte", 300, &half).await;
    assert!(body < 250_000, "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_takes_much_memory() {
    let (node, address) = start_process();
    for _ in 0..100 {
        let posted = post(address, "/topics/full", vec![b'x'; 65_536]).await;
        assert_eq!(posted.status, 201);
    }
    // Fetched and kept once for all.
    assert_eq!(get(address, "/topics/full?after=0").await.status, 200);
    let head = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    let idle = cost(&node, address, "idle", 300, "").await;
    let slow = cost(&node, address, "one byte of a head", 300, "G").await;
    let poll = head("/topics/empty?after=0&wait=30");
    let parked = cost(&node, address, "a parked poll", 300, &poll).await;
    let greedy = head("/topics/full?after=0").repeat(500);
    let greedy = cost(&node, address, "500 asked, nothing read", 100, &greedy).await;
    assert!(idle.max(slow).max(parked) < 100_000);
    assert!(greedy < 500_000, "{greedy}");
}
