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
    // One that is silent or lost; and one that answered.
    let closed = RedisError::from((ErrorKind::Io, "it is closed"));
    let (epoch, version) = (crate::position::Epoch(1), 1);
    let position = crate::position::Position { epoch, version };
    for (error, expected) in [
        (EngineError::TimedOut(Duration::from_secs(2)), true),
        (EngineError::Store(closed.into()), true),
        (EngineError::Reset(position), false),
        (EngineError::Store("an entry of no commit".into()), false),
    ] {
        assert_eq!(is_fatal(&error), expected, "{error}");
    }
}

/// A server with this role. One that is no primary hangs up, at once and when it is asked. Without a role, its user may
/// not ask.
#[cfg(feature = "rules")]
struct Role(&'static str);

#[cfg(feature = "rules")]
struct HangsUp(Role, Pushed);

/// A connection has ended.
#[cfg(feature = "rules")]
fn ended() -> PushInfo {
    PushInfo {
        kind: PushKind::Disconnection,
        data: Vec::new(),
    }
}

#[cfg(feature = "rules")]
impl Wire for Role {
    fn connect(&self, pushes: Pushed) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>> {
        let role = Self(self.0);
        let connect = async move {
            if role.0 == "master" {
                return Ok(Arc::new(role) as Arc<dyn Socket>);
            }
            pushes(ended());
            Ok(Arc::new(HangsUp(role, pushes)) as Arc<dyn Socket>)
        };
        connect.boxed()
    }
}

#[cfg(feature = "rules")]
impl Socket for HangsUp {
    fn run(&self, command: &Cmd) -> BoxFuture<'static, Result<Value, RedisError>> {
        self.1(ended());
        self.0.run(command)
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
impl Wire for Primary {
    fn connect(&self, pushes: Pushed) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>> {
        self.0.lock().push(pushes);
        std::future::ready(Ok(Arc::new(Role("master")) as Arc<dyn Socket>)).boxed()
    }
}

/// So no call fails on it, however long ago it ended. (Nor does the connection keep those that share it: it ends with
/// them.)
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
            let made = primary.0.lock();
            assert_eq!(made.len(), connections);
            // Word of the end of an earlier one comes late: the next one stays.
            made[..connections - 1]
                .iter()
                .for_each(|tell| tell(ended()));
        }
        primary.0.lock()[connections - 1](ended());
    }
    let slot = Arc::downgrade(&addresses.slot);
    drop(addresses);
    assert!(slot.upgrade().is_none());
}

/// A primary that takes its time for each connection, in seconds: this for the first, and the next one for the next.
#[cfg(feature = "rules")]
struct Slow(Mutex<Vec<u64>>);

#[cfg(feature = "rules")]
impl Wire for Slow {
    fn connect(&self, _: Pushed) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>> {
        let time = self.0.lock().remove(0);
        let connect = async move {
            tokio::time::sleep(Duration::from_secs(time)).await;
            Ok(Arc::new(Role("master")) as Arc<dyn Socket>)
        };
        connect.boxed()
    }
}

#[cfg(feature = "rules")]
const HOUR: u64 = 3_600;

/// Calls of two seconds at most.
#[cfg(feature = "rules")]
fn slow(times: &[u64]) -> Arc<Addresses> {
    let server = Server::Simulated(Arc::new(Slow(Mutex::new(times.into()))));
    Addresses::of(vec![server], Duration::from_secs(2))
}

/// As it is with a handler whose client hangs up. The next caller does not wait for what nothing drives.
#[cfg(feature = "rules")]
#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_takes_its_attempt_along() {
    let addresses = slow(&[HOUR, 0]);
    let leaves = timeout(Duration::from_secs(1), addresses.call(async |_| Ok(())));
    assert!(leaves.await.is_err());
    let called = addresses.call(async |_| Ok(())).await;
    assert!(called.is_ok(), "{called:?}");
}

/// A second connection would take too long.
#[cfg(feature = "rules")]
#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_others_leaves_them_the_attempt() {
    let addresses = slow(&[1, HOUR]);
    let leaves = addresses.call(async |_| Ok(()));
    let leaves = timeout(Duration::from_millis(500), leaves);
    let (left, stayed) = tokio::join!(leaves, addresses.call(async |_| Ok(())));
    assert!(left.is_err());
    assert!(stayed.is_ok(), "{stayed:?}");
    let called = addresses.call(async |_| Ok(())).await;
    assert!(called.is_ok(), "{called:?}");
}

#[cfg(feature = "rules")]
#[tokio::test(start_paused = true)]
async fn f5_a_call_ends_at_its_timeout_though_there_is_no_connection() {
    let begun = tokio::time::Instant::now();
    let called = slow(&[HOUR]).call(async |_| Ok(())).await;
    assert!(matches!(called, Err(EngineError::TimedOut(_))));
    assert!(begun.elapsed() < Duration::from_secs(4));
}
