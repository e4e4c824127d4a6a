//! A proxy before a server: its connections can be cut and frozen.

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Clone)]
pub enum Upstream {
    Tcp(u16),
    Unix(PathBuf),
}

#[derive(Clone, Copy)]
struct State {
    /// Connections of earlier cuts end.
    cuts: u64,
    /// Connections of earlier losses stay open, and nothing gets through them any more.
    losses: u64,
    is_frozen: bool,
}

pub struct Proxy {
    pub port: u16,
    state: Arc<watch::Sender<State>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(upstream: Upstream) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let state = Arc::new(watch::Sender::new(State {
            cuts: 0,
            losses: 0,
            is_frozen: false,
        }));
        let states = state.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, upstream.clone(), states.subscribe()));
            }
        });
        Self {
            port,
            state,
            accepting,
        }
    }

    /// Ends all connections; new ones are served.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// As a firewall that restarts: all connections fall silent for good; new ones are served.
    pub fn lose(&self) {
        self.state.send_modify(|state| state.losses += 1);
    }

    /// From now on nothing gets through, and connections stay open; or it does again.
    pub fn freeze(&self, is_frozen: bool) {
        self.state.send_modify(|state| state.is_frozen = is_frozen);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.accepting.abort();
    }
}

async fn serve(client: TcpStream, upstream: Upstream, state: watch::Receiver<State>) {
    let begun = *state.borrow();
    let _ = client.set_nodelay(true);
    let (client_reads, client_writes) = client.into_split();
    let carried = async {
        match upstream {
            Upstream::Tcp(port) => {
                let server = TcpStream::connect(("127.0.0.1", port)).await?;
                server.set_nodelay(true)?;
                let (reads, writes) = server.into_split();
                tokio::select! {
                    carried = carry(client_reads, writes, state.clone(), begun) => carried,
                    carried = carry(reads, client_writes, state.clone(), begun) => carried,
                }
            }
            Upstream::Unix(path) => {
                let (reads, writes) = UnixStream::connect(path).await?.into_split();
                tokio::select! {
                    carried = carry(client_reads, writes, state.clone(), begun) => carried,
                    carried = carry(reads, client_writes, state.clone(), begun) => carried,
                }
            }
        }
    };
    let mut cut = state.clone();
    // Either end may close, or be killed, at any time.
    tokio::select! {
        _ = carried => {}
        _ = cut.wait_for(|state| state.cuts != begun.cuts) => {}
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<State>,
    begun: State,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        // In one look: of a connection that is cut while frozen, nothing gets through when the others do again.
        let may_go_on = state.wait_for(|state| !state.is_frozen || state.cuts != begun.cuts);
        // An error: the proxy is gone.
        let now = may_go_on.await.map_or(begun, |state| *state);
        if now.cuts != begun.cuts {
            return Ok(());
        }
        if now.losses != begun.losses {
            return pending().await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}
