//! A node on a socket, with an orderly end.

use crate::api;
use crate::gateway::Gateway;
use anyhow::{Context, Result, bail};
use axum::serve::ListenerExt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio_util::sync::CancellationToken;

/// Connections that the system holds until they are accepted. When a node dies, its clients come here all at once.
const BACKLOG: u32 = 4_096;
/// How long clients may take to read what they are answered with at the shutdown.
const FAREWELL: Duration = Duration::from_secs(10);

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
/// Clients did not read their answers within ten seconds.
pub async fn run(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    stop: CancellationToken,
) -> Result<()> {
    let router = api::router(gateway.clone());
    let stopped = stop.clone();
    let leave = async move {
        stopped.cancelled().await;
        gateway.shut_down();
    };
    // An answer is one small packet, and waits for no other. (A socket that refuses the option is served without it.)
    let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
    let serving = axum::serve(listener, router).with_graceful_shutdown(leave);
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        served = serving => Ok(served?),
        () = too_late => bail!("some clients did not read their answers within {FAREWELL:?}"),
    }
}
