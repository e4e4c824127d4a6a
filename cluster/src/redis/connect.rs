//! Connections: to the primary, to the one connection that reads and commits share, and to a simulated server in tests.

use super::config::RedisConfig;
use super::push::Pushes;
use crate::error::EngineError;
use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo,
    PushKind, RedisError, Script, ServerErrorKind, Value, cmd,
};
use futures_util::future::{BoxFuture, Shared};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Hears what the server sends unasked.
#[cfg(feature = "rules")]
pub type Pushed = Box<dyn Fn(PushInfo) + Send + Sync>;

/// What a test puts in the place of redis-rs.
#[cfg(feature = "rules")]
pub trait Wire: Send + Sync {
    /// Opens a connection, of which `pushes` hears.
    fn connect(&self, pushes: Pushed) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>>;
}

/// A connection of a [`Wire`].
#[cfg(feature = "rules")]
pub trait Socket: Send + Sync {
    /// Sends a command, and waits for the answer.
    fn run(&self, command: &Cmd) -> BoxFuture<'static, Result<Value, RedisError>>;
}

/// A connection. Cloning is cheap, and clones are the same.
#[derive(Clone)]
pub(super) enum Connection {
    Real(MultiplexedConnection),
    #[cfg(feature = "rules")]
    Simulated(Arc<dyn Socket>),
}

impl Connection {
    pub(super) async fn run(&self, command: &Cmd) -> Result<Value, RedisError> {
        match self {
            Self::Real(connection) => command.query_async(&mut connection.clone()).await,
            #[cfg(feature = "rules")]
            Self::Simulated(socket) => socket.run(command).await,
        }
    }

    /// `SUBSCRIBE` or `UNSUBSCRIBE`: returns when the server has confirmed each channel.
    pub(super) async fn listen_to(
        &self,
        channels: &[Vec<u8>],
        listens: bool,
    ) -> Result<(), RedisError> {
        match (self, listens) {
            (Self::Real(connection), true) => connection.clone().subscribe(channels).await,
            (Self::Real(connection), false) => connection.clone().unsubscribe(channels).await,
            #[cfg(feature = "rules")]
            (Self::Simulated(socket), _) => {
                let word = if listens { "SUBSCRIBE" } else { "UNSUBSCRIBE" };
                socket.run(cmd(word).arg(channels)).await.map(drop)
            }
        }
    }

    /// Runs a script, which the server may not know yet.
    pub(super) async fn script(
        &self,
        script: &Script,
        source: &str,
        rest: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let mut known = cmd("EVALSHA");
        known.arg(script.get_hash());
        rest(&mut known);
        match self.run(&known).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let mut whole = cmd("EVAL");
                whole.arg(source);
                rest(&mut whole);
                self.run(&whole).await
            }
            answer => answer,
        }
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        match self {
            Self::Real(connection) => connection.set_response_timeout(timeout),
            #[cfg(feature = "rules")]
            Self::Simulated(_) => {}
        }
    }
}

enum Server {
    Real(Client),
    #[cfg(feature = "rules")]
    Simulated(Arc<dyn Wire>),
}

/// Its address, without the user and the password.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Real(client) => client.get_connection_info().addr().fmt(f),
            #[cfg(feature = "rules")]
            Self::Simulated(_) => f.write_str("a simulated server"),
        }
    }
}

type Attempt = Shared<BoxFuture<'static, Result<Connection, RedisError>>>;

/// The connection for reads and commits, and its number. `None` until it is needed, and after an error.
#[derive(Default)]
struct Slot {
    number: u64,
    attempt: Option<Attempt>,
}

/// A caller that waits for the attempt. The last one that leaves takes it along: without a caller nothing drives it, and
/// the next one would find its time over.
struct Waits<'a>(&'a Mutex<Slot>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let is_abandoned = |it: &mut Attempt| it.peek().is_none() && it.strong_count() == Some(1);
        let abandoned = self.0.lock().attempt.take_if(is_abandoned);
        // (With no lock held.)
        drop(abandoned);
    }
}

pub(super) struct Addresses {
    servers: Vec<Server>,
    timeout: Duration,
    slot: Arc<Mutex<Slot>>,
}

impl Addresses {
    pub(super) fn parse(config: &RedisConfig) -> Result<Arc<Self>, RedisError> {
        let mut servers = Vec::new();
        for address in &config.addresses {
            let info = address.as_str().into_connection_info()?;
            let settings = info.redis_settings().clone();
            let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
            servers.push(Server::Real(Client::open(info)?));
        }
        match servers.is_empty() {
            true => Err((
                ErrorKind::InvalidClientConfig,
                "`RedisConfig::addresses` is empty",
            )
                .into()),
            false => Ok(Self::of(servers, config.timeout)),
        }
    }

    #[cfg(feature = "rules")]
    pub(super) fn simulated(wire: Arc<dyn Wire>, config: &RedisConfig) -> Arc<Self> {
        Self::of(vec![Server::Simulated(wire)], config.timeout)
    }

    fn of(servers: Vec<Server>, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            servers,
            timeout,
            slot: Arc::default(),
        })
    }

    /// Dials all servers at once, so that a silent one holds up nothing, and connects to the first one that says it is a
    /// primary; or says of each why there is no connection.
    pub(super) async fn connect(
        &self,
        push: impl Fn(PushInfo) + Clone + Send + Sync + 'static,
    ) -> Result<Connection, RedisError> {
        let dials = self.servers.iter().map(|server| {
            let dialed = self.try_one(server, push.clone());
            dialed.map(move |dialed| dialed.map_err(|error| (server, error)))
        });
        let mut dials = dials.collect::<FuturesUnordered<_>>();
        // (There is an address: `parse` sees to it.)
        let (mut kind, mut causes) = (ErrorKind::InvalidClientConfig, Vec::new());
        while let Some(dialed) = dials.next().await {
            match dialed {
                Ok(connection) => return Ok(connection),
                Err((server, error)) => {
                    kind = error.kind();
                    causes.push(format!("{server}: {error}"));
                }
            }
        }
        Err((kind, "no connection", causes.join("; ")).into())
    }

    /// For a session, which hears what the server sends unasked.
    pub(super) async fn connect_with(
        &self,
        pushes: &Arc<Pushes>,
    ) -> Result<Connection, RedisError> {
        let pushes = pushes.clone();
        self.connect(move |push| pushes.push(push)).await
    }

    async fn try_one(
        &self,
        server: &Server,
        push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Connection, RedisError> {
        // What becomes of a connection that is not taken concerns nobody: its end must not end the session.
        let is_taken = Arc::new(AtomicBool::new(false));
        let taken = is_taken.clone();
        let connection = self.open(server, move |it| {
            // ORDERING: Relaxed: nobody has asked for news before it is set; and what comes of a connection that ends in
            // this very moment, the next command finds out too.
            if taken.load(Ordering::Relaxed) {
                push(it);
            }
        });
        let connection = connection.await?;
        if !is_primary(&connection).await? {
            return Err((ErrorKind::Io, "the server is no primary").into());
        }
        // ORDERING: Relaxed: as above.
        is_taken.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    async fn open(
        &self,
        server: &Server,
        push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Connection, RedisError> {
        match server {
            Server::Real(client) => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(self.timeout))
                    .set_response_timeout(Some(self.timeout))
                    .set_push_sender(move |it| {
                        push(it);
                        Ok::<_, std::convert::Infallible>(())
                    });
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                connection.await.map(Connection::Real)
            }
            #[cfg(feature = "rules")]
            Server::Simulated(wire) => {
                let socket = wire.connect(Box::new(push)).await;
                socket.map(Connection::Simulated)
            }
        }
    }

    /// The connection that callers share, and its number: made by the first that needs it, awaited by all that come
    /// meanwhile.
    fn shared(self: &Arc<Self>) -> (u64, Attempt) {
        let mut slot = self.slot.lock();
        if let Some(attempt) = &slot.attempt {
            return (slot.number, attempt.clone());
        }
        slot.number += 1;
        let (addresses, number) = (self.clone(), slot.number);
        let closed = {
            let slot = Arc::downgrade(&self.slot);
            move |push: PushInfo| {
                if push.kind == PushKind::Disconnection
                    && let Some(slot) = slot.upgrade()
                {
                    forget(&slot, number);
                }
            }
        };
        let connect = async move { addresses.connect(closed).await };
        let attempt = connect.boxed().shared();
        slot.attempt = Some(attempt.clone());
        (number, attempt)
    }

    /// Runs `call` on the shared connection. All of it, connecting included, takes no longer than the timeout. A
    /// connection that failed is made again by the next caller.
    pub(super) async fn call<T, C>(
        self: &Arc<Self>,
        call: impl FnOnce(Connection) -> C,
    ) -> Result<T, EngineError>
    where
        C: Future<Output = Result<T, EngineError>>,
    {
        let (number, attempt) = self.shared();
        let called = timeout(self.timeout, async {
            let waits = Waits(&self.slot);
            let connection = attempt.await;
            drop(waits);
            // Whatever has refused it, the next caller may be allowed.
            let connection = connection.inspect_err(|_| forget(&self.slot, number));
            call(connection.map_err(|error| EngineError::Store(error.into()))?).await
        });
        let answer = called.await;
        let answer = answer.unwrap_or(Err(EngineError::TimedOut(self.timeout)));
        if answer.as_ref().err().is_some_and(is_fatal) {
            forget(&self.slot, number);
        }
        answer
    }
}

/// A user who may not ask is taken to know the address.
async fn is_primary(connection: &Connection) -> Result<bool, RedisError> {
    let role = match connection.run(&cmd("ROLE")).await {
        Err(error) if is_forbidden(&error) => return Ok(true),
        role => role?,
    };
    let Value::Array(role) = role else {
        return Ok(false);
    };
    Ok(match role.first() {
        Some(Value::BulkString(role)) => role == b"master",
        Some(Value::SimpleString(role)) => role == "master",
        _ => false,
    })
}

/// Later callers connect anew, unless one has done that already.
fn forget(slot: &Mutex<Slot>, number: u64) {
    let mut slot = slot.lock();
    if slot.number == number {
        // (The connection is dropped with no lock held.)
        let attempt = slot.attempt.take();
        drop(slot);
        drop(attempt);
    }
}

/// Whether another connection may do better: to a server that answers, or to the new primary.
fn is_fatal(error: &EngineError) -> bool {
    match error {
        EngineError::TimedOut(_) => true,
        EngineError::Reset(_) => false,
        EngineError::Store(error) => match error.downcast_ref::<RedisError>() {
            Some(error) => match error.kind() {
                ErrorKind::Server(kind) => !matches!(
                    kind,
                    ServerErrorKind::NoPerm | ServerErrorKind::ResponseError
                ),
                // It answers: it has no memory (OOM), no disk (MISCONF). But without its replicas it may be no primary any
                // more.
                ErrorKind::Extension => error.code() == Some("NOREPLICAS"),
                _ => true,
            },
            None => false,
        },
    }
}

/// Whether the user has no permission for a command.
pub(super) fn is_forbidden(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) || error.code() == Some("NOPERM")
}

#[cfg(test)]
mod tests;
