//! A node on a socket: what one client may take of it, and an orderly end.

use crate::api;
use crate::connection::Connection;
use crate::gateway::{Client, Gateway};
use anyhow::{Context, Result, bail};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioTimer;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Connections that the system holds until they are accepted. When a node dies, its clients come here all at once.
const BACKLOG: u32 = 4_096;
/// How long clients may take to read what they are answered with at the shutdown.
const FAREWELL: Duration = Duration::from_millis(1_500);
/// What hyper holds of a connection in each direction, beside one answer. A head must fit.
const BUFFER: usize = 16 * 1024;
/// What the system holds of answers that a client does not read.
const SEND_BUFFER: u32 = 64 * 1024;
/// Before a client is accepted again, where there was no file for it: this long, then twice as long, up to 20 times.
const PAUSE: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);
/// Files that are no connections of clients.
const FILES: u64 = 128;

/// Listens at the first address that `listen` names.
///
/// # Errors
/// It names none, or the system refuses it.
pub async fn listen(listen: &str) -> Result<TcpListener> {
    let bind = async || {
        let address = lookup_host(listen).await?.next();
        let address = address.context("the name has no address")?;
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        socket.set_reuseaddr(true)?;
        // Accepted connections have what the listening one has.
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.bind(address)?;
        anyhow::Ok(socket.listen(BACKLOG)?)
    };
    bind()
        .await
        .with_context(|| format!("cannot listen at {listen} (`--listen`)"))
}

/// Serves until `stop` is cancelled; then takes no more connections, answers every parked poll, and returns when the
/// answers are sent.
///
/// # Errors
/// Clients did not finish their requests, or read their answers, within 1.5 s. They are cut off.
pub async fn run(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    stop: CancellationToken,
) -> Result<()> {
    let patience = gateway.patience();
    let service = TowerToHyperService::new(api::router(gateway.clone()));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .half_close(true)
        .header_read_timeout(patience.head)
        .max_buf_size(BUFFER)
        .max_headers(64);
    // One file each. A client that comes when all are taken waits in the backlog until one is free.
    let (files, _) = rlimit::getrlimit(rlimit::Resource::NOFILE)?;
    let most = files.saturating_sub(FILES).max(1);
    let most = usize::try_from(most)
        .unwrap_or(usize::MAX)
        .min(gateway.max_connections());
    let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let graceful = GracefulShutdown::new();
    let mut clients = JoinSet::new();
    // How many clients in a row were not accepted.
    let mut troubles = 0_u32;
    let mut told = None;
    loop {
        let accepted = async {
            let room = room.clone().acquire_owned().await?;
            anyhow::Ok((listener.accept().await, room))
        };
        let (accepted, room) = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = clients.join_next() => continue,
            accepted = accepted => accepted?,
        };
        let (socket, _) = match accepted {
            Ok(accepted) => {
                troubles = 0;
                accepted
            }
            // The client has gone before it was its turn.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                // No file, or no memory: there may be one in a moment. It is told once in a second at most.
                if told.is_none_or(|told: Instant| told.elapsed() >= SECOND) {
                    told = Some(Instant::now());
                    eprintln!("gateway: no client is accepted: {error}; trying again");
                }
                troubles += 1;
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep(PAUSE * troubles.min(20)) => continue,
                }
            }
        };
        let Ok(connection) = Connection::new(socket, patience.unread) else {
            continue;
        };
        let (watch, client) = (connection.watch(), Client::default());
        let (service, asks) = (service.clone(), client.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(asks.clone());
            service.call(request)
        });
        let serve = graceful.watch(http.serve_connection(connection, service));
        clients.spawn(async move {
            let closed = async {
                watch.is_closed().await;
                client.sends_no_more.cancel();
                // Its answer ends the connection.
                std::future::pending().await
            };
            tokio::select! {
                // The client has left, or its request makes no sense: there is no one to tell.
                _ = serve => {}
                () = watch.is_stuck() => {}
                () = closed => {}
            }
            drop(room);
        });
    }
    drop(listener);
    gateway.shut_down();
    if timeout(FAREWELL, graceful.shutdown()).await.is_err() {
        let left = clients.len();
        clients.shutdown().await;
        bail!("{left} clients did not finish their requests within {FAREWELL:?}");
    }
    Ok(())
}
