//! What happens to a request.

pub(crate) mod delayed_fetch;
pub(crate) mod delayed_produce;
pub(crate) mod fetch;
pub(crate) mod follower;
pub(crate) mod metadata;
pub(crate) mod partition;
pub(crate) mod produce;
pub(crate) mod purgatories;
pub(crate) mod topics;

use crate::broker::delayed_fetch::DelayedFetch;
use crate::broker::delayed_produce::DelayedProduce;
use crate::broker::fetch::Fetch;
use crate::broker::follower::Follower;
use crate::broker::produce::{Acks, Produced};
use crate::broker::purgatories::Purgatories;
use crate::broker::topics::Topics;
use crate::figures::metrics::{Counter, Metrics};
use crate::wire::request::{Body, Request};
use crate::wire::response::Response;
use kafka_protocol::messages::{FetchRequest, ProduceRequest};
use request_purgatory::{BuildError, Handle, Watch};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The broker, without its sockets.
pub(crate) struct Broker {
    pub(crate) purgatories: Purgatories,
    pub(crate) metrics: Arc<Metrics>,
    topics: Topics,
    producer_ids: Counter,
    follower: Follower,
}

/// How a request is answered.
pub(crate) enum Reply {
    Now(Response),
    /// By a delayed operation, which may have been completed already.
    Later(Waiting),
    /// Not at all: a produce request with acks 0.
    Never,
    /// Not at all, and the client has to notice: a produce request with acks 0 failed.
    Disconnect(String),
}

/// The receiving end of a delayed operation's answer. Dropping it cancels the operation.
pub(crate) struct Waiting {
    answer: oneshot::Receiver<Response>,
    parked: Option<Parked>,
}

enum Parked {
    Fetch(Handle<DelayedFetch>),
    Produce(Handle<DelayedProduce>),
}

impl Reply {
    fn parked(answer: oneshot::Receiver<Response>, parked: Parked) -> Self {
        Self::Later(Waiting {
            answer,
            parked: Some(parked),
        })
    }

    fn completed(answer: oneshot::Receiver<Response>) -> Self {
        Self::Later(Waiting {
            answer,
            parked: None,
        })
    }
}

impl Waiting {
    /// Waits for the answer. `None` if the operation ended without one.
    pub(crate) async fn answer(&mut self) -> Option<Response> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Waiting {
    /// A client that goes away leaves nothing behind. For an operation that has ended this does nothing.
    fn drop(&mut self) {
        match &self.parked {
            Some(Parked::Fetch(handle)) => drop(handle.cancel()),
            Some(Parked::Produce(handle)) => drop(handle.cancel()),
            None => {}
        }
    }
}

impl Broker {
    /// A broker without topics. Starts the follower on the current tokio runtime.
    pub(crate) fn new(replica_lag: Duration) -> Result<Self, BuildError> {
        let purgatories = Purgatories::new()?;
        Ok(Self {
            follower: Follower::start(replica_lag),
            metrics: Arc::new(Metrics::new()),
            topics: Topics::new(purgatories.clone()),
            purgatories,
            producer_ids: Counter::default(),
        })
    }

    /// Does what `request` asks, short of waiting. `address` is where the client reached this broker.
    pub(crate) fn handle(&self, request: Request, address: SocketAddr) -> Reply {
        let topics = &self.topics;
        let response = match request.body {
            Body::Fetch(fetch) => return self.fetch(fetch),
            Body::Produce(produce) => return self.produce(produce),
            Body::ApiVersions { supported } => {
                Response::ApiVersions(metadata::api_versions(supported))
            }
            Body::Metadata(asked) => {
                Response::Metadata(metadata::metadata(asked, request.version, topics, address))
            }
            Body::ListOffsets(asked) => {
                Response::ListOffsets(metadata::list_offsets(asked, topics))
            }
            Body::CreateTopics(asked) => {
                Response::CreateTopics(metadata::create_topics(asked, topics))
            }
            Body::InitProducerId(asked) => {
                Response::InitProducerId(produce::init_producer_id(&asked, &self.producer_ids))
            }
        };
        Reply::Now(response)
    }

    fn fetch(&self, request: FetchRequest) -> Reply {
        if let Some(error) = fetch::refusal(&request) {
            return Reply::Now(Response::Fetch(fetch::refused(error)));
        }
        let max_wait = fetch::wait(request.max_wait_ms);
        let (answer, receiver) = oneshot::channel();
        let delayed = DelayedFetch {
            fetch: Fetch::new(request, &self.topics),
            arrived: Instant::now(),
            max_wait,
            answer,
            metrics: Arc::clone(&self.metrics),
        };
        let partitions = delayed.fetch.known_partitions();
        if max_wait.is_zero() {
            delayed.answer_now();
            return Reply::completed(receiver);
        }
        let purgatory = &self.purgatories.fetch;
        let watches = partitions.iter().map(|partition| partition.for_fetches());
        match purgatory.try_complete_else_watch_on(delayed, watches) {
            Ok(Watch::Parked(handle)) => Reply::parked(receiver, Parked::Fetch(handle)),
            Ok(Watch::Completed) => Reply::completed(receiver),
            // No partitions to wait on, no room to wait in, or shutting down: answer with what is there.
            Err(rejected) => {
                rejected.into_operation().answer_now();
                Reply::completed(receiver)
            }
        }
    }

    fn produce(&self, request: ProduceRequest) -> Reply {
        let timeout = fetch::wait(request.timeout_ms);
        let acks = match Acks::from_wire(request.acks) {
            Ok(acks) => acks,
            Err(error) => {
                let refused = Produced::refuse(request, error);
                return Reply::Now(Response::Produce(refused.response()));
            }
        };
        let produced = Produced::append(request, acks, &self.topics, &self.follower);
        match acks {
            Acks::None => match produced.error() {
                Some(error) => Reply::Disconnect(format!("produce with acks 0: {error}")),
                None => Reply::Never,
            },
            Acks::Leader => Reply::Now(Response::Produce(produced.response())),
            Acks::All => self.await_replicas(produced, timeout),
        }
    }

    fn await_replicas(&self, produced: Produced, timeout: Duration) -> Reply {
        let (answer, receiver) = oneshot::channel();
        let delayed = DelayedProduce {
            produced,
            arrived: Instant::now(),
            timeout,
            answer,
            metrics: Arc::clone(&self.metrics),
        };
        let required = delayed.required();
        let watches = required
            .iter()
            .map(|required| required.partition.for_produces(required.offset));
        let purgatory = &self.purgatories.produce;
        match purgatory.try_complete_else_watch_on(delayed, watches) {
            Ok(Watch::Parked(handle)) => Reply::parked(receiver, Parked::Produce(handle)),
            Ok(Watch::Completed) => Reply::completed(receiver),
            // No room to wait in, or shutting down: what is not replicated yet has timed out.
            Err(rejected) => {
                rejected.into_operation().answer_now();
                Reply::completed(receiver)
            }
        }
    }
}
