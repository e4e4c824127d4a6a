//! Finding the primary.

use super::RedisConfig;
use super::push::Pushes;
use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, ErrorKind, IntoConnectionInfo, ProtocolVersion, RedisError,
    Value, cmd,
};
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Addresses {
    clients: Vec<Client>,
    timeout: Duration,
}

impl Addresses {
    pub(super) fn parse(config: &RedisConfig) -> Result<Self, RedisError> {
        let mut clients = Vec::new();
        for address in &config.addresses {
            let info = address.as_str().into_connection_info()?;
            let settings = info.redis_settings().clone();
            let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
            clients.push(Client::open(info)?);
        }
        match clients.is_empty() {
            true => Err((
                ErrorKind::InvalidClientConfig,
                "`RedisConfig::addresses` is empty",
            )
                .into()),
            false => Ok(Self {
                clients,
                timeout: config.timeout,
            }),
        }
    }

    /// Connects to the first server that says it is a primary. It answers within the timeout, or an error does.
    pub(super) async fn connect(
        &self,
        pushes: Option<&Arc<Pushes>>,
    ) -> Result<MultiplexedConnection, RedisError> {
        let mut last = None;
        for client in &self.clients {
            match self.try_one(client, pushes).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| (ErrorKind::InvalidClientConfig, "there is no address").into()))
    }

    async fn try_one(
        &self,
        client: &Client,
        pushes: Option<&Arc<Pushes>>,
    ) -> Result<MultiplexedConnection, RedisError> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        if let Some(pushes) = pushes {
            let pushes = pushes.clone();
            config = config.set_push_sender(move |push| {
                pushes.push(push);
                Ok::<_, std::convert::Infallible>(())
            });
        }
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let role = cmd("ROLE")
            .query_async::<Vec<Value>>(&mut connection)
            .await?;
        let is_primary = match role.first() {
            Some(Value::BulkString(role)) => role == b"master",
            Some(Value::SimpleString(role)) => role == "master",
            _ => false,
        };
        match is_primary {
            true => Ok(connection),
            false => Err((ErrorKind::Io, "the server is no primary").into()),
        }
    }
}
