//! The requests of one client, frame by frame, within its limits.

use crate::server::budget::Share;
use crate::server::connection::End;
use crate::server::limits::{ALLOWANCE, FIRST, IDLE, Memory, time_for};
use crate::wire::frame;
use bytes::{Bytes, BytesMut};
use std::time::Duration;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::tcp::ReadHalf;
use tokio::time::{Instant, sleep, sleep_until};

/// What a buffer grows by: little at first, since most requests are short.
const FIRST_GROWTH: usize = 4 * 1024;
const GROWTH: usize = 64 * 1024;

/// How often a client is looked after of which nothing more can be read now.
const LOOK: Duration = Duration::from_secs(1);

/// The reading half of a connection.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    socket: ReadHalf<'a>,
    buffer: BytesMut,
    /// There was a whole request before.
    known: bool,
}

impl<'a> Incoming<'a> {
    pub(crate) fn new(socket: ReadHalf<'a>) -> Self {
        Self {
            socket,
            buffer: BytesMut::new(),
            known: false,
        }
    }

    /// The next request, without its length. `memory` then covers it. Closes an idle connection after [`IDLE`], or when
    /// new ones wait for its `place`.
    pub(crate) async fn next(&mut self, memory: &mut Memory, place: &Share) -> Result<Bytes, End> {
        let mut began = Instant::now();
        loop {
            let missing = frame::missing(&self.buffer).map_err(End::because)?;
            if missing == Some(0) {
                return self.take();
            }
            let idle = self.buffer.is_empty();
            let ends = match (idle, self.known) {
                (true, true) => began + IDLE,
                (true, false) => began + FIRST,
                (false, _) => began + time_for(self.buffer.len() + missing.unwrap_or(0)),
            };
            let needed = missing.map_or(0, |missing| self.buffer.len() + missing);
            let read = tokio::select! {
                read = self.read(needed.max(ALLOWANCE), memory) => read?,
                () = sleep_until(ends) => {
                    return Err(match (idle, self.known) {
                        (true, true) => End::Closed,
                        (true, false) => End::because("no request within 10 s"),
                        (false, _) => End::because("a request took too long to arrive"),
                    });
                }
                () = place.revoked(), if idle => return Err(End::Closed),
            };
            match (read, idle) {
                (0, true) => return Err(End::Closed),
                (0, false) => return Err(End::because("connection closed inside a frame")),
                (_, true) => began = Instant::now(),
                (_, false) => {}
            }
        }
    }

    /// Whether another whole request has come already.
    pub(crate) fn has_next(&self) -> bool {
        frame::missing(&self.buffer) == Ok(Some(0))
    }

    /// Resolves when the client goes away, or sends what is no request. Reads ahead a little for that, but begins
    /// nothing.
    pub(crate) async fn gone(&mut self) -> End {
        loop {
            while self.buffer.len() < ALLOWANCE {
                match self.fill(ALLOWANCE).await {
                    Ok(0) => return End::Closed,
                    Ok(_) => {}
                    Err(error) => return End::because(error),
                }
                if let Err(length) = frame::missing(&self.buffer) {
                    return End::because(length);
                }
            }
            match self.socket.ready(Interest::READABLE).await {
                Ok(ready) if ready.is_read_closed() => return End::Closed,
                Ok(_) => sleep(LOOK).await,
                Err(error) => return End::because(error),
            }
        }
    }

    /// Reads what comes, as long as the buffer is not longer than `up_to` then.
    async fn read(&mut self, up_to: usize, memory: &mut Memory) -> Result<usize, End> {
        let length = up_to.min(self.buffer.len() + GROWTH);
        memory.hold(length).await.map_err(End::Dropped)?;
        tokio::select! {
            read = self.fill(length) => read.map_err(End::because),
            reason = memory.revoked() => Err(End::Dropped(reason)),
        }
    }

    /// Reads once, until the buffer has `up_to` bytes at most. 0 at the end of the connection.
    async fn fill(&mut self, up_to: usize) -> std::io::Result<usize> {
        let room = up_to - self.buffer.len();
        let growth = match self.buffer.len() {
            ..FIRST_GROWTH => FIRST_GROWTH,
            _ => GROWTH,
        };
        self.buffer.reserve(growth.min(room));
        let mut socket = (&mut self.socket).take(room as u64);
        socket.read_buf(&mut self.buffer).await
    }

    fn take(&mut self) -> Result<Bytes, End> {
        let taken = frame::take(&mut self.buffer).map_err(End::because)?;
        let frame = taken.ok_or(End::Closed)?;
        // Not to keep the memory of a long request, of which the buffer is a part; what came behind it is short.
        if frame.len() > ALLOWANCE || self.buffer.is_empty() {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        self.known = true;
        Ok(frame)
    }
}
