//! `redis-server`.

use super::{Server, eventually, free_port};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

pub struct RedisServer {
    pub server: Server,
    directory: TempDir,
    arguments: Vec<String>,
    /// For replication, which needs one.
    pub port: Option<u16>,
}

impl RedisServer {
    pub async fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, None).await
    }

    pub async fn start_on_port(arguments: &[&str]) -> Self {
        Self::start_with(arguments, Some(free_port())).await
    }

    async fn start_with(arguments: &[&str], port: Option<u16>) -> Self {
        let directory = TempDir::with_prefix("purgatory-redis").expect("there is room");
        let arguments = arguments
            .iter()
            .map(|it| it.to_string())
            .collect::<Vec<_>>();
        let server = launch(&directory, &arguments, port);
        let server = Self {
            server,
            directory,
            arguments,
            port,
        };
        server.wait_until_ready().await;
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub fn url(&self) -> String {
        match self.port {
            Some(port) => format!("redis://127.0.0.1:{port}"),
            None => format!("redis+unix://{}", self.socket().display()),
        }
    }

    /// After a kill, on the same data.
    pub async fn restart(&mut self) {
        // A killed server leaves its socket behind.
        let _ = std::fs::remove_file(self.socket());
        self.server = launch(&self.directory, &self.arguments, self.port);
        self.wait_until_ready().await;
    }

    async fn wait_until_ready(&self) {
        eventually("redis-server accepts connections", async || {
            let info = redis::Client::open(self.url()).expect("the address is sound");
            let mut connection = info.get_multiplexed_async_connection().await.ok()?;
            // It refuses while it loads its data.
            redis::cmd("PING")
                .query_async::<String>(&mut connection)
                .await
                .ok()
        })
        .await;
    }

    pub async fn query(&self, command: &str) -> redis::Value {
        let client = redis::Client::open(self.url()).expect("the address is sound");
        let mut connection = client
            .get_multiplexed_async_connection()
            .await
            .expect("it accepts");
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().expect("there is a word"));
        for word in words {
            cmd.arg(word);
        }
        cmd.query_async(&mut connection)
            .await
            .expect("the command succeeds")
    }
}

fn launch(directory: &TempDir, arguments: &[String], port: Option<u16>) -> Server {
    let mut command = Command::new("redis-server");
    command
        .current_dir(directory)
        .args([
            "--port",
            &port.unwrap_or(0).to_string(),
            "--bind",
            "127.0.0.1",
        ])
        .args([
            "--unixsocket",
            "socket",
            "--save",
            "",
            "--appendonly",
            "yes",
        ])
        .args(["--appendfsync", "always"])
        .args(arguments);
    Server::start(&mut command)
}
