//! Many clients at once, in this process. The server is a process of its own, so that both can have a file for each
//! socket.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Files that are open beside the sockets of the load.
const OTHERS: u64 = 100;

/// Parks `count` requests, each on a socket, appends one message, and awaits all answers.
pub(crate) async fn run(count: usize) -> Result<()> {
    let files = rlimit::increase_nofile_limit(count as u64 + OTHERS)?;
    let sockets = usize::try_from(files.saturating_sub(OTHERS))?;
    let (count, asked) = (count.min(sockets).max(1), count);
    if count < asked {
        println!("only {files} open files are allowed (ulimit -Hn): {count} requests, not {asked}");
    }
    let (address, _server) = start().await?;

    let begun = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..count {
        let socket = send(address, "GET /topics/load?wait=300s", "").await?;
        clients.push(tokio::spawn(async move {
            let answer = receive(socket).await?;
            ensure!(answer.ends_with("1 go\n"), "{answer}");
            Ok(Instant::now())
        }));
    }
    while parked(address).await? < count {
        let patience = begun.elapsed() < Duration::from_secs(120);
        ensure!(patience, "not all requests are parked after two minutes");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("{count} requests parked in {:.1?}", begun.elapsed());

    let posted = Instant::now();
    let post = send(address, "POST /topics/load", "go").await?;
    let post = tokio::spawn(async move { receive(post).await.map(|_| posted.elapsed()) });
    let mut took = Vec::new();
    for client in clients {
        took.push(client.await??.duration_since(posted));
    }
    took.sort();
    let (first, half, last) = (took[0], took[count / 2], took[count - 1]);
    println!("from one POST to the answers: first {first:.1?}, half {half:.1?}, last {last:.1?}");
    let checked = post.await??;
    println!("the POST itself, whose check wakes them all, was answered after {checked:.1?}");
    println!("left: {} parked", parked(address).await?);
    Ok(())
}

/// This program as a server, which ends with the load.
async fn start() -> Result<(SocketAddr, Child)> {
    let mut server = Command::new(std::env::current_exe()?)
        .args(["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut first = String::new();
    let stdout = server.stdout.take().context("it is piped")?;
    BufReader::new(stdout).read_line(&mut first).await?;
    let address = first.trim().strip_prefix("listening on ");
    let address = address.with_context(|| format!("no address in {first:?}"))?;
    Ok((address.parse()?, server))
}

async fn parked(address: SocketAddr) -> Result<usize> {
    let answer = receive(send(address, "GET /parked", "").await?).await?;
    let body = answer.lines().last().context("an answer")?;
    Ok(body.parse()?)
}

async fn send(address: SocketAddr, what: &str, body: &str) -> Result<TcpStream> {
    let mut socket = TcpStream::connect(address).await?;
    let length = body.len();
    let head = "HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length:";
    let request = format!("{what} {head} {length}\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).await?;
    Ok(socket)
}

async fn receive(mut socket: TcpStream) -> Result<String> {
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    Ok(answer)
}
