//! How a request is answered: at once, by a delayed operation, or not at all.

use crate::broker::delayed_fetch::DelayedFetch;
use crate::broker::delayed_produce::DelayedProduce;
use crate::broker::fetch::Fetch;
use crate::groups;
use crate::wire::response::Response;
use bytes::BytesMut;
use request_purgatory::Handle;
use std::net::SocketAddr;
use tokio::sync::oneshot;

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// Where the client reached this broker.
    pub(crate) address: SocketAddr,
    /// Where it is itself.
    pub(crate) client: SocketAddr,
    /// Whether there is memory for the request to be parked. If not, it is answered at once.
    pub(crate) may_wait: bool,
}

/// An answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Response(Response),
    /// What the fetch finds, read only when the client can be sent it.
    Fetch(Fetch),
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        Self::Response(response)
    }
}

impl Answer {
    /// Bytes of memory that [`encode`](Self::encode) needs beside the answer itself, for answers of which that is much.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Response(Response::Group(response)) => response.weight(),
            Self::Response(_) => 0,
            // As read, and as encoded.
            Self::Fetch(fetch) => 2 * fetch.answer_size(),
        }
    }

    /// The whole frame, length prefix included.
    pub(crate) fn encode(self, correlation_id: i32, version: i16) -> anyhow::Result<BytesMut> {
        let response = match self {
            Self::Response(response) => response,
            Self::Fetch(fetch) => Response::Fetch(fetch.read()),
        };
        response.encode(correlation_id, version)
    }
}

/// How a request is answered.
#[derive(Debug)]
pub(crate) enum Reply {
    Now(Answer),
    /// By a delayed operation, which may have been completed already.
    Later(Waiting),
    /// Not at all: a produce request with acks 0.
    Never,
    /// Not at all, and the client has to notice: a produce request with acks 0 failed.
    Disconnect(String),
}

impl From<Response> for Reply {
    fn from(response: Response) -> Self {
        Self::Now(response.into())
    }
}

/// The receiving end of a delayed operation's answer. Dropping it cancels the operation.
#[derive(Debug)]
pub(crate) enum Waiting {
    Partitions {
        answer: oneshot::Receiver<Answer>,
        parked: Option<Parked>,
    },
    Group(groups::Waiting),
}

impl From<groups::Waiting> for Waiting {
    fn from(waiting: groups::Waiting) -> Self {
        Self::Group(waiting)
    }
}

/// A parked operation.
#[derive(Debug)]
pub(crate) enum Parked {
    Fetch(Handle<DelayedFetch>),
    Produce(Handle<DelayedProduce>),
}

impl Reply {
    pub(crate) fn parked(answer: oneshot::Receiver<Answer>, parked: Parked) -> Self {
        Self::Later(Waiting::Partitions {
            answer,
            parked: Some(parked),
        })
    }

    pub(crate) fn completed(answer: oneshot::Receiver<Answer>) -> Self {
        Self::Later(Waiting::Partitions {
            answer,
            parked: None,
        })
    }
}

impl Waiting {
    /// Waits for the answer. `None` if the operation ended without one.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        match self {
            Self::Partitions { answer, .. } => answer.await.ok(),
            Self::Group(waiting) => {
                let response = waiting.answer().await?;
                Some(Response::Group(response).into())
            }
        }
    }
}

impl Drop for Waiting {
    /// A client that goes away leaves nothing behind. For an operation that has ended this does nothing.
    fn drop(&mut self) {
        if let Self::Partitions {
            parked: Some(parked),
            ..
        } = self
        {
            match parked {
                Parked::Fetch(handle) => drop(handle.cancel()),
                Parked::Produce(handle) => drop(handle.cancel()),
            }
        }
    }
}
