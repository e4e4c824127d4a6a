//! An RPC client over TCP that reconnects: many calls in flight on one connection, responses in any order.
//!
//! ```text
//! cargo run --release -p examples --bin rpc_client
//! ```
//!
//! [`Requests`] match the responses to the calls by id and time out those that get none. When a connection ends, the
//! calls that were sent on it are told at once, and each is sent again on the next connection with what is left of its
//! time (so they must be idempotent). A frame is two numbers: id and argument.

use request_purgatory::tracker::{RequestError, Requests};
use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The response is `None` if the connection ended before it came.
type Pending = Requests<u64, Option<u64>>;
/// Id, number, deadline.
type Call = (u64, u64, Instant);
/// The calls on a connection that have no response yet, and their deadlines.
type Sent = Mutex<HashMap<u64, Instant>>;
type Failure = Box<dyn Error + Send + Sync>;

static LAST_ID: AtomicU64 = AtomicU64::new(0);
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
struct Client {
    pending: Pending,
    calls: Sender<Call>,
}

impl Client {
    /// Its task ends with the last clone of the client.
    fn new(server: SocketAddr) -> Self {
        let pending = Pending::new("rpc");
        let (calls, to_send) = channel(1_000);
        tokio::spawn(stay_connected(server, pending.clone(), to_send));
        Self { pending, calls }
    }

    async fn square(&self, number: u64, timeout: Duration) -> Result<u64, Failure> {
        let deadline = Instant::now() + timeout;
        loop {
            let id = LAST_ID.fetch_add(1, Ordering::Relaxed);
            let left = deadline.saturating_duration_since(Instant::now());
            // Expected before it is sent, so that no response can overtake that.
            let response = self.pending.request(id, left)?;
            let response = async { Ok::<_, Failure>(response.await?) };
            let call = async { Ok(self.calls.send((id, number, deadline)).await?) };
            // Ends with the first error: at the deadline also where there is no connection, and `calls` is full.
            if let ((), Some(square)) = tokio::try_join!(call, response)? {
                return Ok(square);
            }
        }
    }
}

async fn stay_connected(server: SocketAddr, pending: Pending, mut calls: Receiver<Call>) {
    let mut pause = Duration::from_millis(1);
    while !calls.is_closed() {
        if let Ok(stream) = TcpStream::connect(server).await {
            pause = Duration::from_millis(1);
            let (read, write) = stream.into_split();
            let sent = Sent::default();
            // The connection ends with either, for whatever reason.
            tokio::select! {
                _ = send(write, &mut calls, &sent) => {}
                _ = receive(read, &pending, &sent) => {}
            }
            for id in sent.into_inner().unwrap().into_keys() {
                pending.respond(&id, None); // each is woken at once
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

async fn send(mut to: OwnedWriteHalf, calls: &mut Receiver<Call>, sent: &Sent) -> io::Result<()> {
    while let Some((id, number, deadline)) = calls.recv().await {
        sent.lock().unwrap().insert(id, deadline); // also if the write fails half-way
        if id % 1_000 == 0 {
            // What the server has forgotten need not be remembered here.
            sent.lock()
                .unwrap()
                .retain(|_, deadline| *deadline > Instant::now());
        }
        let frame = [id, number].map(u64::to_be_bytes).concat();
        to.write_all(&frame).await?;
    }
    Ok(())
}

async fn receive(from: OwnedReadHalf, pending: &Pending, sent: &Sent) -> io::Result<()> {
    let mut read = BufReader::new(from);
    loop {
        let (id, square) = (read.read_u64().await?, read.read_u64().await?);
        sent.lock().unwrap().remove(&id);
        pending.respond(&id, Some(square)); // false: it had timed out, and is counted as late
    }
}

/// A server that forgets every tenth number, and ends each connection after 300 calls, whatever is on its way.
async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut read, mut write) = listener.accept().await?.0.into_split();
        CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        for _ in 0..300 {
            let (id, number) = (read.read_u64().await?, read.read_u64().await?);
            let answer = [id, number * number].map(u64::to_be_bytes).concat();
            if number % 10 != 0 {
                write.write_all(&answer).await?;
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (client, mut calls) = (Client::new(listener.local_addr()?), JoinSet::new());
    tokio::spawn(serve(listener));
    for number in 0..2_000 {
        let client = client.clone();
        calls.spawn(async move { (number, client.square(number, Duration::from_secs(2)).await) });
    }
    let (mut answered, mut timed_out) = (0, 0);
    for (number, result) in calls.join_all().await {
        match result {
            Ok(square) if square == number * number => answered += 1,
            Err(error) if error.is::<RequestError>() && number % 10 == 0 => timed_out += 1,
            other => panic!("{number}: {other:?}"),
        }
    }
    let connections = CONNECTIONS.load(Ordering::Relaxed);
    println!("{answered} calls answered, {timed_out} timed out, over {connections} connections");
    assert_eq!((answered, timed_out), (1_800, 200));
    assert!(connections > 1);
    Ok(())
}
