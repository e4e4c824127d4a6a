//! Messages of a session to itself.

use crate::error::FeedError;
use crate::nats::connect::{Connection, Subscription};
use futures_util::StreamExt;
use std::time::Duration;
use tokio::time::timeout;

/// A subject that only one half of a session knows. The server handles what a connection sends in order: when the echo
/// comes back, it has handled all that was sent before.
pub(super) struct Echo {
    connection: Connection,
    subject: String,
    echoes: Subscription,
    sent: u64,
    patience: Duration,
}

impl Echo {
    pub(super) async fn open(
        connection: &Connection,
        patience: Duration,
    ) -> Result<Self, FeedError> {
        let subject = connection.new_inbox();
        Ok(Self {
            connection: connection.clone(),
            echoes: connection.subscribe(subject.clone()).await?,
            subject,
            sent: 0,
            patience,
        })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Sends a message, and waits until it is back.
    pub(super) async fn round_trip(&mut self) -> Result<(), FeedError> {
        self.sent += 1;
        let number = self.sent.to_string();
        let back = async {
            // It waits as well, where the server takes nothing more.
            let sent = self.connection.publish(&self.subject, number.clone());
            sent.await?;
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
