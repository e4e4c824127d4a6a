//! Real servers for tests: each in a directory of its own, on a socket or port of its own choosing, ended with the
//! test.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod engine;
pub mod nats_server;
pub mod proxy;
pub mod redis_server;

use request_purgatory_cluster::{Change, Changes};
use std::collections::HashMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Longer than anything takes on a busy machine, and shorter than a test may hang.
pub const LONG: Duration = Duration::from_secs(20);

/// A server's process, killed when this is dropped, also by a panic.
pub struct Server(Child);

impl Server {
    pub fn start(command: &mut Command) -> Self {
        let program = command.get_program().to_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap_or_else(|error| {
            panic!("{program:?} cannot be started ({error}): `.ci/install engines` installs what these tests need")
        }))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.0.kill().expect("it was not waited for");
        self.0.wait().expect("it is a child");
    }

    /// SIGSTOP or SIGCONT.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .arg(name)
            .arg(self.pid().to_string())
            .status();
        assert!(status.expect("there is a `kill`").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Tries until it succeeds.
pub async fn eventually<T>(what: &str, attempt: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(LONG, what, attempt).await
}

pub async fn eventually_within<T>(
    limit: Duration,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Listens until `key` has reached `version`.
pub async fn hear(
    changes: &mut impl Changes<Vec<u8>>,
    key: &[u8],
    version: u64,
    within: Duration,
) -> Result<(), String> {
    let listen = async {
        loop {
            let heard = changes.next().await.map_err(|error| error.to_string())?;
            let is_it = |change: &Change<Vec<u8>>| change.key == key && change.version >= version;
            if heard.iter().any(is_it) {
                return Ok(());
            }
        }
    };
    let heard = timeout(within, listen).await;
    heard.unwrap_or_else(|_| Err(format!("nothing was heard of {key:?} at {version}")))
}

/// Listens until all these keys have reached their versions.
pub async fn hear_all(
    changes: &mut impl Changes<Vec<u8>>,
    mut unheard: HashMap<Vec<u8>, u64>,
    within: Duration,
) {
    let listen = async {
        while !unheard.is_empty() {
            for change in changes.next().await.expect("the session goes on") {
                unheard.retain(|key, version| *key != change.key || *version > change.version);
            }
        }
    };
    let heard = timeout(within, listen).await;
    assert!(heard.is_ok(), "{} keys are not heard", unheard.len());
}
