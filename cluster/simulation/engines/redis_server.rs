//! A Redis server as far as a node needs one: tracking, channels, counters and the epoch.

use super::{Host, Pipe, Traffic, take_one};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use request_purgatory_cluster::redis::client::{
    Arg, Cmd, ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value,
};
use request_purgatory_cluster::redis::{Pushed, Socket, Wire};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::sleep;

const COUNTER: &[u8] = b"purgatory:v:";
const CHANNEL: &[u8] = b"purgatory:c:";
const EPOCH: &[u8] = b"purgatory:epoch";

type Words = Vec<Vec<u8>>;
type Answer = Result<Value, RedisError>;

enum Sent {
    Answer(oneshot::Sender<Answer>, Answer),
    Push(PushInfo),
}

/// Which changes a connection is told of.
#[derive(PartialEq)]
enum Tracks {
    Nothing,
    /// Of these names, once.
    Read(BTreeSet<Vec<u8>>),
    Everything,
}

struct Connection {
    to_node: Pipe<Sent>,
    push: Arc<dyn Fn(PushInfo) + Send + Sync>,
    tracks: Tracks,
    channels: BTreeSet<Vec<u8>>,
    is_cut: Arc<AtomicBool>,
}

impl Connection {
    fn cut(self) {
        self.is_cut.store(true, Ordering::Relaxed);
        (self.push)(PushInfo {
            kind: PushKind::Disconnection,
            data: Vec::new(),
        });
    }
}

#[derive(Default)]
struct State {
    opened: u64,
    has_epoch: bool,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Clone)]
pub struct RedisServer {
    host: Arc<dyn Host>,
    state: Arc<Mutex<State>>,
}

impl RedisServer {
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self {
            host,
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    pub fn cut(&self) {
        let connections = std::mem::take(&mut self.state().connections);
        connections.into_values().for_each(Connection::cut);
    }

    /// Ends one of the connections, `chosen` among as many as there are.
    pub fn cut_one(&self, chosen: impl FnOnce(usize) -> usize) {
        let connection = take_one(&mut self.state().connections, chosen);
        connection.into_iter().for_each(Connection::cut);
    }

    /// All data is lost, the epoch included.
    pub fn flush(&self) {
        let mut state = self.state();
        state.has_epoch = false;
        for connection in state.connections.values() {
            if connection.tracks != Tracks::Nothing {
                connection.to_node.send(Sent::Push(PushInfo {
                    kind: PushKind::Invalidate,
                    data: vec![Value::Nil],
                }));
            }
        }
    }

    /// A counter was raised, by the script that also publishes.
    pub fn committed(&self, key: u64, version: u64) {
        let key = key.to_string();
        let mut state = self.state();
        self.changed(&mut state, &[COUNTER, key.as_bytes()].concat());
        let text = format!("{:x} {version}", self.host.epoch());
        self.publish(
            &mut state,
            &[CHANNEL, key.as_bytes()].concat(),
            text.as_bytes(),
        );
    }

    fn push(&self, number: u64, connection: &Connection, kind: PushKind, data: Vec<Value>) {
        if !self.host.loses(number) {
            self.host.count(Traffic::Out(20 + size(&data)));
            let push = PushInfo { kind, data };
            connection.to_node.send(Sent::Push(push));
        }
    }

    fn changed(&self, state: &mut State, name: &[u8]) {
        for (number, connection) in &mut state.connections {
            let is_told = match &mut connection.tracks {
                Tracks::Nothing => false,
                Tracks::Read(names) => names.remove(name),
                Tracks::Everything => true,
            };
            if is_told {
                let names = Value::Array(vec![Value::BulkString(name.to_vec())]);
                self.push(*number, connection, PushKind::Invalidate, vec![names]);
            }
        }
    }

    fn publish(&self, state: &mut State, channel: &[u8], text: &[u8]) {
        for (number, connection) in &state.connections {
            if connection.channels.contains(channel) {
                let data = [channel, text].map(|it| Value::BulkString(it.to_vec()));
                self.push(*number, connection, PushKind::Message, data.into());
            }
        }
    }

    /// Carries out one command, in one step.
    fn run(&self, number: u64, words: &Words) -> Answer {
        let mut state = self.state();
        let state = &mut *state;
        let closed = || RedisError::from((ErrorKind::Io, "the connection is closed"));
        let connection = state.connections.get_mut(&number).ok_or_else(closed)?;
        let is_session = matches!(&*words[0], b"CLIENT" | b"SUBSCRIBE");
        if is_session && self.host.refuses_sessions() {
            let error = (
                ErrorKind::Server(ServerErrorKind::NoPerm),
                "this user may not",
            );
            return Err(error.into());
        }
        Ok(match &*words[0] {
            b"CLIENT" => {
                connection.tracks = match words.iter().any(|it| it == b"BCAST") {
                    true => Tracks::Everything,
                    false => Tracks::Read(BTreeSet::new()),
                };
                Value::Okay
            }
            b"MGET" => {
                if self.host.is_unread() {
                    return Err((ErrorKind::Io, "nothing can be read").into());
                }
                self.host.count(Traffic::Read(words.len() - 2));
                if let Tracks::Read(names) = &mut connection.tracks {
                    names.extend(words[1..].iter().cloned());
                }
                let values = words[1..].iter().map(|it| self.value(it, state.has_epoch));
                Value::Array(values.collect())
            }
            b"SET" => {
                state.has_epoch = true;
                self.changed(state, EPOCH);
                Value::Okay
            }
            b"ROLE" => Value::Array(vec![Value::BulkString(b"master".to_vec())]),
            b"INFO" => Value::BulkString(b"maxmemory_policy:noeviction\r\n".to_vec()),
            b"PING" => Value::SimpleString("PONG".into()),
            b"SUBSCRIBE" => {
                connection.channels.extend(words[1..].iter().cloned());
                Value::Okay
            }
            b"UNSUBSCRIBE" => {
                words[1..]
                    .iter()
                    .for_each(|it| _ = connection.channels.remove(it));
                Value::Okay
            }
            b"PUBLISH" => {
                self.publish(state, &words[1], &words[2]);
                Value::Int(1)
            }
            other => panic!(
                "the simulated Redis knows no {}",
                String::from_utf8_lossy(other)
            ),
        })
    }

    fn value(&self, name: &[u8], has_epoch: bool) -> Value {
        if name == EPOCH {
            return match has_epoch {
                true => Value::BulkString(format!("{:x}", self.host.epoch()).into()),
                false => Value::Nil,
            };
        }
        let key = name.strip_prefix(COUNTER).expect("a counter");
        let key = str::from_utf8(key).expect("digits").parse().expect("a key");
        match self.host.version(key) {
            0 => Value::Nil,
            version => Value::BulkString(version.to_string().into()),
        }
    }
}

/// About, in the server's protocol.
fn size(values: &[Value]) -> usize {
    let size_of = |value: &Value| match value {
        Value::Array(values) => 5 + size(values),
        Value::BulkString(bytes) => 7 + bytes.len(),
        _ => 5,
    };
    values.iter().map(size_of).sum()
}

impl Wire for RedisServer {
    fn connect(&self, pushes: Pushed) -> BoxFuture<'static, Result<Arc<dyn Socket>, RedisError>> {
        let server = self.clone();
        async move {
            sleep(server.host.delay()).await;
            if server.host.is_gone() {
                return Err((ErrorKind::Io, "the connection was refused").into());
            }
            let (is_cut, push) = (Arc::new(AtomicBool::new(false)), Arc::from(pushes));
            let number = {
                let mut state = server.state();
                state.opened += 1;
                state.opened
            };
            let arrive = {
                let push: Arc<dyn Fn(PushInfo) + Send + Sync> = Arc::clone(&push);
                move |sent| match sent {
                    // The caller may have given up.
                    Sent::Answer(caller, answer) => drop(caller.send(answer)),
                    Sent::Push(it) => push(it),
                }
            };
            let connection = Connection {
                to_node: Pipe::new(&server.host, &is_cut, arrive),
                push,
                tracks: Tracks::Nothing,
                channels: BTreeSet::new(),
                is_cut: is_cut.clone(),
            };
            server.state().connections.insert(number, connection);
            let answers = server.clone();
            let arrive = move |(words, caller): (Words, oneshot::Sender<Answer>)| {
                let answer = answers.run(number, &words);
                let length = answer
                    .as_ref()
                    .map_or(20, |it| size(std::slice::from_ref(it)));
                answers.host.count(Traffic::Out(length));
                if let Some(connection) = answers.state().connections.get(&number) {
                    connection.to_node.send(Sent::Answer(caller, answer));
                }
            };
            Ok(Arc::new(Link {
                host: server.host.clone(),
                to_server: Pipe::new(&server.host, &is_cut, arrive),
                number,
                server,
            }) as Arc<dyn Socket>)
        }
        .boxed()
    }
}

/// A node's end of a connection.
struct Link {
    host: Arc<dyn Host>,
    to_server: Pipe<(Words, oneshot::Sender<Answer>)>,
    number: u64,
    server: RedisServer,
}

impl Socket for Link {
    fn run(&self, command: &Cmd) -> BoxFuture<'static, Answer> {
        let words = command.args_iter().map(|it| match it {
            Arg::Simple(word) => word.to_vec(),
            other => panic!("{other:?}"),
        });
        let (caller, answer) = oneshot::channel();
        self.host
            .count(Traffic::In(command.get_packed_command().len()));
        self.to_server.send((words.collect(), caller));
        let closed = |_| RedisError::from((ErrorKind::Io, "the connection is closed"));
        async move { answer.await.map_err(closed)? }.boxed()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let gone = self.server.state().connections.remove(&self.number);
        if let Some(connection) = gone {
            connection.is_cut.store(true, Ordering::Relaxed);
        }
    }
}
