//! Accepts connections, and brings everything to an end in order.

mod connection;
mod incoming;
mod limits;

use crate::broker::Broker;
use crate::console::warn;
use crate::figures::Counter;
use crate::listen::Listeners;
use connection::{Context, End};
use limits::{Limits, Share};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long clients may take, at the shutdown, to read the last answers.
const PARTING: Duration = Duration::from_secs(5);

/// Pause after a failed accept. It usually means that there are no file descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A listening broker.
pub(crate) struct Server {
    listeners: Listeners,
    broker: Arc<Broker>,
    limits: Arc<Limits>,
}

impl Server {
    /// Listens on `endpoint`, and serves at most this many connections at a time.
    pub(crate) async fn bind(
        endpoint: &str,
        connections: usize,
        broker: Arc<Broker>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            listeners: Listeners::bind(endpoint).await?,
            limits: Arc::new(Limits::new(connections)),
            broker,
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listeners.address()
    }

    /// Serves until `stop` resolves, then shuts down: no new connections, no new requests, an answer for every
    /// parked one, and the connections closed once their answers are out.
    pub(crate) async fn run(self, stop: impl Future<Output = ()>) {
        let Self {
            listeners,
            broker,
            limits,
        } = self;
        let (stopping, stopped) = watch::channel(false);
        let context = Context {
            broker,
            limits,
            stop: stopped,
        };
        let mut connections = JoinSet::new();
        {
            tokio::pin!(stop);
            let mut accepting = pin!(accept(&listeners, &context.limits));
            loop {
                tokio::select! {
                    () = &mut stop => break,
                    Some(_) = connections.join_next() => {}
                    accepted = &mut accepting => {
                        match accepted {
                            Ok((socket, peer, place)) => {
                                let serving = serve(socket, peer, context.clone());
                                connections.spawn(async move {
                                    serving.await;
                                    drop(place);
                                });
                            }
                            Err(error) => {
                                warn(&format!("cannot accept a connection: {error}"));
                                tokio::time::sleep(ACCEPT_RETRY).await;
                            }
                        }
                        accepting.set(accept(&listeners, &context.limits));
                    }
                }
            }
        }

        drop(listeners);
        stopping.send_replace(true);
        // From here on a request that is still being taken up cannot park, so this reaches all.
        context.broker.shutdown();
        let parting = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(PARTING, parting).await.is_err() {
            warn("some clients did not take their last answers");
        }
    }
}

/// Accepts a connection, and waits until there is a place for it.
async fn accept(
    listeners: &Listeners,
    limits: &Limits,
) -> io::Result<(TcpStream, SocketAddr, Option<Share>)> {
    let (socket, peer) = listeners.accept().await?;
    Ok((socket, peer, limits.place().await))
}

async fn serve(socket: TcpStream, peer: SocketAddr, context: Context) {
    // Answers are written whole, so there is nothing to gather.
    if let Err(error) = socket.set_nodelay(true) {
        warn(&format!("{peer}: {error}"));
    }
    let broker = Arc::clone(&context.broker);
    broker.connections.increase();
    let open = Open(&broker.connections);
    if let Err(End::Dropped(reason)) = connection::serve(socket, context).await {
        warn(&format!("closed the connection of {peer}: {reason}"));
    }
    drop(open);
}

/// Counts a connection for as long as it is served, even if that panics.
struct Open<'a>(&'a Counter);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.decrease();
    }
}
