//! A node that is a thread of this process, with a runtime of its own: what it can lose dies with it.

use crate::cli::ServeArgs;
use crate::cpu::Cpu;
use crate::deaf_switch::DeafSwitch;
use crate::gateway::Gateway;
use crate::store::Store;
use crate::{node, serve};
use anyhow::{Context, Result, anyhow};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct NodeThread {
    gateway: Arc<Gateway>,
    deaf: DeafSwitch,
    stop: CancellationToken,
    die: CancellationToken,
    end: oneshot::Receiver<Result<()>>,
}

impl NodeThread {
    pub(super) async fn start(args: &ServeArgs, store: Store) -> Result<(Self, SocketAddr)> {
        let deaf = DeafSwitch::default();
        let (stop, die) = (CancellationToken::new(), CancellationToken::new());
        let (started, start) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let (stopped, dead) = (stop.clone(), die.clone());
        let settings = serve::settings(args, Cpu::Thread, Some(deaf.clone()));
        let listen = args.listen.clone();
        let live = async move {
            let listener = node::listen(&listen).await?;
            let gateway = Gateway::start(store, settings)?;
            let address = listener.local_addr()?;
            if started.send((gateway.clone(), address)).is_err() {
                return Ok(()); // (The demo does not wait for the node any more.)
            }
            tokio::select! {
                end = node::run(listener, gateway, stopped) => end,
                () = dead.cancelled() => Ok(()),
            }
        };
        std::thread::Builder::new()
            .name(args.name.clone())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                // With the runtime, all connections and tasks end where they are.
                let end = runtime
                    .map_err(anyhow::Error::from)
                    .and_then(|runtime| runtime.block_on(live));
                drop(ended.send(end));
            })?;
        match start.await {
            Ok((gateway, address)) => {
                let node = Self {
                    gateway,
                    deaf,
                    stop,
                    die,
                    end,
                };
                Ok((node, address))
            }
            Err(_) => Err(match end.await {
                Ok(Err(error)) => error,
                _ => anyhow!("the thread of a node ended at its start"),
            }),
        }
    }

    pub(super) fn deafen(&self, is_deaf: bool) {
        self.deaf.set(is_deaf);
    }

    pub(super) fn set_peers(&self, peers: Vec<String>) {
        self.gateway.set_peers(peers);
    }

    pub(super) async fn kill(&mut self) -> Result<()> {
        self.die.cancel();
        self.ended().await
    }

    pub(super) fn terminate(&self) {
        self.stop.cancel();
    }

    pub(super) async fn ended(&mut self) -> Result<()> {
        (&mut self.end).await.context("a node panicked")?
    }
}
