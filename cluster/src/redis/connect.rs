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

/// What a test puts in the place of redis-rs.
#[cfg(feature = "rules")]
pub trait Wire: Send + Sync {
    /// Opens a connection. What the server sends unasked goes to `pushes`.
    fn connect(
        &self,
        pushes: Box<dyn Fn(PushInfo) + Send + Sync>,
    ) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>>;
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

/// Gives up the attempt of this number. That is what becomes of one whose caller is refused, or leaves before there is a
/// connection: without a caller it does not go on, and the next caller would find its time over.
struct GivesUp<'a>(&'a Mutex<Slot>, Option<u64>);

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.1 {
            forget(self.0, number);
        }
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
    async fn shared(self: &Arc<Self>) -> Result<(u64, Connection), RedisError> {
        let (number, attempt) = {
            let mut slot = self.slot.lock();
            if slot.attempt.is_none() {
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
                slot.attempt = Some(connect.boxed().shared());
            }
            (slot.number, slot.attempt.clone())
        };
        let Some(attempt) = attempt else {
            return Err((ErrorKind::Io, "there is no connection").into());
        };
        let mut gives_up = GivesUp(&self.slot, Some(number));
        let connection = attempt.await?;
        gives_up.1 = None;
        Ok((number, connection))
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
        let mut used = None;
        let called = timeout(self.timeout, async {
            let shared = self.shared().await;
            let (number, connection) = shared.map_err(|error| EngineError::Store(error.into()))?;
            used = Some(number);
            call(connection).await
        });
        let answer = called.await;
        let answer = answer.unwrap_or(Err(EngineError::TimedOut(self.timeout)));
        if let (Some(number), Err(error)) = (used, &answer)
            && is_fatal(error)
        {
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
mod tests {
    use super::*;

    /// Several callers fail on one connection. The last of them comes when another one has been made, and leaves it.
    #[test]
    fn who_fails_on_an_earlier_connection_leaves_the_next_one() {
        let attempt = std::future::pending().boxed().shared();
        let slot = Mutex::new(Slot {
            number: 2,
            attempt: Some(attempt),
        });
        forget(&slot, 1);
        assert!(slot.lock().attempt.is_some());
        forget(&slot, 2);
        assert!(slot.lock().attempt.is_none());
    }

    /// A primary that has become a replica, or has lost its own, may have a successor. One that answers and refuses has
    /// none.
    #[test]
    fn another_connection_is_made_where_another_server_may_do_better() {
        let of_kind = |kind| RedisError::from((ErrorKind::Server(kind), "the server refuses"));
        let of_code = |code: &str| ::redis::make_extension_error(code.to_owned(), None);
        for (error, expected) in [
            (of_kind(ServerErrorKind::ReadOnly), true),
            (of_kind(ServerErrorKind::MasterDown), true),
            (of_code("NOREPLICAS"), true),
            (of_code("OOM"), false),
            (of_kind(ServerErrorKind::NoPerm), false),
            (of_kind(ServerErrorKind::ResponseError), false),
        ] {
            let text = error.to_string();
            let found = is_fatal(&EngineError::Store(error.into()));
            assert_eq!(found, expected, "{text}");
        }
    }

    /// A server with this role. One that is no primary hangs up. Without a role, its user may not ask.
    #[cfg(feature = "rules")]
    struct Role(&'static str);

    #[cfg(feature = "rules")]
    impl Wire for Role {
        fn connect(
            &self,
            pushes: Box<dyn Fn(PushInfo) + Send + Sync>,
        ) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>> {
            let role = self.0;
            let connect = async move {
                if role != "master" {
                    let kind = PushKind::Disconnection;
                    let data = Vec::new();
                    pushes(PushInfo { kind, data });
                }
                Ok(Arc::new(Self(role)) as Arc<dyn Socket>)
            };
            connect.boxed()
        }
    }

    #[cfg(feature = "rules")]
    impl Socket for Role {
        fn run(&self, _: &Cmd) -> BoxFuture<'static, Result<Value, RedisError>> {
            if self.0.is_empty() {
                let kind = ErrorKind::Server(ServerErrorKind::NoPerm);
                let refused = RedisError::from((kind, "this user may not"));
                return std::future::ready(Err(refused)).boxed();
            }
            let role = Value::BulkString(self.0.into());
            std::future::ready(Ok(Value::Array(vec![role]))).boxed()
        }
    }

    #[cfg(feature = "rules")]
    #[tokio::test]
    async fn the_end_of_a_connection_that_is_not_taken_is_no_news() {
        let servers = ["slave", "master"].map(|role| Server::Simulated(Arc::new(Role(role))));
        let addresses = Addresses::of(servers.into(), Duration::from_secs(20));
        let told = Arc::new(Mutex::new(0));
        let heard = told.clone();
        let connection = addresses.connect(move |_| *heard.lock() += 1).await;
        assert!(connection.is_ok());
        assert_eq!(*told.lock(), 0);
    }

    /// It may lag, and takes no commits.
    #[cfg(feature = "rules")]
    #[tokio::test]
    async fn a_replica_is_no_primary() {
        let roles = [
            ("master", true),
            ("", true),
            ("slave", false),
            ("sentinel", false),
        ];
        for (role, is_taken) in roles {
            let server = Server::Simulated(Arc::new(Role(role)));
            let addresses = Addresses::of(vec![server], Duration::from_secs(20));
            assert_eq!(addresses.connect(|_| ()).await.is_ok(), is_taken, "{role}");
        }
    }

    #[cfg(feature = "rules")]
    #[tokio::test]
    async fn of_each_server_it_is_said_why_there_is_no_connection() {
        let servers = ["slave", "sentinel"].map(|role| Server::Simulated(Arc::new(Role(role))));
        let addresses = Addresses::of(servers.into(), Duration::from_secs(20));
        let refused = addresses.connect(|_| ()).await;
        let refused = refused.err().expect("there is no primary").to_string();
        assert_eq!(refused.matches("is no primary").count(), 2, "{refused}");
    }

    /// A primary, and the ends of its connections that hear of pushes.
    #[cfg(feature = "rules")]
    #[derive(Default)]
    struct Primary(Mutex<Vec<Pushed>>);

    #[cfg(feature = "rules")]
    type Pushed = Box<dyn Fn(PushInfo) + Send + Sync>;

    #[cfg(feature = "rules")]
    impl Wire for Primary {
        fn connect(
            &self,
            pushes: Box<dyn Fn(PushInfo) + Send + Sync>,
        ) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>> {
            self.0.lock().push(pushes);
            std::future::ready(Ok(Arc::new(Role("master")) as Arc<dyn Socket>)).boxed()
        }
    }

    /// So no call fails on it, however long ago it ended.
    #[cfg(feature = "rules")]
    #[tokio::test]
    async fn the_end_of_the_shared_connection_is_noticed_without_a_call() {
        let primary = Arc::new(Primary::default());
        let servers = vec![Server::Simulated(primary.clone())];
        let addresses = Addresses::of(servers, Duration::from_secs(20));
        for connections in [1, 2] {
            for _ in 0..2 {
                let called = addresses.call(async |_| Ok(())).await;
                assert!(called.is_ok());
            }
            let made = primary.0.lock();
            assert_eq!(made.len(), connections);
            made[connections - 1](PushInfo {
                kind: PushKind::Disconnection,
                data: Vec::new(),
            });
        }
    }

    /// A server that accepts, and is silent before there is a connection.
    #[cfg(feature = "rules")]
    struct Silent;

    #[cfg(feature = "rules")]
    impl Wire for Silent {
        fn connect(
            &self,
            _: Box<dyn Fn(PushInfo) + Send + Sync>,
        ) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>> {
            std::future::pending().boxed()
        }
    }

    /// A server that is silent to the first connection, and is the primary after that.
    #[cfg(feature = "rules")]
    #[derive(Default)]
    struct SilentOnce(AtomicBool);

    #[cfg(feature = "rules")]
    impl Wire for SilentOnce {
        fn connect(
            &self,
            _: Box<dyn Fn(PushInfo) + Send + Sync>,
        ) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>> {
            match self.0.swap(true, Ordering::Relaxed) {
                true => std::future::ready(Ok(Arc::new(Role("master")) as Arc<dyn Socket>)).boxed(),
                false => std::future::pending().boxed(),
            }
        }
    }

    /// As it is with a handler whose client hangs up. The next caller does not wait for what nothing drives.
    #[cfg(feature = "rules")]
    #[tokio::test(start_paused = true)]
    async fn a_caller_that_leaves_takes_its_attempt_along() {
        let servers = vec![Server::Simulated(Arc::new(SilentOnce::default()))];
        let addresses = Addresses::of(servers, Duration::from_secs(2));
        let leaves = timeout(Duration::from_secs(1), addresses.call(async |_| Ok(())));
        assert!(leaves.await.is_err());
        let called = addresses.call(async |_| Ok(())).await;
        assert!(called.is_ok(), "{called:?}");
    }

    #[cfg(feature = "rules")]
    #[tokio::test(start_paused = true)]
    async fn f5_a_call_ends_at_its_timeout_though_there_is_no_connection() {
        let (limit, hour) = (Duration::from_secs(2), Duration::from_secs(3_600));
        let addresses = Addresses::of(vec![Server::Simulated(Arc::new(Silent))], limit);
        let begun = tokio::time::Instant::now();
        let called = timeout(hour, addresses.call(async |_| Ok(()))).await;
        assert!(matches!(called, Ok(Err(EngineError::TimedOut(_)))));
        assert!(begun.elapsed() < 2 * limit);
    }
}
