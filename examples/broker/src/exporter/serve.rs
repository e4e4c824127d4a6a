//! The page's connections: few at a time, and none for ever.

use crate::console::warn;
use crate::endpoint::Listeners;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Connections at a time. One more ends the oldest.
const MOST: usize = 32;

/// How long a client may take to ask, on a new connection or again on an old one.
const ASKING: Duration = Duration::from_secs(5);

/// How long a connection is used. A browser then opens another.
const LIFETIME: Duration = Duration::from_secs(60);

/// How long an answer may take beyond that.
const PARTING: Duration = Duration::from_secs(5);

/// Pause after a failed accept.
const RETRY: Duration = Duration::from_millis(50);

/// What a request may have of headers.
const BUFFER: usize = 16 * 1024;

/// Serves for as long as the runtime runs.
pub(super) async fn run(listeners: Listeners, router: Router) {
    let mut connections = VecDeque::<AbortHandle>::new();
    loop {
        let socket = match listeners.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                warn(&format!("cannot accept a connection to the page: {error}"));
                sleep(RETRY).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() == MOST
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let serving = tokio::spawn(serve(socket, router.clone()));
        connections.push_back(serving.abort_handle());
    }
}

async fn serve(socket: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ASKING)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    // How it ends is the client's business.
    if timeout(LIFETIME, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(PARTING, connection).await;
    }
}
