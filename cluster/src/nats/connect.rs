//! The connection of a session: async-nats's, or a simulated one in tests.

use crate::error::FeedError;
#[cfg(feature = "rules")]
use async_nats::Event;
use async_nats::{Client, Message, Subscriber};
use futures_util::Stream;
#[cfg(feature = "rules")]
use futures_util::future::BoxFuture;
use std::pin::Pin;
#[cfg(feature = "rules")]
use std::sync::Arc;
use std::task::{Context, Poll};
#[cfg(feature = "rules")]
use tokio::sync::mpsc;

/// What a test puts in the place of async-nats, for sessions. (It reads with a source of its own.)
#[cfg(feature = "rules")]
pub trait Wire: Send + Sync {
    /// Opens a connection. What happens to it goes to `tell`.
    fn connect(
        &self,
        tell: Box<dyn Fn(Event) + Send + Sync>,
    ) -> BoxFuture<'static, Result<Arc<dyn Socket>, FeedError>>;
}

/// A connection of a [`Wire`].
#[cfg(feature = "rules")]
pub trait Socket: Send + Sync {
    /// Returns before the server knows of it. Dropping the receiver ends it.
    fn subscribe(&self, subject: String) -> mpsc::UnboundedReceiver<Message>;

    /// Returns before the server has it.
    fn publish(&self, subject: String, payload: Vec<u8>);

    /// Whether there are other servers, which learn of a subscription later.
    fn is_clustered(&self) -> bool;
}

/// A connection. Cloning is cheap, and clones are the same.
#[derive(Clone)]
pub(super) enum Connection {
    Real(Client),
    #[cfg(feature = "rules")]
    Simulated(Arc<dyn Socket>),
}

/// The messages of one subject. Dropping it ends the subscription.
pub(super) enum Subscription {
    Real(Subscriber),
    #[cfg(feature = "rules")]
    Simulated(mpsc::UnboundedReceiver<Message>),
}

impl Connection {
    pub(super) async fn subscribe(&self, subject: String) -> Result<Subscription, FeedError> {
        match self {
            Self::Real(client) => {
                let subscriber = client.subscribe(subject).await;
                subscriber.map(Subscription::Real).map_err(FeedError::cut)
            }
            #[cfg(feature = "rules")]
            Self::Simulated(socket) => Ok(Subscription::Simulated(socket.subscribe(subject))),
        }
    }

    pub(super) async fn publish(&self, subject: &str, payload: String) -> Result<(), FeedError> {
        match self {
            Self::Real(client) => {
                let sent = client.publish(subject.to_owned(), payload.into());
                sent.await.map_err(FeedError::cut)
            }
            #[cfg(feature = "rules")]
            Self::Simulated(socket) => {
                socket.publish(subject.to_owned(), payload.into_bytes());
                Ok(())
            }
        }
    }

    /// A subject that no other connection knows.
    pub(super) fn new_inbox(&self) -> String {
        match self {
            Self::Real(client) => client.new_inbox(),
            #[cfg(feature = "rules")]
            Self::Simulated(_) => format!("_INBOX.{:x}", fastrand::u128(..)),
        }
    }

    pub(super) fn is_clustered(&self) -> bool {
        match self {
            Self::Real(client) => client.server_info().cluster.is_some(),
            #[cfg(feature = "rules")]
            Self::Simulated(socket) => socket.is_clustered(),
        }
    }
}

impl Stream for Subscription {
    type Item = Message;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message>> {
        match self.get_mut() {
            Self::Real(subscriber) => Pin::new(subscriber).poll_next(context),
            #[cfg(feature = "rules")]
            Self::Simulated(messages) => messages.poll_recv(context),
        }
    }
}
