//! A NATS server as far as a session needs one: subscriptions, messages to itself, and what the stream republishes.

use super::{Host, Pipe, Traffic, take_one};
use async_nats::header::NATS_SEQUENCE;
use async_nats::{Event, HeaderMap, Message};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use request_purgatory_cluster::FeedError;
use request_purgatory_cluster::nats::{Socket, Wire};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::time::sleep;

type Told = mpsc::UnboundedSender<Message>;

enum Asked {
    Subscribe(String, Told),
    Publish(String, Vec<u8>),
}

struct Connection {
    to_node: Pipe<(Told, Message)>,
    tell: Arc<dyn Fn(Event) + Send + Sync>,
    is_cut: Arc<AtomicBool>,
}

impl Connection {
    fn cut(self) {
        self.is_cut.store(true, Ordering::Relaxed);
        (self.tell)(Event::Disconnected);
    }
}

#[derive(Default)]
struct State {
    opened: u64,
    connections: BTreeMap<u64, Connection>,
    /// By subject: each echo of each node would look at the subscriptions of all nodes otherwise.
    plain: HashMap<String, Vec<Subscriber>>,
    /// By pattern, of which all nodes together have a few.
    patterns: BTreeMap<String, Vec<Subscriber>>,
}

/// The number of a connection, and where its messages go.
type Subscriber = (u64, Told);

#[derive(Clone)]
pub struct NatsServer {
    host: Arc<dyn Host>,
    state: Arc<Mutex<State>>,
}

impl NatsServer {
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

    /// The stream was deleted, and made anew.
    pub fn flush(&self) {
        self.publish("$JS.EVENT.ADVISORY.STREAM.DELETED.PURGATORY", b"", None);
    }

    /// The stream has stored an event, and says so.
    pub fn committed(&self, key: u64, version: u64) {
        self.publish(&format!("purgatory.out.{key}"), b"", Some(version));
    }

    fn publish(&self, subject: &str, payload: &[u8], sequence: Option<u64>) {
        let headers = sequence.map(|sequence| {
            let mut headers = HeaderMap::new();
            headers.insert(NATS_SEQUENCE, sequence.to_string());
            headers
        });
        let length = subject.len() + payload.len() + 20 + headers.as_ref().map_or(0, |_| 90);
        let message = Message {
            subject: subject.into(),
            reply: None,
            payload: payload.to_vec().into(),
            headers,
            status: None,
            description: None,
            length,
        };
        let mut state = self.state();
        let State {
            connections,
            plain,
            patterns,
            ..
        } = &mut *state;
        let patterns = patterns.iter_mut().filter(|it| matches(it.0, subject));
        for subscribers in plain
            .get_mut(subject)
            .into_iter()
            .chain(patterns.map(|it| it.1))
        {
            subscribers
                .retain(|(number, told)| connections.contains_key(number) && !told.is_closed());
            for (number, told) in subscribers.iter() {
                if !self.host.loses(*number) {
                    self.host.count(Traffic::Out(length));
                    let to_node = &connections[number].to_node;
                    to_node.send((told.clone(), message.clone()));
                }
            }
        }
    }

    fn subscribe(&self, number: u64, subject: String, told: Told) {
        let mut state = self.state();
        let subscriptions = match subject.contains(['*', '>']) {
            true => state.patterns.entry(subject).or_default(),
            false => state.plain.entry(subject).or_default(),
        };
        subscriptions.push((number, told));
    }

    fn handle(&self, number: u64, asked: Asked) {
        match (asked, self.host.spread()) {
            (Asked::Publish(subject, payload), _) => self.publish(&subject, &payload, None),
            // Events are stored on another server than the one that a node is with.
            (Asked::Subscribe(subject, told), Some(spread))
                if subject.starts_with("purgatory.") =>
            {
                let server = self.clone();
                tokio::spawn(async move {
                    sleep(spread).await;
                    server.subscribe(number, subject, told);
                });
            }
            (Asked::Subscribe(subject, told), _) => self.subscribe(number, subject, told),
        }
    }
}

fn matches(pattern: &str, subject: &str) -> bool {
    let (mut pattern, mut subject) = (pattern.split('.'), subject.split('.'));
    loop {
        match (pattern.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some(one), Some(other)) if one == "*" || one == other => {}
            _ => return false,
        }
    }
}

impl Wire for NatsServer {
    fn connect(
        &self,
        tell: Box<dyn Fn(Event) + Send + Sync>,
    ) -> BoxFuture<'static, Result<Arc<dyn Socket>, FeedError>> {
        let server = self.clone();
        async move {
            sleep(server.host.delay()).await;
            if server.host.is_gone() {
                return Err(FeedError::Connect("the connection was refused".into()));
            }
            if server.host.refuses_sessions() {
                return Err(FeedError::Refused("this user may not subscribe".into()));
            }
            let is_cut = Arc::new(AtomicBool::new(false));
            let number = {
                let mut state = server.state();
                state.opened += 1;
                state.opened
            };
            let arrive = |(told, message): (Told, Message)| drop(told.send(message));
            let connection = Connection {
                to_node: Pipe::new(&server.host, &is_cut, arrive),
                tell: Arc::from(tell),
                is_cut: is_cut.clone(),
            };
            server.state().connections.insert(number, connection);
            let handles = server.clone();
            let arrive = move |asked| handles.handle(number, asked);
            Ok(Arc::new(Link {
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
    to_server: Pipe<Asked>,
    number: u64,
    server: NatsServer,
}

impl Socket for Link {
    fn subscribe(&self, subject: String) -> mpsc::UnboundedReceiver<Message> {
        let (told, messages) = mpsc::unbounded_channel();
        self.server.host.count(Traffic::In(subject.len() + 12));
        self.to_server.send(Asked::Subscribe(subject, told));
        messages
    }

    fn publish(&self, subject: String, payload: Vec<u8>) {
        self.server
            .host
            .count(Traffic::In(subject.len() + payload.len() + 12));
        self.to_server.send(Asked::Publish(subject, payload));
    }

    fn is_clustered(&self) -> bool {
        self.server.host.spread().is_some()
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
