//! Where to listen.

use anyhow::Context;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::Poll;
use tokio::net::{TcpListener, TcpStream, lookup_host};

/// The sockets of one endpoint; there is at least one.
pub(crate) struct Listeners(pub(crate) Vec<TcpListener>);

impl Listeners {
    /// Listens on every address of `host:port`: `localhost` usually has two, and clients try either. Port 0 takes a free
    /// one, the same for all. An address that this machine does not have is left out, unless none is left.
    pub(crate) async fn bind(endpoint: &str) -> anyhow::Result<Self> {
        let cannot = || format!("cannot listen on {endpoint}");
        let mut listeners = Vec::<TcpListener>::new();
        let mut error = io::Error::other("the host has no address");
        for mut address in lookup_host(endpoint).await.with_context(cannot)? {
            if let Some(first) = listeners.first() {
                address.set_port(first.local_addr()?.port());
            }
            match TcpListener::bind(address).await {
                Ok(listener) => listeners.push(listener),
                Err(failed) => match failed.kind() {
                    // The name has this address, but the machine has not: IPv6 is switched off, say.
                    ErrorKind::AddrNotAvailable | ErrorKind::Unsupported => error = failed,
                    _ => return Err(failed).with_context(cannot),
                },
            }
        }
        match listeners.is_empty() {
            true => Err(error).with_context(cannot),
            false => Ok(Self(listeners)),
        }
    }

    /// Where this listens; one of the addresses if there are several.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0[0].local_addr()
    }

    /// The next connection on any of them.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| {
            let mut polled = self.0.iter().map(|listener| listener.poll_accept(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}
