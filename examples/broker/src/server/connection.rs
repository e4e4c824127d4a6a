//! One client's connection: a request in, its answer out, and then the next, as in Kafka's own broker.

use crate::broker::Broker;
use crate::console::warn;
use crate::exchange::{Answer, Caller, Reply};
use crate::server::incoming::{Incoming, Sent};
use crate::server::limits::{Limits, PER_ELEMENT, Share, time_for};
use crate::wire::request::Envelope;
use crate::wire::response::encode;
use bytes::{Bytes, BytesMut};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::WriteHalf;
use tokio::sync::watch;
use tokio::time::timeout;

/// How a connection came to its end.
#[derive(Debug)]
pub(crate) enum End {
    /// The client closed it, or had no use for it any more; or the server shuts down.
    Closed,
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
/// its purgatory.
pub(crate) async fn serve(mut socket: TcpStream, mut context: Context) -> Result<(), End> {
    let address = socket.local_addr().map_err(End::because)?;
    let client = socket.peer_addr().map_err(End::because)?;
    let (reader, writer) = socket.split();
    let mut connection = Connection {
        broker: context.broker,
        limits: context.limits,
        address,
        client,
        incoming: Incoming::new(reader),
        writer,
    };
    loop {
        let sent = tokio::select! {
            biased;
            _ = context.stop.wait_for(|stop| *stop) => return Err(End::Closed),
            sent = connection.incoming.next(&connection.limits) => sent?,
        };
        connection.answer(sent).await?;
        if connection.incoming.has_more() {
            // Others first: a client that sends many requests at once gets no more than its turn.
            tokio::task::yield_now().await;
        }
    }
}

struct Connection<'a> {
    broker: Arc<Broker>,
    limits: Arc<Limits>,
    /// Where the client reached this broker.
    address: SocketAddr,
    client: SocketAddr,
    incoming: Incoming<'a>,
    writer: WriteHalf<'a>,
}

/// A request that was taken up, short of waiting.
struct TakenUp {
    correlation_id: i32,
    version: i16,
    reply: Reply,
    /// The memory of what waits, and of what is answered at once.
    parked: Option<Share>,
    answered: Option<[Share; 2]>,
}

impl Connection<'_> {
    /// Serves what the client sent. An error ends the connection.
    async fn answer(&mut self, sent: Sent) -> Result<(), End> {
        let (frame, memory) = match sent {
            Sent::Request(frame, memory) => (frame, memory),
            Sent::TooLong(refusal) => {
                warn(&format!("{}: a request is too long: refused", self.client));
                let response = refusal.response.into();
                let bytes = encode(&response, refusal.correlation_id, refusal.version, 0);
                return self.write(&bytes.map_err(End::because)?).await;
            }
        };
        let taken_up = self.take_up(frame, memory).await?;
        let answer = match taken_up.reply {
            Reply::Now(answer) => answer,
            Reply::Later(mut waiting) => {
                let answer = tokio::select! {
                    answer = waiting.answer() => answer,
                    end = self.incoming.gone() => return Err(end),
                };
                answer.ok_or_else(|| End::because("a request ended without an answer"))?
            }
            Reply::Never => return Ok(()),
            Reply::Disconnect(reason) => return Err(End::Dropped(reason)),
        };
        drop(taken_up.parked);
        let (correlation_id, version) = (taken_up.correlation_id, taken_up.version);
        let (bytes, memory) = self.encode(answer, correlation_id, version).await?;
        self.write(&bytes).await?;
        drop((bytes, memory, taken_up.answered));
        Ok(())
    }

    /// Does what the request in `frame` asks, short of waiting.
    async fn take_up(&self, frame: Bytes, memory: Share) -> Result<TakenUp, End> {
        let envelope = Envelope::open(&frame).map_err(End::because)?;
        mention_left_over(&envelope);
        let elements = PER_ELEMENT * envelope.extent().elements;
        let weight = frame.len() + elements;
        drop(frame);
        let decoded = self.limits.memory(elements).await.map_err(End::Dropped)?;
        let decoding = self.limits.work(weight, || envelope.decode());
        let request = decoding.await.map_err(End::because)?;
        let (correlation_id, version) = (request.correlation_id, request.version);

        let parked = self.limits.try_park(weight);
        let caller = Caller {
            address: self.address,
            client: self.client,
            client_id: request.client_id.to_string(),
            version,
            may_wait: parked.is_some(),
        };
        let handling = self
            .limits
            .work(weight, || self.broker.handle(request, &caller));
        let reply = handling.await;
        let is_whole = matches!(reply, Reply::Now(Answer::Response(_)));
        Ok(TakenUp {
            correlation_id,
            version,
            reply,
            parked,
            answered: is_whole.then_some([memory, decoded]),
        })
    }

    /// Reads what the answer is to hold, and puts it into bytes; the memory for these is to be kept as long as they are.
    async fn encode(
        &self,
        answer: Answer,
        correlation_id: i32,
        version: i16,
    ) -> Result<(BytesMut, Option<Share>), End> {
        let encoded = match answer {
            Answer::Response(response) => {
                encode(&response, correlation_id, version, 0).map(|bytes| (bytes, None))
            }
            Answer::Unread(unread) => {
                let size = unread.size();
                // As read, and as encoded.
                let memory = self.limits.memory(2 * size).await.map_err(End::Dropped)?;
                let encoding = || encode(&unread.read(), correlation_id, version, size);
                let bytes = self.limits.work(size, encoding).await;
                bytes.map(|bytes| (bytes, Some(memory)))
            }
        };
        encoded.map_err(|error| End::because(format!("cannot encode an answer: {error}")))
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), End> {
        match timeout(time_for(bytes.len()), self.writer.write_all(bytes)).await {
            Ok(written) => written.map_err(End::because),
            Err(_) => Err(End::because("the client takes too long to read its answer")),
        }
    }
}

/// Says once, for all connections, that a client sends more than its request has fields.
fn mention_left_over(envelope: &Envelope) {
    static MENTIONED: AtomicBool = AtomicBool::new(false);
    let left_over = envelope.extent().left_over;
    // ORDERING: Relaxed: only which thread comes first counts.
    if left_over > 0 && !MENTIONED.swap(true, Ordering::Relaxed) {
        let (api, version) = envelope.api();
        warn(&format!(
            "{left_over} bytes after the last field of {api:?} v{version}: let pass, and not mentioned again"
        ));
    }
}
