//! The requests of one client, frame by frame, within its limits.

use crate::messages::ApiKey;
use crate::server::limits::{ALLOWANCE, FIRST, IDLE, Limits, Share, time_for};
use crate::wire::frame::{self, MAX_FRAME, PREFIX};
use crate::wire::request::{LONGEST, START, refuse};
use bytes::{Bytes, BytesMut};
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::tcp::ReadHalf;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// What a buffer grows by, while it is not known how long a request is. Most are short.
const GROWTH: usize = 4 * 1024;

/// How often a client is looked after of which nothing more can be read now.
const LOOK: Duration = Duration::from_secs(1);

/// How a connection came to its end.
#[derive(Debug)]
pub(crate) enum End {
    /// The client closed it, or had no use for it any more; or the server shuts down.
    Closed,
    /// The broker closed it, for this reason.
    Dropped(String),
}

impl<R: Display> From<R> for End {
    fn from(reason: R) -> Self {
        Self::Dropped(reason.to_string())
    }
}

impl End {
    /// Of a socket that fails. A client that has gone is no trouble, however it went.
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::from(error),
        }
    }
}

pub(crate) struct Incoming<'a> {
    socket: ReadHalf<'a>,
    buffer: BytesMut,
    /// There was a whole request before.
    known: bool,
}

#[derive(Debug)]
pub(crate) enum Sent {
    /// A request, without its length, and the memory for it.
    Request(Bytes, Share),
    /// A produce request that was too long to be kept: the frame that says so, and how long the request was.
    TooLong(BytesMut, usize),
}

impl<'a> Incoming<'a> {
    pub(crate) fn new(socket: ReadHalf<'a>) -> Self {
        Self {
            socket,
            buffer: BytesMut::new(),
            known: false,
        }
    }

    /// Waits for the next request. Closes a connection that is idle for too long.
    pub(crate) async fn next(&mut self, limits: &Limits) -> Result<Sent, End> {
        if self.buffer.is_empty() {
            self.begin().await?;
        }
        let begun = Instant::now();
        self.read_up_to(PREFIX, begun + time_for(0)).await?;
        let length = frame::length(&self.buffer)?;
        let arrival = begun + time_for(length);
        if length > MAX_FRAME {
            return self.discard(length, arrival).await;
        }
        let memory = limits.memory(length).await?;
        // At once: a buffer that grows bit by bit is copied, and has twice the room in the end.
        let missing = (PREFIX + length).saturating_sub(self.buffer.len());
        self.buffer.reserve(missing);
        self.read_up_to(PREFIX + length, arrival).await?;
        self.known = true;
        Ok(Sent::Request(frame::take(&mut self.buffer, length), memory))
    }

    async fn begin(&mut self) -> Result<(), End> {
        // Not to keep the memory of the request before.
        self.buffer = BytesMut::new();
        let (patience, end) = match self.known {
            true => (IDLE, End::Closed),
            false => (FIRST, End::from("no request within 10 s")),
        };
        match timeout(patience, self.fill(ALLOWANCE)).await {
            Err(_) => Err(end),
            Ok(Ok(0)) => Err(End::Closed),
            Ok(read) => read.map(|_| ()),
        }
    }

    /// Reads until the buffer has as many bytes, which have to be there by then.
    async fn read_up_to(&mut self, length: usize, arrival: Instant) -> Result<(), End> {
        while self.buffer.len() < length {
            // What comes behind is read along, as far as it costs nothing.
            match timeout_at(arrival, self.fill(length.max(ALLOWANCE))).await {
                Err(_) => return Err(End::from("a request took too long to arrive")),
                Ok(Ok(0)) => return Err(End::from("connection closed inside a frame")),
                Ok(read) => read?,
            };
        }
        Ok(())
    }

    /// Reads a request that is too long, and keeps its start only.
    async fn discard(&mut self, length: usize, arrival: Instant) -> Result<Sent, End> {
        let misfit = || End::from(format!("frame length {length} outside 0..={MAX_FRAME}"));
        if length > LONGEST {
            return Err(misfit());
        }
        // Told by its first bytes: a client that speaks TLS sends fewer than START, and waits for an answer.
        self.read_up_to(PREFIX + 2, arrival).await?;
        if self.buffer[PREFIX..][..2] != (ApiKey::Produce as i16).to_be_bytes() {
            return Err(misfit());
        }
        self.read_up_to(PREFIX + START, arrival).await?;
        let refusal = refuse(&frame::take(&mut self.buffer, START)).ok_or_else(misfit)?;
        let mut left = length - START;
        while left > 0 {
            self.read_up_to(left.min(ALLOWANCE), arrival).await?;
            let discarded = left.min(self.buffer.len());
            left -= discarded;
            let _ = self.buffer.split_to(discarded);
        }
        self.known = true;
        Ok(Sent::TooLong(refusal, length))
    }

    /// Returns when the client has closed its sending half, or all. Reads ahead a little for that, but begins nothing.
    ///
    /// # Errors
    /// The connection is broken, or what was sent is no request.
    pub(crate) async fn closed(&mut self) -> Result<(), End> {
        loop {
            while self.buffer.len() < ALLOWANCE {
                if self.fill(ALLOWANCE).await? == 0 {
                    return Ok(());
                }
                if self.buffer.len() >= PREFIX {
                    frame::length(&self.buffer)?;
                }
            }
            let ready = self.socket.ready(Interest::READABLE).await?;
            if ready.is_read_closed() {
                return Ok(());
            }
            sleep(LOOK).await;
        }
    }

    /// Reads once, until the buffer has `up_to` bytes at most. 0 at the end of the connection.
    async fn fill(&mut self, up_to: usize) -> Result<usize, End> {
        let room = up_to - self.buffer.len();
        self.buffer.reserve(GROWTH.min(room));
        let mut socket = (&mut self.socket).take(room as u64);
        let read = socket.read_buf(&mut self.buffer).await;
        read.map_err(|error| End::of(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{frame, produce_request};
    use std::future::pending;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::yield_now;

    /// What comes of a request that begins after 9 s at this pace, and when. If it is whole, time stands still behind it.
    async fn receive(request: &[u8], is_all: bool, millis: u32, known: bool) -> (String, u64) {
        const PIECE: usize = 64 * 1024;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let mut client = TcpStream::connect(address).await.expect("a client");
        let (mut socket, _) = listener.accept().await.expect("the client");
        let (mut incoming, limits) = (Incoming::new(socket.split().0), Limits::new());
        incoming.known = known;
        let begun = Instant::now();
        let sending = async {
            sleep(Duration::from_secs(9)).await;
            for piece in request.chunks(PIECE) {
                sleep(Duration::from_millis(millis.into()) * PIECE as u32 / (1 << 20)).await;
                client.write_all(piece).await.expect("an open connection");
            }
            // The bytes take real time, and the clock jumps as soon as everything waits.
            let sent = std::time::Instant::now();
            while is_all || sent.elapsed() < Duration::from_millis(20) {
                yield_now().await;
            }
            pending::<()>().await;
        };
        let sent = tokio::select! {
            sent = incoming.next(&limits) => sent.inspect(|_| assert!(incoming.known)),
            () = sending => unreachable!("it has no end"),
        };
        let outcome = match sent {
            Ok(Sent::Request(..)) => "taken".to_owned(),
            Ok(Sent::TooLong(_, length)) => format!("longer than {} MiB", length >> 20),
            Err(End::Closed) => "closed".to_owned(),
            Err(End::Dropped(reason)) => reason,
        };
        (outcome, begun.elapsed().as_secs())
    }

    /// A long request has more time than a short one, also if it is too long. An idle client may have gone without a word.
    #[tokio::test(start_paused = true)]
    async fn what_does_not_arrive_in_its_time_is_given_up() {
        let [long, longer] = [15, 40].map(|mib: usize| {
            let records = vec![0; mib << 20];
            frame(8, 0, &produce_request(1, 0, "t", &[(0, Some(&records))]))
        });
        let none = "no request within 10 s";
        let slow = "a request took too long to arrive";
        for (request, is_all, millis_per_mib, known, outcome, seconds) in [
            (&[][..], false, 0, false, none, 10),
            (&[], false, 0, true, "closed", 600),
            (&[0, 0], false, 0, false, slow, 19),
            (&[0, 0, 0, 100, 0, 1], false, 0, false, slow, 19),
            (&long[..100], false, 0, false, slow, 34),
            (&long, true, 1_200, false, "taken", 27),
            (&longer, true, 1_200, false, "longer than 40 MiB", 57),
            (&longer, true, 1_500, false, slow, 59),
        ] {
            let received = receive(request, is_all, millis_per_mib, known).await;
            assert_eq!(received, (outcome.to_owned(), seconds));
        }
    }
}
