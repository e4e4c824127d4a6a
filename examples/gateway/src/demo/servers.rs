//! The engine of the demo: a server's process, or memory.

use crate::store::{EngineKind, MemoryStore, Store};
use anyhow::{Context, Result, bail};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::sleep;

/// Longer than a start takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) enum Engine {
    Memory(MemoryStore),
    Server(Box<Server>),
}

impl Engine {
    pub(super) async fn start(kind: EngineKind) -> Result<Self> {
        Ok(match kind {
            EngineKind::Memory => Self::Memory(MemoryStore::new()),
            kind => Self::Server(Box::new(Server::start(kind).await?)),
        })
    }

    /// For nodes that are processes.
    pub(super) fn url(&self) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Server(server) => Some(server.url.clone()),
        }
    }

    /// For nodes within this process.
    pub(super) fn store(&self) -> Option<Store> {
        match self {
            Self::Memory(store) => Some(Store::Memory(store.clone())),
            Self::Server(_) => None,
        }
    }

    /// `kill -9`, and a start on the same data when it was `down` for so long.
    pub(super) async fn restart(&mut self, down: Duration) -> Result<()> {
        match self {
            Self::Memory(store) => {
                store.set_down(true);
                sleep(down).await;
                store.set_down(false);
                Ok(())
            }
            Self::Server(server) => {
                let killed = server.process.kill().await;
                killed.context("the server cannot be killed")?;
                sleep(down).await;
                server.restart().await
            }
        }
    }
}

/// A server in a directory of its own. Killed when this is dropped.
#[derive(Debug)]
pub(super) struct Server {
    kind: EngineKind,
    process: Child,
    directory: TempDir,
    url: String,
}

impl Server {
    async fn start(kind: EngineKind) -> Result<Self> {
        let directory = TempDir::with_prefix("gateway")?;
        let mut server = Self {
            kind,
            process: launch(kind, &directory, "-1")?,
            url: format!("redis+unix://{}/socket", directory.path().display()),
            directory,
        };
        if kind == EngineKind::Nats {
            // It chooses a port, and writes it down.
            let id = server.process.id().context("the server has ended")?;
            let file = format!("nats-server_{id}.ports");
            let file = server.directory.path().join(file);
            let url = async || {
                let text = std::fs::read_to_string(&file).ok()?;
                let url = text.split('"').find(|it| it.starts_with("nats://"));
                url.map(str::to_owned)
            };
            server.url = until(&mut server.process, "written its port down", url).await?;
        }
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// After a kill, on the same data and address.
    async fn restart(&mut self) -> Result<()> {
        // A killed server leaves its socket behind.
        let _ = std::fs::remove_file(self.directory.path().join("socket"));
        let (_, port) = self.url.rsplit_once(':').unwrap_or_default();
        self.process = launch(self.kind, &self.directory, port)?;
        self.wait_until_ready().await.context("after a restart")
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let urls = [self.url.clone()];
        let ready = async || Store::connect(self.kind, &urls).await.ok();
        until(&mut self.process, "let a node connect", ready).await?;
        Ok(())
    }
}

/// Asks until there is an answer, or the server has ended.
async fn until<T>(
    server: &mut Child,
    what: &str,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return Ok(answer);
        }
        if let Some(status) = server.try_wait()? {
            bail!("the server ended with {status} before it has {what}");
        }
        if start.elapsed() > PATIENCE {
            bail!("the server has not {what} within {PATIENCE:?}");
        }
        sleep(Duration::from_millis(10)).await;
    }
}

fn launch(kind: EngineKind, directory: &TempDir, port: &str) -> Result<Child> {
    let program = format!("{kind}-server");
    let mut command = Command::new(&program);
    match kind {
        // It writes every commit to the disk before it acknowledges it: otherwise `kill -9` loses acknowledged events,
        // and no gateway brings them back.
        EngineKind::Redis => command
            .args(["--port", "0", "--unixsocket", "socket", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always"]),
        _ => command
            .args(["-a", "127.0.0.1", "-p", port, "--ports_file_dir", "."])
            .args(["-js", "-sd", "js"]),
    };
    let command = command.current_dir(directory).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(Stdio::null()).spawn();
    child.with_context(|| {
        format!("{program} cannot be started; Debian has it in a package of this name, and `.ci/install engines` installs it")
    })
}
