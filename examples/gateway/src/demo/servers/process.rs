//! A server's process.

use anyhow::{Context, Result, bail};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than a start takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Killed when this is dropped.
#[derive(Debug)]
pub(super) struct Server(Child);

impl Server {
    /// # Errors
    /// The program is not there, or cannot be started.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.with_context(|| {
            format!("{program} cannot be started; Debian has it in a package of this name, and `.ci/install engines` installs it")
        })?;
        Ok(Self(child))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.0.kill().context("the server cannot be killed")?;
        self.0.wait().context("the server does not end")?;
        Ok(())
    }

    /// Asks until there is an answer, or the server has ended.
    pub(super) async fn until<T>(
        &mut self,
        what: &str,
        mut ask: impl AsyncFnMut() -> Option<T>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(answer) = ask().await {
                return Ok(answer);
            }
            if let Some(status) = self.0.try_wait()? {
                bail!("the server ended with {status} before it {what}");
            }
            if start.elapsed() > PATIENCE {
                bail!("the server has not {what} within {PATIENCE:?}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
