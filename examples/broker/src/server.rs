//! Accepts connections, serves each, and brings everything to an end in order.
//!
//! A request in, its answer out, and then the next, as in Kafka's own broker.

mod incoming;
mod limits;

use crate::broker::{Broker, produce::has_packed};
use crate::exchange::{Answer, Caller, Reply};
use crate::listen::Listeners;
use crate::messages::RequestKind;
use crate::wire::frame::{ENVELOPE, MAX_FRAME, encode};
use crate::wire::request::{Envelope, Misfit};
use incoming::{End, Incoming, Sent};
use limits::{ALLOWANCE, HEAVY, Limits, PER_ELEMENT, time_for};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, tcp::WriteHalf};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long clients may take, at the shutdown, to read the last answers.
const PARTING: Duration = Duration::from_secs(5);

/// Pause after a failed accept. It usually means that there are no file descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

#[derive(Clone)]
struct Context {
    broker: Arc<Broker>,
    limits: Arc<Limits>,
    stop: watch::Receiver<bool>,
}

/// Serves until `stop` resolves, then shuts down: no new connections, no new requests, an answer for every
/// parked one, and the connections closed once their answers are out.
pub(crate) async fn run(listeners: Listeners, broker: Arc<Broker>, stop: impl Future<Output = ()>) {
    let (stopping, stopped) = watch::channel(false);
    let context = Context {
        broker,
        limits: Arc::new(Limits::new()),
        stop: stopped,
    };
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listeners.accept() => match accepted {
                Ok((socket, peer)) => {
                    let mut context = context.clone();
                    tokio::spawn(async move {
                        if let Err(End::Dropped(why)) = serve(socket, peer, &mut context).await {
                            log!("closed the connection of {peer}: {why}");
                        }
                    });
                }
                Err(error) => {
                    log!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
        }
    }
    drop(listeners);
    stopping.send_replace(true);
    // From here on a request that is still being taken up cannot park, so this reaches all.
    context.broker.shutdown();
    // Each connection holds a receiver until its end, and until that is logged.
    drop(context);
    if timeout(PARTING, stopping.closed()).await.is_err() {
        log!("some clients did not take their last answers");
    }
}

/// Serves one client until it leaves, breaks the protocol or a limit, or the server stops.
///
/// Whatever ends this drops the request that is served: that takes it out of its purgatory. A client that closes its
/// sending half may have vanished, and what it waits for is taken out as well: it is answered as if its time were over.
/// (A client that sends many at once gets no more than its turn: tokio ends that when it has taken memory for some
/// dozens.)
async fn serve(
    mut socket: TcpStream,
    client: SocketAddr,
    context: &mut Context,
) -> Result<(), End> {
    let _open = Arc::clone(&context.broker.connection);
    // Answers are written whole, so there is nothing to gather.
    socket.set_nodelay(true)?;
    let caller = Caller {
        address: socket.local_addr()?,
        client,
        client_id: String::new(),
        version: 0,
        weight: 0,
        refusals: Default::default(),
    };
    let (reader, writer) = socket.split();
    let mut connection = Connection {
        broker: &context.broker,
        limits: &context.limits,
        caller,
        incoming: Incoming::new(reader),
        writer,
    };
    loop {
        let sent = tokio::select! {
            biased;
            _ = context.stop.wait_for(|stop| *stop) => return Err(End::Closed),
            sent = connection.incoming.next(&context.limits) => sent?,
        };
        connection.answer(sent).await?;
    }
}

struct Connection<'a> {
    broker: &'a Broker,
    limits: &'a Limits,
    /// With what is known of its last request.
    caller: Caller,
    incoming: Incoming<'a>,
    writer: WriteHalf<'a>,
}

impl Connection<'_> {
    /// Serves what the client sent. An error ends the connection.
    async fn answer(&mut self, sent: Sent) -> Result<(), End> {
        let (frame, mut memory) = match sent {
            Sent::Request(frame, memory) => (frame, memory),
            Sent::TooLong(refusal, length) => {
                if self.caller.refusals.lock().insert("too long") {
                    let is = format!("is too long: {length} bytes of at most {MAX_FRAME}");
                    log!("{}: a request {is}: refused", self.caller.client);
                }
                return write(&mut self.writer, &refusal).await;
            }
        };
        let mut envelope = Envelope::open(&frame).map_err(|misfit| match misfit {
            Misfit::Malformed(why) => End::Dropped(why),
            // All clients of its kind have that: it is told once.
            Misfit::Version(why) => {
                if self.limits.is_first_refusal(&why) {
                    let client = self.caller.client;
                    log!("closed the connection of {client}: {why}, and those like it from now on");
                }
                End::Closed
            }
        })?;
        let elements = PER_ELEMENT * envelope.elements;
        let weight = frame.len() + elements;
        drop(frame);
        memory.merge(self.limits.memory(elements).await?);
        let request = self.limits.work(weight, || envelope.decode()).await?;

        self.caller.client_id = envelope.client_id;
        self.caller.version = envelope.version;
        self.caller.weight = weight.saturating_sub(ALLOWANCE);
        let work = match &request {
            Some(RequestKind::Produce(produce)) if has_packed(produce) => weight.max(HEAVY),
            _ => weight,
        };
        let handle = || self.broker.handle(request, &self.caller);
        let reply = self.limits.work(work, handle).await;
        // A request that waits, if only for memory, keeps none of what others wait for. What it keeps while it is parked is
        // weighed there.
        let is_enough = matches!(&reply, Reply::Now(answer) if 2 * answer.size <= elements);
        let kept = is_enough.then_some(memory);
        let Answer { size, read } = match reply {
            Reply::Now(answer) => answer,
            Reply::Later(mut waiting) => {
                let answer = tokio::select! {
                    // One that is there is given.
                    biased;
                    answer = &mut waiting.answer => answer,
                    closed = self.incoming.closed() => {
                        closed?;
                        waiting.hurry().await
                    }
                };
                waiting.leave = None;
                answer.map_err(|_| End::from("a request ended without an answer"))?
            }
            Reply::Never => return Ok(()),
            Reply::Disconnect(reason) => return Err(End::Dropped(reason)),
        };
        let memory = match kept {
            Some(memory) => memory,
            // As read, and as encoded.
            None => self.limits.memory(2 * size).await?,
        };
        let encoding = || encode(&read(), envelope.correlation_id, envelope.version, size);
        let bytes = self.limits.work(size, encoding).await;
        let bytes = bytes.map_err(|error| format!("cannot encode an answer: {error}"))?;
        // Names are those of the request.
        debug_assert!(size == 0 || bytes.len() <= size + weight + ENVELOPE);
        write(&mut self.writer, &bytes).await?;
        drop((bytes, memory));
        Ok(())
    }
}

async fn write(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), End> {
    match timeout(time_for(bytes.len()), writer.write_all(bytes)).await {
        Ok(written) => written.map_err(|error| End::of(&error)),
        Err(_) => Err(End::from("the client takes too long to read its answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Settings;
    use crate::requests::{batch, frame, patched, produce_request};
    use std::sync::mpsc;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    /// However short it is. It is not known before how much there is to count.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_batch_that_is_packed_waits_for_its_turn_at_heavy_work() {
        let settings = Settings {
            data: None,
            partitions: 1,
            replica_lag_ms: Duration::ZERO,
            group_delay_ms: Duration::ZERO,
        };
        let broker = Arc::new(Broker::open(&settings).expect("a broker"));
        let limits = Arc::new(Limits::new());
        let (_stopping, stop) = watch::channel(false);
        let mut context = Context {
            broker,
            limits: Arc::clone(&limits),
            stop,
        };
        let (begun, begins) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let heavy = tokio::spawn(async move {
            let work = move || (begun.send(()), ended.recv());
            limits.work(HEAVY, work).await.0
        });
        tokio::task::block_in_place(|| begins.recv()).expect("its turn");

        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut client = TcpStream::connect(address).await.expect("connect");
        let (socket, peer) = listener.accept().await.expect("a client");
        tokio::spawn(async move { serve(socket, peer, &mut context).await.is_ok() });
        let plain = batch(&[b"value"]);
        let packed = patched(&plain, 22, &[1]);
        for (batch, waits) in [(&plain, false), (&packed, true)] {
            let request = produce_request(1, 0, "missing", &[(0, Some(batch))]);
            client
                .write_all(&frame(8, 1, &request))
                .await
                .expect("it reads");
            let mut answered = async || {
                let length = client.read_u32().await?;
                client.read_exact(&mut vec![0; length as usize]).await
            };
            if waits {
                let early = timeout(Duration::from_millis(300), answered()).await;
                assert!(early.is_err(), "it had no turn");
                end.send(()).expect("it waits");
            }
            answered().await.expect("an answer");
        }
        assert!(heavy.await.expect("no panic").is_ok());
    }

    /// Or a few of them would keep the memory that there is for the answers of all.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_its_answer_is_given_up() {
        // More than is on its way between them. It has 74 seconds.
        let (mut writer, _client) = tokio::io::duplex(1 << 20);
        let answer = vec![0; 64 << 20];
        let begun = tokio::time::Instant::now();
        let written = timeout(Duration::from_secs(80), write(&mut writer, &answer)).await;
        assert!(matches!(written, Ok(Err(End::Dropped(_)))), "{written:?}");
        assert!(begun.elapsed() >= time_for(answer.len()));
    }
}
