//! What an engine, its reads and its sessions share.

use super::config::NatsConfig;
use super::subjects::Subjects;
use crate::config::without_secrets;
use crate::error::{BoxError, EngineError};
use crate::position::Epoch;
use async_nats::jetstream::context::Context;
use async_nats::{Client, ConnectError, ConnectOptions, jetstream};
use parking_lot::Mutex;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// The connection, and what has been learned of the server and the stream.
pub(super) struct Inner {
    pub(super) config: NatsConfig,
    pub(super) subjects: Subjects,
    /// For reads and commits: on a connection that reconnects by itself. Sessions have one each, which does not.
    pub(super) context: OnceCell<Context>,
    /// The history of the stream that was seen last.
    pub(super) epoch: Mutex<Option<Epoch>>,
    /// The server allows fewer subscriptions than `Config::max_subscriptions`: sessions use a wildcard.
    pub(super) needs_wildcard: AtomicBool,
    /// In the place of the client crate.
    #[cfg(feature = "rules")]
    pub(super) wire: Option<Arc<dyn super::connect::Wire>>,
    pub(super) advice: Mutex<Option<Arc<str>>>,
}

impl Inner {
    pub(super) fn options(&self) -> ConnectOptions {
        let options = self.config.options.clone();
        options
            .connection_timeout(self.config.timeout)
            // However long an outage lasts: there is no other connection for reads and commits.
            .max_reconnects(None)
            .ping_interval(Duration::from_secs(5))
    }

    /// A connection to one of the servers. The error names them, without users and passwords.
    pub(super) async fn dial(&self, options: ConnectOptions) -> Result<Client, ConnectError> {
        let servers = &self.config.servers;
        options.connect(servers).await.map_err(|error| {
            let names = without_secrets(servers).join(", ");
            let cause = error.source().map(|it| format!(": {it}"));
            let cause = format!("{names}{}", cause.unwrap_or_default());
            ConnectError::with_source(error.kind(), cause)
        })
    }

    pub(super) async fn connect(&self, options: ConnectOptions) -> Result<Context, BoxError> {
        let client = self.dial(options).await?;
        let mut context = jetstream::new(client);
        context.set_timeout(self.config.timeout);
        Ok(context)
    }

    /// Does not wait for a server: requests do.
    pub(super) async fn context(&self) -> Result<&Context, BoxError> {
        let connect = || self.connect(self.options().retry_on_initial_connect());
        self.context.get_or_try_init(connect).await
    }

    /// Runs `call` for no longer than the timeout.
    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let called = timeout(self.config.timeout, call).await;
        called.unwrap_or(Err(EngineError::TimedOut(self.config.timeout)))
    }
}
