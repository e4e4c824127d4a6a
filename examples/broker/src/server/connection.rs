//! One client's connection: requests in, answers out in the same order, as Kafka's protocol demands.

use crate::broker::{Broker, Reply, Waiting};
use crate::figures::metrics::Metrics;
use crate::wire::frame;
use crate::wire::request::Request;
use crate::wire::response::Response;
use bytes::BytesMut;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};

/// Most requests of one connection that wait for their answers; a client that sends more is not read on.
const PIPELINE: usize = 8;

/// What is read ahead while the pipeline is full: nothing new is begun, but a client that leaves is noticed.
const READ_AHEAD: usize = 64 * 1024;

/// How a connection came to its end.
#[derive(Debug)]
pub(crate) enum End {
    /// The client closed it.
    Closed,
    /// The server shuts down, and everything was answered.
    ShutDown,
    /// The broker closed it, for this reason.
    Dropped(String),
}

/// A request that was taken up, in its place in the queue of answers.
struct InFlight {
    correlation_id: i32,
    version: i16,
    reply: Answer,
    metrics: Arc<Metrics>,
    answered: bool,
}

enum Answer {
    Ready(Response),
    Waiting(Waiting),
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

/// Serves one client until it leaves, breaks the protocol, or `stop` turns true.
///
/// Reading and writing take turns in this one task. Whichever fails first ends both, and the queue between them
/// is dropped with all requests in it: that is what takes a vanished client's requests out of the purgatories.
pub(crate) async fn serve(
    mut socket: TcpStream,
    broker: &Broker,
    stop: watch::Receiver<bool>,
) -> End {
    let (reader, writer) = socket.split();
    let (queue, answers) = mpsc::channel(PIPELINE);
    let reading = read_requests(reader, broker, queue, stop);
    let writing = write_answers(writer, answers);
    tokio::pin!(reading, writing);
    tokio::select! {
        end = &mut reading => match end {
            // The queue has no sender any more, so the writer ends with its last answer.
            Ok(End::ShutDown) => writing.await.map_or_else(End::Dropped, |()| End::ShutDown),
            Ok(end) => end,
            Err(reason) => End::Dropped(reason),
        },
        // It ends first only if it fails: the queue is open as long as the reader is.
        written = &mut writing => End::Dropped(written.err().unwrap_or_default()),
    }
}

async fn read_requests(
    mut socket: ReadHalf<'_>,
    broker: &Broker,
    queue: mpsc::Sender<InFlight>,
    mut stop: watch::Receiver<bool>,
) -> Result<End, String> {
    let address = socket.local_addr().map_err(|error| error.to_string())?;
    let mut buffer = BytesMut::new();
    loop {
        let ready = frame::is_complete(&buffer).map_err(|length| length.to_string())?;
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return Ok(End::ShutDown),
            place = queue.reserve(), if ready => {
                let Ok(place) = place else { return Ok(End::Closed) };
                if let Some(in_flight) = take_up(&mut buffer, broker, address)? {
                    place.send(in_flight);
                }
            }
            read = socket.read_buf(&mut buffer), if !ready || buffer.len() < READ_AHEAD => {
                match read {
                    Ok(0) if buffer.is_empty() || ready => return Ok(End::Closed),
                    Ok(0) => return Err("connection closed inside a frame".to_owned()),
                    Ok(_) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
    }
}

/// Handles the request at the start of `buffer`.
fn take_up(
    buffer: &mut BytesMut,
    broker: &Broker,
    address: std::net::SocketAddr,
) -> Result<Option<InFlight>, String> {
    let Some(frame) = frame::take(buffer).map_err(|length| length.to_string())? else {
        return Ok(None);
    };
    let request = Request::decode(&frame).map_err(|malformed| malformed.to_string())?;
    let (correlation_id, version) = (request.correlation_id, request.version);
    let reply = match broker.handle(request, address) {
        Reply::Now(response) => Answer::Ready(response),
        Reply::Later(waiting) => Answer::Waiting(waiting),
        Reply::Never => {
            broker.metrics.unacknowledged.increase();
            return Ok(None);
        }
        Reply::Disconnect(reason) => return Err(reason),
    };
    broker.metrics.received.increase();
    Ok(Some(InFlight {
        correlation_id,
        version,
        reply,
        metrics: Arc::clone(&broker.metrics),
        answered: false,
    }))
}

async fn write_answers(
    mut socket: WriteHalf<'_>,
    mut answers: mpsc::Receiver<InFlight>,
) -> Result<(), String> {
    while let Some(mut in_flight) = answers.recv().await {
        let bytes = in_flight.encode().await?;
        let written = socket.write_all(&bytes).await;
        written.map_err(|error| error.to_string())?;
        in_flight.answered = true;
    }
    Ok(())
}

impl InFlight {
    async fn encode(&mut self) -> Result<BytesMut, String> {
        let waited;
        let response = match &mut self.reply {
            Answer::Ready(response) => &*response,
            Answer::Waiting(waiting) => {
                let answer = waiting.answer().await;
                waited = answer.ok_or("a request ended without an answer")?;
                &waited
            }
        };
        response
            .encode(self.correlation_id, self.version)
            .map_err(|error| format!("cannot encode an answer: {error}"))
    }
}
