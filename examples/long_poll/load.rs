//! Many clients at once, in this process and over real sockets.

use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Parks `count` requests of clients of its own, each on a socket, appends one message, and awaits all answers.
pub(crate) async fn run(count: usize) -> Result<()> {
    let wanted = 2 * count as u64 + 100; // both ends of each socket are here
    let mut files = rlimit::increase_nofile_limit(wanted)?;
    #[cfg(unix)] // root may go beyond the hard limit
    if files < wanted && rlimit::Resource::NOFILE.set(wanted, wanted).is_ok() {
        files = wanted;
    }
    ensure!(
        files >= wanted,
        "{count} requests need {wanted} open files, {files} are allowed: \
        raise `ulimit -n`, or try --load {}",
        files.saturating_sub(100) / 2
    );
    let (address, server) = super::start("127.0.0.1:0").await?;
    let begun = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut socket = TcpStream::connect(address).await?;
        let request = "GET /topics/load?wait=300s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        socket.write_all(request.as_bytes()).await?;
        clients.push(tokio::spawn(async move {
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await?;
            ensure!(
                answer.starts_with("HTTP/1.1 200") && answer.ends_with("1 go\n"),
                "{answer}"
            );
            Ok(Instant::now())
        }));
    }
    while server.waits.delayed() < count {
        ensure!(
            begun.elapsed() < Duration::from_secs(120),
            "{} are parked",
            server.waits.delayed()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("{count} requests parked in {:.1?}", begun.elapsed());
    let mut socket = TcpStream::connect(address).await?;
    let posted = Instant::now();
    let post = "POST /topics/load HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\ngo";
    socket.write_all(post.as_bytes()).await?;
    let mut took = Vec::new();
    for client in clients {
        took.push(client.await??.duration_since(posted));
    }
    took.sort();
    let (first, half, last) = (took[0], took[count / 2], took[count - 1]);
    println!("from one POST to the answers: first {first:.1?}, half {half:.1?}, last {last:.1?}");
    println!(
        "left: {} parked, {} watches",
        server.waits.delayed(),
        server.waits.watched()
    );
    Ok(())
}
