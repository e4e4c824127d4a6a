//! Messages of a session to itself.

use crate::error::FeedError;
use async_nats::{Client, Subject, Subscriber};
use futures_util::StreamExt;
use std::time::Duration;
use tokio::time::timeout;

/// A subject that only one half of a session knows. The server handles what a connection sends in order: when the echo
/// comes back, it has handled all that was sent before.
pub(super) struct Echo {
    client: Client,
    subject: Subject,
    echoes: Subscriber,
    sent: u64,
    patience: Duration,
}

impl Echo {
    pub(super) async fn open(client: &Client, patience: Duration) -> Result<Self, FeedError> {
        let subject = Subject::from(client.new_inbox());
        let echoes = client
            .subscribe(subject.clone())
            .await
            .map_err(FeedError::cut)?;
        Ok(Self {
            client: client.clone(),
            subject,
            echoes,
            sent: 0,
            patience,
        })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Sends a message, and waits until it is back.
    pub(super) async fn round_trip(&mut self) -> Result<(), FeedError> {
        self.sent += 1;
        let number = self.sent.to_string();
        let sent = self
            .client
            .publish(self.subject.clone(), number.clone().into());
        sent.await.map_err(FeedError::cut)?;
        let back = async {
            while let Some(message) = self.echoes.next().await {
                if message.payload == number.as_bytes() {
                    return Ok(());
                }
            }
            Err(FeedError::cut("the connection is closed"))
        };
        match timeout(self.patience, back).await {
            Ok(back) => back,
            Err(_) => Err(FeedError::Silent(self.patience)),
        }
    }
}
