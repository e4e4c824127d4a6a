//! Idle timeouts: a server closes each connection that has been silent for too long.
//!
//! ```text
//! cargo run --release -p examples --bin timeouts
//! ```
//!
//! A [`Timer`] hands a payload out when its time has passed. Here every connection starts one and moves it with each
//! line that it reads: a move takes one short lock, allocates nothing and wakes no thread, however many connections
//! there are. What is handed out is the side of a channel that tells the connection's task to end.

use request_purgatory::Timer;
use request_purgatory::timer::TimerId;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const IDLE: Duration = Duration::from_millis(600);

type IdleTimer = Timer<oneshot::Sender<()>>;

/// Stops the timer, however its connection ends.
struct Running(Arc<IdleTimer>, TimerId);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.stop(self.1);
    }
}

/// Echoes lines until the client ends the connection, or is silent for too long.
async fn serve(stream: TcpStream, timer: Arc<IdleTimer>) -> io::Result<()> {
    let (expired, mut idle) = oneshot::channel();
    let id = timer.start(IDLE, expired).map_err(io::Error::other)?; // full, or shut down
    let running = Running(timer, id);
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line?,
            _ = &mut idle => return write.write_all(b"idle for too long\n").await,
        };
        let Some(line) = line else { return Ok(()) };
        if !running.0.reschedule(running.1, IDLE) {
            continue; // it has just fired: `idle` says so next
        }
        write.write_all(format!("{line}\n").as_bytes()).await?;
    }
}

/// Sends a line now and then, `count` of them, then falls silent. Returns what it was told last.
async fn client(server: SocketAddr, count: usize) -> io::Result<String> {
    let (read, mut write) = TcpStream::connect(server).await?.into_split();
    let mut lines = BufReader::new(read).lines();
    for number in 0..count {
        tokio::time::sleep(IDLE / 6).await;
        write
            .write_all(format!("line {number}\n").as_bytes())
            .await?;
        let echo = lines.next_line().await?;
        assert_eq!(
            echo.as_deref(),
            Some(&*format!("line {number}")),
            "closed too early"
        );
    }
    let last = lines.next_line().await?;
    last.ok_or_else(|| io::Error::other("closed without a word"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let on_expiry = |connection: oneshot::Sender<()>| {
        let _ = connection.send(()); // it may have ended just now
    };
    let timer = Arc::new(Timer::builder("idle").build(on_expiry)?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let accepting = tokio::spawn({
        let timer = timer.clone();
        async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, timer.clone()));
            }
        }
    });

    // Those that talk for longer than the timeout keep their connections by it; in the end all fall silent.
    let mut clients = JoinSet::new();
    for number in 0..100 {
        clients.spawn(client(server, number % 10));
    }
    let told = clients
        .join_all()
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    assert!(told.iter().all(|line| line == "idle for too long"));
    let stats = timer.stats();
    println!(
        "{} connections closed when they were idle for {IDLE:?}, none before",
        stats.expired
    );
    println!("latest: {:.1?} after its deadline", stats.lateness_max);
    assert_eq!((stats.expired, stats.parked), (100, 0));

    accepting.abort();
    tokio::task::spawn_blocking(move || timer.shutdown()).await?; // it joins threads
    Ok(())
}
