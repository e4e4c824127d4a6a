//! A node that is a process of this program.

use crate::cli::ServeArgs;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

const PATIENCE: Duration = Duration::from_secs(30);

/// Killed when this is dropped; and it ends with its standard input.
#[derive(Debug)]
pub(super) struct NodeProcess {
    child: Child,
    commands: ChildStdin,
}

impl NodeProcess {
    pub(super) async fn start(args: &ServeArgs) -> Result<(Self, SocketAddr)> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["node", "--engine", &args.engine.to_string()])
            .args(["--name", &args.name, "--listen", &args.listen])
            .args(["--audit", &args.audit.as_secs_f64().to_string()])
            .args(["--ping", &args.ping.as_secs_f64().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        for url in &args.url {
            command.args(["--url", url]);
        }
        let mut child = command.spawn().context("a node cannot be started")?;
        let (Some(commands), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the node has no pipes");
        };
        let mut lines = BufReader::new(output).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        let line = line.context("the node does not listen")??;
        let line = line.context("the node ended before it listened")?;
        let address = line.strip_prefix("listening on http://");
        let address = address.with_context(|| format!("the node said `{line}`"))?;
        let address = address.parse()?;
        Ok((Self { child, commands }, address))
    }

    pub(super) async fn say(&mut self, command: &str) -> Result<()> {
        let line = format!("{command}\n");
        let said = self.commands.write_all(line.as_bytes()).await;
        said.context("the node takes no commands")
    }

    pub(super) async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.context("the node cannot be killed")
    }

    pub(super) fn terminate(&self) -> Result<()> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw).context("the node has ended")?;
        kill_process(id, Signal::TERM).context("the node takes no signal")
    }

    pub(super) async fn ended(&mut self) -> Result<()> {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = status.context("a node does not end after SIGTERM")??;
        match status.success() {
            true => Ok(()),
            false => bail!("a node ended with {status} after SIGTERM"),
        }
    }
}
