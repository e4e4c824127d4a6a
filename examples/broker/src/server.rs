//! Accepts connections, and brings everything to an end in order.

mod connection;

use crate::broker::Broker;
use connection::End;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long clients may take, at the shutdown, to read the last answers.
const PARTING: Duration = Duration::from_secs(5);

/// Pause after a failed accept. It usually means that there are no file descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A listening broker.
pub(crate) struct Server {
    listener: TcpListener,
    broker: Arc<Broker>,
}

impl Server {
    pub(crate) async fn bind(listen: SocketAddr, broker: Arc<Broker>) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        Ok(Self { listener, broker })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` resolves, then shuts down: no new connections, no new requests, an answer for every
    /// parked one, and the connections closed once their answers are out.
    pub(crate) async fn run(self, stop: impl Future<Output = ()>) {
        let Self { listener, broker } = self;
        let (stopping, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((socket, peer)) => {
                        let serving = serve(socket, peer, Arc::clone(&broker), stopped.clone());
                        connections.spawn(serving);
                    }
                    Err(error) => {
                        eprintln!("broker: cannot accept a connection: {error}");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }

        drop(listener);
        stopping.send_replace(true);
        // From here on a request that is still being taken up cannot park, so this reaches all.
        broker.purgatories.shutdown();
        let parting = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(PARTING, parting).await.is_err() {
            eprintln!("broker: some clients did not take their last answers");
        }
    }
}

async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    broker: Arc<Broker>,
    stop: watch::Receiver<bool>,
) {
    // Answers are written whole, so there is nothing to gather.
    if let Err(error) = socket.set_nodelay(true) {
        eprintln!("broker: {peer}: {error}");
    }
    broker.metrics.connections.increase();
    let open = Open(&broker);
    if let End::Dropped(reason) = connection::serve(socket, &broker, stop).await {
        eprintln!("broker: closed the connection of {peer}: {reason}");
    }
    drop(open);
}

/// Counts a connection for as long as it is served, even if that panics.
struct Open<'a>(&'a Broker);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.metrics.connections.decrease();
    }
}
