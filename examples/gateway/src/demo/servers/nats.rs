//! `nats-server` with JetStream, in a directory and on a port of its own.

use super::process::Server;
use anyhow::{Context, Result};
use std::process::Command;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

#[derive(Debug)]
pub(in crate::demo) struct Nats {
    server: Server,
    directory: TempDir,
    port: u16,
}

impl Nats {
    pub(super) async fn start() -> Result<Self> {
        let directory = TempDir::with_prefix("gateway-nats")?;
        let mut server = launch(&directory, -1)?;
        // It chooses a port, and writes it down.
        let file = format!("nats-server_{}.ports", server.pid());
        let file = directory.path().join(file);
        let port = async || {
            let text = std::fs::read_to_string(&file).ok()?;
            let (_, rest) = text.split_once("nats://127.0.0.1:")?;
            rest.split_once('"')?.0.parse().ok()
        };
        let port = server.until("written its port down", port).await?;
        let mut nats = Self {
            server,
            directory,
            port,
        };
        nats.wait_until_ready().await?;
        Ok(nats)
    }

    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        self.server.kill()
    }

    /// After a kill, on the same data and port.
    pub(super) async fn restart(&mut self) -> Result<()> {
        self.server = launch(&self.directory, self.port.into())?;
        self.wait_until_ready().await.context("after a restart")
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let port = self.port;
        let greeting = async || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).await.ok()?;
            (answer == *b"INFO").then_some(())
        };
        self.server.until("greeted a client", greeting).await
    }
}

fn launch(directory: &TempDir, port: i32) -> Result<Server> {
    let mut command = Command::new("nats-server");
    command
        .current_dir(directory)
        .args(["-a", "127.0.0.1", "-p", &port.to_string()])
        .args(["--ports_file_dir", ".", "-js", "-sd", "js"]);
    Server::start(&mut command)
}
