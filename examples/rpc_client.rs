//! An RPC client over TCP that reconnects: many calls in flight on one connection, responses in any order.
//!
//! ```text
//! cargo run --release -p examples --bin rpc_client
//! ```
//!
//! [`Requests`] match the responses to the calls by id and time out those that get none. When a connection ends, the calls
//! that were sent on it are told at once, and each is sent again on the next connection with what is left of its time (so
//! they must be idempotent). A frame is two numbers of 8 bytes: the id of the call, and what is to be squared.

use request_purgatory::tracker::{RequestError, Requests};
use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The connection ended before the response came.
#[derive(Clone, Copy)]
struct Lost;

type Pending = Requests<u64, Result<u64, Lost>>;
type Frame = (u64, u64);

#[derive(Clone)]
struct Client {
    pending: Pending,
    outgoing: Sender<Frame>,
    last_id: Arc<AtomicU64>,
}

impl Client {
    /// Connects when there is something to send. The task ends with the last clone of the client.
    fn new(server: SocketAddr, connections: Arc<AtomicU64>) -> Result<Self, Box<dyn Error>> {
        let pending = Pending::builder("rpc").max_parked(100_000).build()?;
        let (outgoing, frames) = channel(1_000);
        tokio::spawn(stay_connected(server, pending.clone(), frames, connections));
        Ok(Self {
            pending,
            outgoing,
            last_id: Arc::default(),
        })
    }

    async fn square(&self, number: u64, timeout: Duration) -> Result<u64, RequestError> {
        let deadline = Instant::now() + timeout;
        loop {
            let id = self.last_id.fetch_add(1, Ordering::Relaxed);
            let left = deadline.saturating_duration_since(Instant::now());
            // Expected before it is sent, so that no response can overtake that; dropped with this future.
            let response = self
                .pending
                .request(id, left)
                .map_err(|_| RequestError::ShutDown)?;
            self.outgoing
                .send((id, number))
                .await
                .map_err(|_| RequestError::ShutDown)?;
            match response.await? {
                Ok(square) => return Ok(square),
                Err(Lost) => {} // once more
            }
        }
    }
}

async fn stay_connected(
    server: SocketAddr,
    pending: Pending,
    mut frames: Receiver<Frame>,
    connections: Arc<AtomicU64>,
) {
    let mut pause = Duration::from_millis(1);
    while !frames.is_closed() {
        let mut sent = HashSet::new();
        if let Ok(stream) = TcpStream::connect(server).await {
            connections.fetch_add(1, Ordering::Relaxed);
            pause = Duration::from_millis(1);
            // Whether it ends with an error or not: what counts is that it ends.
            let _ = exchange(stream, &pending, &mut frames, &mut sent).await;
        }
        for id in sent {
            pending.respond(&id, Err(Lost));
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// Writes calls and reads responses until the connection ends. `sent` is what has no response yet.
async fn exchange(
    stream: TcpStream,
    pending: &Pending,
    frames: &mut Receiver<Frame>,
    sent: &mut HashSet<u64>,
) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    // A task of its own, since reading half a frame must not be cancelled.
    let (respond, mut responses) = channel(1_000);
    tokio::spawn(async move {
        let mut read = BufReader::new(read);
        while let Ok(response) = read_frame(&mut read).await {
            if respond.send(response).await.is_err() {
                break;
            }
        }
    });
    loop {
        tokio::select! {
            frame = frames.recv() => {
                let Some((id, number)) = frame else { return Ok(()) };
                sent.insert(id); // also if the write fails half-way
                write.write_all(&[id.to_be_bytes(), number.to_be_bytes()].concat()).await?;
            }
            response = responses.recv() => {
                let Some((id, square)) = response else { return Ok(()) };
                sent.remove(&id);
                pending.respond(&id, Ok(square)); // false: it had timed out, and is counted as late
            }
        }
    }
}

async fn read_frame(read: &mut BufReader<impl tokio::io::AsyncRead + Unpin>) -> io::Result<Frame> {
    Ok((read.read_u64().await?, read.read_u64().await?))
}

/// A server that forgets every tenth number, and ends each connection after 300 calls, some of them unanswered.
async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (read, mut write) = listener.accept().await?.0.into_split();
        let mut read = BufReader::new(read);
        for _ in 0..300 {
            let Ok((id, number)) = read_frame(&mut read).await else {
                break;
            };
            let answer = [id.to_be_bytes(), (number * number).to_be_bytes()].concat();
            if number % 10 != 0 && write.write_all(&answer).await.is_err() {
                break;
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(serve(listener));
    let connections = Arc::new(AtomicU64::new(0));
    let client = Client::new(server, connections.clone())?;

    let mut calls = JoinSet::new();
    for number in 0..2_000 {
        let client = client.clone();
        calls.spawn(async move { (number, client.square(number, Duration::from_secs(2)).await) });
    }
    let (mut answered, mut timed_out) = (0, 0);
    for (number, result) in calls.join_all().await {
        match result {
            Ok(square) => {
                assert_eq!(square, number * number, "another call's response");
                answered += 1;
            }
            Err(error) => {
                assert_eq!(
                    (error, number % 10),
                    (RequestError::TimedOut, 0),
                    "only what the server forgets"
                );
                timed_out += 1;
            }
        }
    }
    let connections = connections.load(Ordering::Relaxed);
    println!("{answered} calls answered, {timed_out} timed out, over {connections} connections");
    assert_eq!((answered, timed_out), (1_800, 200));
    assert!(connections > 1);
    assert!(client.pending.is_empty());
    Ok(())
}
