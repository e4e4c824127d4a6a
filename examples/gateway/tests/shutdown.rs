//! An orderly end answers everybody.

mod support;

use gateway::store::MemoryStore;
use std::process::Command;
use std::time::{Duration, Instant};
use support::{LONG, Node, get, print_row, start_process, terminate};
use testing::program::Program;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const POLLS: usize = 300;

#[tokio::test]
async fn every_parked_poll_is_answered_and_none_is_taken_later() {
    let node = Node::start(&MemoryStore::new()).await;
    let polls = (0..POLLS).map(|_| tokio::spawn(get(node.address, "/topics/a?after=0&wait=60")));
    let polls = polls.collect::<Vec<_>>();
    node.parked(POLLS).await;
    node.stop.cancel();
    for poll in polls {
        let answer = timeout(LONG, poll).await.expect("in time");
        let answer = answer.expect("no panic");
        assert_eq!(answer.status, 503);
        assert!(answer.body.contains("shutting down"), "{}", answer.body);
    }
    let served = timeout(LONG, node.served).await.expect("in time");
    served.expect("no panic").expect("an orderly end");
    assert!(TcpStream::connect(node.address).await.is_err());
}

#[tokio::test]
async fn f8_a_client_that_does_not_finish_its_request_does_not_hold_up_the_shutdown() {
    use tokio::io::AsyncWriteExt;
    let node = Node::start(&MemoryStore::new()).await;
    let mut client = TcpStream::connect(node.address).await.expect("it listens");
    let half = b"POST /topics/a HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf";
    client.write_all(half).await.expect("it reads");
    get(node.address, "/stats").await;
    let stopped = Instant::now();
    node.stop.cancel();
    // New clients go elsewhere at once.
    while TcpStream::connect(node.address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(
        !node.served.is_finished(),
        "the half of a post is waited for"
    );
    let served = timeout(LONG, node.served).await.expect("in time");
    let error = served.expect("no panic").expect_err("a client was left");
    assert!(error.to_string().contains("within 1.5s"), "{error}");
    let ended = stopped.elapsed();
    assert!(ended < Duration::from_secs(2), "it ends in 2 s");
    let row = "SIGTERM, and half of a post";
    print_row(row, 0, 0, ended, "the node has ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_sigterm_to_a_process_answers_every_parked_poll() {
    let (node, address) = start_process();
    let polls = (0..POLLS).map(|_| tokio::spawn(get(address, "/topics/a?after=0&wait=60")));
    let polls = polls.collect::<Vec<_>>();
    let parked = async {
        while get(address, "/stats").await.json()["parked"] != POLLS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, parked).await.expect("in time");
    let told = Instant::now();
    let ended = tokio::spawn(terminate(node));
    for poll in polls {
        let answer = timeout(LONG, poll).await.expect("in time");
        assert_eq!(answer.expect("no panic").status, 503);
    }
    let worst = told.elapsed();
    let said = ended.await.expect("no panic");
    let ended = told.elapsed();
    assert!(ended < Duration::from_secs(2), "{ended:?}");
    let then = format!("the node has ended after {ended:.1?}");
    print_row("SIGTERM", POLLS, 0, worst, then);
    assert_eq!(said.len(), 1, "where it listens, and no more: {said:?}");
}

/// Its store accepts and is silent at each of five addresses, which are asked one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_sigterm_ends_a_node_whose_store_does_not_answer() {
    let silent = TcpListener::bind("0.0.0.0:0").await.expect("a free port");
    let port = silent.local_addr().expect("it is bound").port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.args(["serve", "--engine", "nats", "--listen", "127.0.0.1:0"]);
    for host in 1..=5 {
        command.arg(format!("--url=nats://127.0.0.{host}:{port}"));
    }
    let node = Program::start(&mut command);
    let asked = timeout(LONG, silent.accept()).await.expect("in time");
    let _client = asked.expect("it connects");
    let told = Instant::now();
    terminate(node).await;
    let ended = told.elapsed();
    assert!(ended < Duration::from_secs(2), "{ended:?}");
    let row = "SIGTERM before the store has answered";
    print_row(row, 0, 0, ended, "the node has ended");
}
