//! A request and its answer, as the layers hand them to each other: who asks, and how the answer comes.

use crate::messages::*;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot::{self, error::RecvError};
use tokio::time::timeout;

/// The one broker of this cluster.
pub(crate) const NODE: BrokerId = BrokerId(1);

/// One client, at its connection.
pub(crate) struct Caller {
    /// Where the client reached this broker, and so will reach its coordinator.
    pub(crate) address: SocketAddr,
    /// Where it is itself.
    pub(crate) client: SocketAddr,
    pub(crate) client_id: String,
    pub(crate) version: i16,
    /// The bytes of its request that are weighed where it is parked: those beyond a connection's allowance.
    pub(crate) weight: usize,
    /// Why its requests were refused. Clients send them again and again, and the log has each cause once.
    pub(crate) refusals: Mutex<BTreeSet<&'static str>>,
}

/// Longest answer of which a group is a part, in bytes. As read and as encoded it takes all the memory that there is for
/// the answers to all clients, and longer ones have none.
pub(crate) const MAX_ANSWER: usize = 24 * 1024 * 1024;

/// What a step of a request comes to: something, or the error that its client is told.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

pub(crate) fn code<T>(outcome: &Outcome<T>) -> i16 {
    outcome.as_ref().map_or_else(|error| error.code(), |_| 0)
}

pub(crate) fn ensure(holds: bool, error: Code) -> Outcome {
    holds.then_some(()).ok_or(error)
}

/// How long a client wants to wait. A negative wait is none, as in Kafka.
pub(crate) fn milliseconds(count: i32) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

/// A response, which is read only when there is memory for it.
pub(crate) struct Answer {
    /// How many bytes it has at most once it is encoded, without those that were counted with its request, and without the
    /// names that stand there. 0 if nothing more is counted.
    pub(crate) size: usize,
    pub(crate) read: Box<dyn FnOnce() -> ResponseKind + Send>,
}

impl Answer {
    pub(crate) fn unread<R: Into<ResponseKind>>(
        size: usize,
        read: impl FnOnce() -> R + Send + 'static,
    ) -> Self {
        let read = Box::new(|| read().into());
        Self { size, read }
    }
}

impl<R: Into<ResponseKind> + Send + 'static> From<R> for Answer {
    fn from(response: R) -> Self {
        Self::unread(0, || response)
    }
}

pub(crate) enum Reply {
    Now(Answer),
    /// By a delayed operation, which may have ended already.
    Later(Waiting),
    /// Not at all: a produce request with acks 0.
    Never,
    /// Not at all, and the client has to notice: a produce request with acks 0 failed.
    Disconnect(String),
}

impl<A: Into<Answer>> From<A> for Reply {
    fn from(answer: A) -> Self {
        Self::Now(answer.into())
    }
}

pub(crate) fn answered_later() -> (Waiter, Waiting) {
    let (sender, answer) = oneshot::channel();
    let waiter = Waiter {
        answer: sender,
        client: Arc::default(),
    };
    let waiting = Waiting {
        answer,
        leave: None,
        grace: Duration::ZERO,
    };
    (waiter, waiting)
}

/// Where the answer to a request goes. One that is dropped unanswered belonged to a client that has gone.
///
/// INVARIANT: it is answered once: [`answer`](Self::answer) consumes it.
pub(crate) struct Waiter {
    answer: oneshot::Sender<Answer>,
    /// Tells its client from those that wait beside it.
    pub(crate) client: Arc<()>,
}

impl Waiter {
    /// Only wakes the task of the connection, so it may be called under a lock.
    pub(crate) fn answer(self, answer: impl Into<Answer>) {
        // The receiver is dropped if the client has left.
        let _ = self.answer.send(answer.into());
    }
}

/// The receiving end of a delayed operation's answer. Dropping it says that the client has gone.
pub(crate) struct Waiting {
    pub(crate) answer: oneshot::Receiver<Answer>,
    /// Takes the client's request out of where it waits, as if its time were over: it is answered.
    pub(crate) leave: Option<Box<dyn FnOnce() + Send>>,
    /// How much longer it waits if its client sends no more.
    pub(crate) grace: Duration,
}

impl Waiting {
    /// The answer to a client that sends no more. It may have gone, and then waits for nothing; or it has closed its
    /// sending half only, and gets an answer. Which of them it is cannot be seen.
    pub(crate) async fn hurry(&mut self) -> Result<Answer, RecvError> {
        if let Ok(answer) = timeout(self.grace, &mut self.answer).await {
            return answer;
        }
        self.end();
        (&mut self.answer).await
    }

    fn end(&mut self) {
        if let Some(leave) = self.leave.take() {
            leave();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end();
    }
}
