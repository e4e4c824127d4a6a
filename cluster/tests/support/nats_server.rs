//! `nats-server`, alone or as three.

use super::{Server, eventually, free_port};
use std::process::Command;
use tempfile::TempDir;
use tokio::net::TcpStream;

pub struct NatsServer {
    pub server: Server,
    directory: TempDir,
    pub port: u16,
    routes: Option<Routes>,
}

#[derive(Clone)]
struct Routes {
    name: String,
    own: u16,
    all: Vec<u16>,
}

const CONFIG: &str = "server.conf";
const DATA: &str = "js";

impl NatsServer {
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// With these lines in its configuration.
    pub async fn start_with(lines: &str) -> Self {
        let directory = TempDir::with_prefix("purgatory-nats").expect("there is room");
        std::fs::write(directory.path().join(CONFIG), lines).expect("there is room");
        let server = launch(&directory, None, None);
        // It chooses a port, and writes it down.
        let ports = directory
            .path()
            .join(format!("nats-server_{}.ports", server.pid()));
        let port = eventually("nats-server writes its port down", async || {
            let text = std::fs::read_to_string(&ports).ok()?;
            let (_, rest) = text.split_once("nats://127.0.0.1:")?;
            let (port, _) = rest.split_once('"')?;
            port.parse().ok()
        })
        .await;
        let server = Self {
            server,
            directory,
            port,
            routes: None,
        };
        server.wait_until_ready().await;
        server
    }

    /// Three servers that know of each other.
    pub async fn start_three() -> Vec<Self> {
        let all = (0..3).map(|_| free_port()).collect::<Vec<_>>();
        let mut servers = Vec::new();
        for (number, &own) in all.iter().enumerate() {
            let directory = TempDir::with_prefix("purgatory-nats").expect("there is room");
            let routes = Routes {
                name: format!("n{number}"),
                own,
                all: all.clone(),
            };
            let port = free_port();
            let server = launch(&directory, Some(port), Some(&routes));
            servers.push(Self {
                server,
                directory,
                port,
                routes: Some(routes),
            });
        }
        for server in &servers {
            server.wait_until_ready().await;
        }
        servers
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn name(&self) -> &str {
        self.routes.as_ref().map_or("", |routes| &routes.name)
    }

    /// After a kill, on the same data and port.
    pub async fn restart(&mut self) {
        self.server = launch(&self.directory, Some(self.port), self.routes.as_ref());
        self.wait_until_ready().await;
    }

    /// After a kill: nothing is left of the streams.
    pub fn remove_data(&self) {
        let removed = std::fs::remove_dir_all(self.directory.path().join(DATA));
        removed.expect("it has written something");
    }

    async fn wait_until_ready(&self) {
        eventually("nats-server accepts connections", async || {
            TcpStream::connect(("127.0.0.1", self.port)).await.ok()
        })
        .await;
    }
}

fn launch(directory: &TempDir, port: Option<u16>, routes: Option<&Routes>) -> Server {
    let port = port.map_or("-1".into(), |port| port.to_string());
    let mut command = Command::new("nats-server");
    command.current_dir(directory).args([
        "-a",
        "127.0.0.1",
        "-p",
        &port,
        "--ports_file_dir",
        ".",
        "-js",
        "-sd",
        DATA,
    ]);
    if directory.path().join(CONFIG).exists() {
        command.args(["-c", CONFIG]);
    }
    if let Some(routes) = routes {
        let urls = routes
            .all
            .iter()
            .map(|port| format!("nats-route://127.0.0.1:{port}"));
        command
            .args(["--name", &routes.name, "--cluster_name", "purgatory"])
            .args(["--cluster", &format!("nats://127.0.0.1:{}", routes.own)])
            .args(["--routes", &urls.collect::<Vec<_>>().join(",")]);
    }
    Server::start(&mut command)
}
