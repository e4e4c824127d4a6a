//! The connection of a client, watched from beside: while an answer is awaited, hyper does not look whether the client
//! is still there, and it waits for ever for a client that does not read.

use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// The watch looks this often within the time that a client may take to read.
const LOOKS: u32 = 8;
/// How soon it looks again whether a client has gone that sends ahead. Each time it doubles.
const FIRST_LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Shared {
    socket: TcpStream,
    /// Since when no byte of an answer could be sent.
    stuck_since: Mutex<Option<Instant>>,
    is_shut: AtomicBool,
    /// How long a client may read nothing of its answer.
    unread: Duration,
}

/// What hyper reads from and writes to.
#[derive(Debug)]
pub(crate) struct Connection(Arc<Shared>);

/// Sees whether the client is there.
#[derive(Debug)]
pub(crate) struct Watch(Arc<Shared>);

impl Connection {
    pub(crate) fn new(socket: TcpStream, unread: Duration) -> Result<Self> {
        // An answer is one small packet, and waits for no other.
        socket.set_nodelay(true)?;
        Ok(Self(Arc::new(Shared {
            socket,
            stuck_since: Mutex::default(),
            is_shut: AtomicBool::new(false),
            unread,
        })))
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch(self.0.clone())
    }

    fn note(&self, is_stuck: bool) {
        let mut since = self
            .0
            .stuck_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match is_stuck {
            true => *since = since.or_else(|| Some(Instant::now())),
            false => *since = None,
        }
    }
}

impl Watch {
    /// Returns when the client has read nothing of an answer for too long.
    pub(crate) async fn is_stuck(&self) {
        loop {
            sleep(self.0.unread / LOOKS).await;
            let since = *self
                .0
                .stuck_since
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if since.is_some_and(|since| since.elapsed() > self.0.unread) {
                return;
            }
        }
    }

    /// Returns when the client has closed its sending half, or all.
    pub(crate) async fn is_closed(&self) {
        let mut pause = FIRST_LOOK;
        loop {
            let ready = self.0.socket.ready(Interest::READABLE).await;
            if ready.is_ok_and(Ready::is_read_closed) {
                return;
            }
            // Bytes that hyper does not read before it has answered: they would be there again at once.
            sleep(pause).await;
            pause = (2 * pause).min(self.0.unread / LOOKS);
        }
    }
}

impl Read for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<Result<()>> {
        let mut bytes = [0; 8 * 1024];
        let room = buffer.remaining().min(bytes.len());
        loop {
            ready!(self.0.socket.poll_read_ready(context))?;
            match self.0.socket.try_read(&mut bytes[..room]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(count) => {
                    buffer.put_slice(&bytes[..count]);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl Write for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        // ORDERING: Relaxed: set and read by hyper's task alone.
        if self.0.is_shut.load(Ordering::Relaxed) {
            return Poll::Ready(Err(Error::from(ErrorKind::BrokenPipe)));
        }
        loop {
            let Poll::Ready(is_ready) = self.0.socket.poll_write_ready(context) else {
                self.note(true);
                return Poll::Pending;
            };
            is_ready?;
            match self.0.socket.try_write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => {
                    self.note(false);
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        // ORDERING: Relaxed: as above.
        self.0.is_shut.store(true, Ordering::Relaxed);
        let shut = rustix::net::shutdown(&self.0.socket, rustix::net::Shutdown::Write);
        Poll::Ready(shut.map_err(Error::from))
    }
}
