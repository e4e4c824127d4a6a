//! One client's connection: a request in, its answer out, and then the next, as in Kafka's own broker.

use crate::broker::Broker;
use crate::broker::answer::{Answer, Caller, Reply, Waiting};
use crate::console;
use crate::figures::metrics::Metrics;
use crate::server::budget::Share;
use crate::server::incoming::Incoming;
use crate::server::limits::{Limits, Memory, PER_ELEMENT, time_for};
use crate::wire::request::{Envelope, Request};
use bytes::{Bytes, BytesMut};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::WriteHalf;
use tokio::sync::watch;

/// How a connection came to its end.
#[derive(Debug)]
pub(crate) enum End {
    /// The client closed it, or had no use for it any more.
    Closed,
    /// The server shuts down, and the last request was answered.
    ShutDown,
    /// The broker closed it, for this reason.
    Dropped(String),
}

impl End {
    pub(crate) fn because(reason: impl Display) -> Self {
        Self::Dropped(reason.to_string())
    }
}

/// What all connections share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) broker: Arc<Broker>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Serves one client until it leaves, breaks the protocol or a limit, or the server stops.
///
/// Whatever ends this drops the request that is being served: that is what takes a vanished client's request out of
/// its purgatory. `place` is the client's among all connections.
pub(crate) async fn serve(mut socket: TcpStream, context: Context, place: Share) -> End {
    let (address, client) = match (socket.local_addr(), socket.peer_addr()) {
        (Ok(address), Ok(client)) => (address, client),
        (Err(error), _) | (_, Err(error)) => return End::because(error),
    };
    let mut stop = context.stop.clone();
    let (reader, writer) = socket.split();
    let mut incoming = Incoming::new(reader);
    let mut connection = Connection {
        memory: context.limits.memory(),
        context,
        address,
        client,
        writer,
    };
    loop {
        let frame = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return End::ShutDown,
            frame = incoming.next(&mut connection.memory, &place) => frame,
        };
        let answered = match frame {
            Ok(frame) => connection.answer(frame, &mut incoming).await,
            Err(end) => Err(end),
        };
        if let Err(end) = answered {
            return end;
        }
        if incoming.has_next() {
            // Others first: a client that sends many requests at once gets no more than its turn.
            tokio::task::yield_now().await;
        }
    }
}

struct Connection<'a> {
    context: Context,
    /// Where the client reached this broker.
    address: SocketAddr,
    client: SocketAddr,
    writer: WriteHalf<'a>,
    memory: Memory,
}

/// A request that was taken up, and how its answer will be written.
struct InFlight {
    correlation_id: i32,
    version: i16,
    metrics: Arc<Metrics>,
    answered: bool,
}

impl InFlight {
    fn new(correlation_id: i32, version: i16, metrics: &Arc<Metrics>) -> Self {
        metrics.received.increase();
        Self {
            correlation_id,
            version,
            metrics: Arc::clone(metrics),
            answered: false,
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let counter = if self.answered {
            &self.metrics.answered
        } else {
            &self.metrics.abandoned
        };
        counter.increase();
    }
}

/// A request that was taken up, short of waiting.
enum TakenUp {
    Answered(InFlight, BytesMut),
    Unread(InFlight, Answer),
    Waiting(InFlight, Waiting),
    RequestError,
}

impl Connection<'_> {
    /// Serves the request in `frame`, for which `memory` has room. An error ends the connection.
    async fn answer(&mut self, frame: Bytes, incoming: &mut Incoming<'_>) -> Result<(), End> {
        let (taken_up, parked) = self.take_up(frame).await.map_err(End::Dropped)?;
        let (mut in_flight, bytes) = match taken_up {
            TakenUp::RequestError => {
                self.memory.hold(0).await.map_err(End::Dropped)?;
                return Ok(());
            }
            TakenUp::Answered(in_flight, bytes) => (in_flight, bytes),
            TakenUp::Unread(in_flight, answer) => self.encode(in_flight, answer).await?,
            TakenUp::Waiting(in_flight, mut waiting) => {
                self.memory.hold(0).await.map_err(End::Dropped)?;
                let answer = tokio::select! {
                    answer = waiting.answer() => answer,
                    end = incoming.gone() => return Err(end),
                };
                let answer =
                    answer.ok_or_else(|| End::because("a request ended without an answer"));
                self.encode(in_flight, answer?).await?
            }
        };
        drop(parked);
        self.memory.hold(bytes.len()).await.map_err(End::Dropped)?;
        self.write(&bytes).await.map_err(End::Dropped)?;
        in_flight.answered = true;
        drop(bytes);
        self.memory.hold(0).await.map_err(End::Dropped)
    }

    /// Does what the request asks, short of waiting. Also what it holds of the memory for parked requests.
    async fn take_up(&mut self, frame: Bytes) -> Result<(TakenUp, Memory), String> {
        let broker = Arc::clone(&self.context.broker);
        let limits = &self.context.limits;
        let envelope = Envelope::open(&frame).map_err(|malformed| malformed.to_string())?;
        mention_left_over(&envelope);
        let weight = frame.len() + PER_ELEMENT * envelope.extent().elements;
        drop(frame);
        self.memory.hold(weight).await?;
        let request = limits.work(weight, move || envelope.decode()).await?;
        let request = request.map_err(|malformed| malformed.to_string())?;

        let weight = weight + PER_ELEMENT * broker.unnamed(&request.body);
        self.memory.hold(weight).await?;
        let mut parked = limits.parked();
        let caller = Caller {
            address: self.address,
            client: self.client,
            may_wait: parked.try_hold(weight),
        };
        let taken_up = limits.work(weight, move || take_up(&broker, request, caller));
        Ok((taken_up.await??, parked))
    }

    /// Reads what the answer is to hold, and puts it into bytes.
    async fn encode(
        &mut self,
        in_flight: InFlight,
        answer: Answer,
    ) -> Result<(InFlight, BytesMut), End> {
        let weight = answer.weight();
        self.memory.hold(weight).await.map_err(End::Dropped)?;
        let encoded = self.context.limits.work(weight, move || {
            let encoded = answer.encode(in_flight.correlation_id, in_flight.version);
            encoded.map(|bytes| (in_flight, bytes))
        });
        encoded.await.map_err(End::Dropped)?.map_err(cannot_encode)
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        tokio::select! {
            written = self.writer.write_all(bytes) => written.map_err(|error| error.to_string()),
            () = tokio::time::sleep(time_for(bytes.len())) => {
                Err("the client takes too long to read its answer".to_owned())
            }
            reason = self.memory.revoked() => Err(reason),
        }
    }
}

fn take_up(broker: &Broker, request: Request, caller: Caller) -> Result<TakenUp, String> {
    let (correlation_id, version) = (request.correlation_id, request.version);
    let in_flight = || InFlight::new(correlation_id, version, &broker.metrics);
    match broker.handle(request, caller) {
        Reply::Now(answer) if answer.weight() > 0 => Ok(TakenUp::Unread(in_flight(), answer)),
        Reply::Now(answer) => {
            let in_flight = in_flight();
            let bytes = answer.encode(correlation_id, version);
            Ok(TakenUp::Answered(
                in_flight,
                bytes.map_err(|error| error.to_string())?,
            ))
        }
        Reply::Later(waiting) => Ok(TakenUp::Waiting(in_flight(), waiting)),
        Reply::Never => {
            broker.metrics.unacknowledged.increase();
            Ok(TakenUp::RequestError)
        }
        Reply::Disconnect(reason) => Err(reason),
    }
}

fn cannot_encode(error: anyhow::Error) -> End {
    End::Dropped(format!("cannot encode an answer: {error}"))
}

/// Says once, for all connections, that a client sends more than its request has fields.
fn mention_left_over(envelope: &Envelope) {
    static MENTIONED: AtomicBool = AtomicBool::new(false);
    let left_over = envelope.extent().left_over;
    // ORDERING: Relaxed: only which thread comes first counts.
    if left_over > 0 && !MENTIONED.swap(true, Ordering::Relaxed) {
        let (api, version) = envelope.api();
        console::warn(&format!(
            "{left_over} bytes after the last field of {api:?} v{version}: let pass, and not mentioned again"
        ));
    }
}
