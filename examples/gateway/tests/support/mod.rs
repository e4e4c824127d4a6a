//! Nodes within the test, and clients.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test uses its part, and has no users"
)]

use gateway::cpu::Cpu;
use gateway::gateway::{Gateway, Patience, Settings};
use gateway::node;
use gateway::store::{MemoryStore, Store};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use request_purgatory_cluster::Config;
use std::fmt::Display;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testing::program::{Program, Signal};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longer than anything takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(20);

pub struct Node {
    pub gateway: Arc<Gateway>,
    pub address: SocketAddr,
    pub stop: CancellationToken,
    pub served: JoinHandle<anyhow::Result<()>>,
}

pub fn settings() -> Settings {
    Settings {
        name: "node".into(),
        max_wait: Duration::from_secs(60),
        max_polls: 10_000,
        patience: Patience::default(),
        cluster: Config::default(),
        cpu: Cpu::Process,
        deaf: None,
    }
}

impl Node {
    pub async fn start(store: &MemoryStore) -> Self {
        Self::start_with(store, settings()).await
    }

    pub async fn start_with(store: &MemoryStore, settings: Settings) -> Self {
        let store = Store::Memory(store.clone());
        let gateway = Gateway::start(store, settings).expect("in a runtime");
        let listener = node::listen("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let stop = CancellationToken::new();
        let served = tokio::spawn(node::run(listener, gateway.clone(), stop.clone()));
        Self {
            gateway,
            address,
            stop,
            served,
        }
    }

    pub async fn parked(&self, polls: usize) {
        eventually("the polls are parked", || {
            self.gateway.stats().parked == polls
        })
        .await;
    }
}

/// A node on an engine in memory that is a process of its own, and where it listens.
pub fn start_process() -> (Program, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.args(["serve", "--engine", "memory", "--listen", "127.0.0.1:0"]);
    let node = Program::start(&mut command);
    let address = node.said("listening on http://");
    (node, address)
}

/// SIGTERM. Waits until the node has ended in order, and returns what it has said.
pub async fn terminate(mut node: Program) -> Vec<String> {
    node.signal(Signal::TERM);
    let ended = tokio::task::spawn_blocking(move || {
        assert!(node.wait().success());
        node.stdout.all()
    });
    ended.await.expect("an orderly end")
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn position(&self) -> String {
        let position = self.json()["position"].as_str().map(str::to_owned);
        position.expect("a position")
    }
}

pub async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: impl Into<Bytes>,
) -> Result<Answer, hyper::Error> {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let (mut requests, driver) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(driver);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", address.to_string())
        .body(Full::new(body.into()))
        .expect("the request is sound");
    let response = requests.send_request(request).await?;
    let (head, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).expect("it is text"),
    })
}

pub async fn get(address: SocketAddr, path: &str) -> Answer {
    let answer = request(address, "GET", path, "").await;
    answer.expect("it is answered")
}

pub async fn post(address: SocketAddr, path: &str, body: impl Into<Bytes>) -> Answer {
    let answer = request(address, "POST", path, body).await;
    answer.expect("it is answered")
}

/// A row of the table that `.ci/cluster-faults` prints: how many waited beside the fault, how many were lost, the worst
/// answer, and what became of the fault.
pub fn print_row(row: &str, waits: usize, lost: usize, worst: Duration, then: impl Display) {
    println!("| F8 {row} | gateway | {waits} | {lost} | {worst:.1?} | {then} |");
}

/// A poll of another client, which an event ends. Returns how long it took after the event.
pub async fn is_served(node: &Node) -> Duration {
    let poll = tokio::spawn(get(node.address, "/topics/served?after=0&wait=60"));
    node.parked(1).await;
    let posted = Instant::now();
    let event = post(node.address, "/topics/served", "hello").await;
    assert_eq!(event.status, StatusCode::CREATED);
    let answer = tokio::time::timeout(LONG, poll).await.expect("in time");
    assert_eq!(answer.expect("no panic").status, StatusCode::OK);
    posted.elapsed()
}

pub async fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < LONG, "{what}: not within {LONG:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
