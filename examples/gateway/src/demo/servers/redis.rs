//! `redis-server`, on a socket in a directory of its own. It writes every commit to the disk before it acknowledges it:
//! otherwise `kill -9` loses acknowledged events, and no gateway brings them back.

use super::process::Server;
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

#[derive(Debug)]
pub(in crate::demo) struct Redis {
    server: Server,
    directory: TempDir,
}

impl Redis {
    pub(super) async fn start() -> Result<Self> {
        let directory = TempDir::with_prefix("gateway-redis")?;
        let server = launch(&directory)?;
        let mut redis = Self { server, directory };
        redis.wait_until_ready().await?;
        Ok(redis)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub(super) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        self.server.kill()
    }

    /// After a kill, on the same data.
    pub(super) async fn restart(&mut self) -> Result<()> {
        // A killed server leaves its socket behind.
        std::fs::remove_file(self.socket())?;
        self.server = launch(&self.directory)?;
        self.wait_until_ready().await
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let socket = self.socket();
        let ping = async || {
            let mut stream = UnixStream::connect(&socket).await.ok()?;
            stream.write_all(b"PING\r\n").await.ok()?;
            let mut answer = [0; 5];
            stream.read_exact(&mut answer).await.ok()?;
            // It refuses while it loads its data.
            (answer == *b"+PONG").then_some(())
        };
        self.server.until("answered a PING", ping).await
    }
}

fn launch(directory: &TempDir) -> Result<Server> {
    let mut command = Command::new("redis-server");
    command
        .current_dir(directory)
        .args(["--port", "0", "--unixsocket", "socket", "--save", ""])
        .args(["--appendonly", "yes", "--appendfsync", "always"]);
    Server::start(&mut command)
}
