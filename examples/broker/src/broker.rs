//! What happens to a request.

pub(crate) mod admin;
pub(crate) mod answer;
pub(crate) mod configs;
pub(crate) mod delayed_fetch;
pub(crate) mod delayed_produce;
pub(crate) mod fetch;
pub(crate) mod follower;
pub(crate) mod metadata;
pub(crate) mod partition;
pub(crate) mod produce;
pub(crate) mod purgatories;
pub(crate) mod topics;

use crate::broker::answer::{Answer, Caller, Parked, Reply};
use crate::broker::delayed_fetch::DelayedFetch;
use crate::broker::delayed_produce::DelayedProduce;
use crate::broker::fetch::Fetch;
use crate::broker::follower::Follower;
use crate::broker::produce::{Acks, Produced};
use crate::broker::purgatories::Purgatories;
use crate::broker::topics::{MAX_PARTITIONS, Topics};
use crate::figures::metrics::{Counter, Metrics};
use crate::groups::settings::Settings;
use crate::groups::{Caller as MemberCaller, Coordinator, GroupReply};
use crate::storage::folder::Folder;
use crate::wire::request::{Body, Request};
use crate::wire::response::Response;
use kafka_protocol::messages::{FetchRequest, ProduceRequest};
use request_purgatory::purgatory::Admission;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// About how many configs describe a topic or a broker.
const CONFIGS: usize = 8;

/// The broker, without its sockets.
pub(crate) struct Broker {
    pub(crate) purgatories: Purgatories,
    pub(crate) groups: Arc<Coordinator>,
    pub(crate) metrics: Arc<Metrics>,
    topics: Topics,
    producer_ids: Counter,
    follower: Follower,
}

impl Broker {
    /// A broker with the topics that are kept in the folder `data`, or with none, and then all is in memory. Starts the
    /// follower on the current tokio runtime.
    pub(crate) fn open(
        replica_lag: Duration,
        group_delay: Duration,
        data: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let groups = Settings::new(group_delay)?;
        let purgatories = Purgatories::new()?;
        let folder = data.map(Folder::open).transpose()?;
        let offsets = folder.as_ref().map(Folder::offsets);
        let topics = Topics::open(purgatories.clone(), folder)?;
        let producer_ids = Counter::default();
        // A new producer must not be taken for one that came before.
        producer_ids.add(topics.greatest_producer().map_or(0, |id| id as u64 + 1));
        Ok(Self {
            follower: Follower::start(replica_lag),
            metrics: Arc::new(Metrics::new()),
            topics,
            purgatories,
            groups: Coordinator::open(groups, offsets)?,
            producer_ids,
        })
    }

    /// Sees to it that everything appended outlives the machine.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.topics.sync()?;
        self.groups.sync_offsets()
    }

    /// Answers everything that is parked, and parks nothing more.
    pub(crate) fn shutdown(&self) {
        self.purgatories.shutdown();
        self.groups.shutdown();
    }

    /// How many partitions and the like `body` may be about without naming them.
    pub(crate) fn unnamed(&self, body: &Body) -> usize {
        match body {
            Body::Metadata(_) => self.topics.partitions(),
            Body::Group(asked) => self.groups.unnamed(asked),
            Body::CreateTopics(asked) => {
                let partitions = asked.topics.iter().map(|topic| topic.num_partitions.max(1));
                partitions
                    .fold(0_usize, |sum, count| sum.saturating_add(count as usize))
                    .min(MAX_PARTITIONS)
            }
            Body::DescribeConfigs(asked) => CONFIGS * asked.resources.len(),
            _ => 0,
        }
    }

    /// Does what `request` asks, short of waiting.
    pub(crate) fn handle(&self, request: Request, caller: Caller) -> Reply {
        let topics = &self.topics;
        let response = match request.body {
            Body::Fetch(fetch) => return self.fetch(fetch, caller),
            Body::Produce(produce) => return self.produce(produce, caller),
            Body::Group(asked) => {
                let member = MemberCaller {
                    version: request.version,
                    client_id: &request.client_id,
                    client: caller.client,
                    broker: caller.address,
                    node: metadata::NODE,
                    may_wait: caller.may_wait,
                    is_partition: &|topic, index| topics.partition(topic, index).is_ok(),
                };
                return match self.groups.handle(asked, &member) {
                    GroupReply::Now(response) => Response::Group(response).into(),
                    GroupReply::Later(waiting) => Reply::Later(waiting.into()),
                };
            }
            Body::ApiVersions { supported } => {
                Response::ApiVersions(metadata::api_versions(supported))
            }
            Body::Metadata(asked) => Response::Metadata(metadata::metadata(
                asked,
                request.version,
                topics,
                caller.address,
            )),
            Body::ListOffsets(asked) => {
                Response::ListOffsets(metadata::list_offsets(asked, topics))
            }
            Body::CreateTopics(asked) => {
                Response::CreateTopics(admin::create_topics(asked, topics))
            }
            Body::DeleteTopics(asked) => {
                let answer = admin::delete_topics(asked, topics);
                let deleted = answer
                    .responses
                    .iter()
                    .filter(|topic| topic.error_code == 0);
                for name in deleted.filter_map(|topic| topic.name.as_ref()) {
                    // If it fails it has been said, and the topic is gone all the same.
                    let _ = self.groups.forget_topic(name);
                }
                Response::DeleteTopics(answer)
            }
            Body::DescribeConfigs(asked) => {
                Response::DescribeConfigs(admin::describe_configs(asked, topics))
            }
            Body::InitProducerId(asked) => {
                Response::InitProducerId(produce::init_producer_id(&asked, &self.producer_ids))
            }
        };
        response.into()
    }

    fn fetch(&self, request: FetchRequest, caller: Caller) -> Reply {
        if let Some(error) = fetch::refusal(&request) {
            return Response::Fetch(fetch::refused(error)).into();
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
        if max_wait.is_zero() || !caller.may_wait {
            return Reply::Now(Answer::Fetch(delayed.fetch));
        }
        let purgatory = &self.purgatories.fetch;
        let watches = partitions.iter().map(|partition| partition.for_fetches());
        match purgatory.try_complete_else_watch_on(delayed, watches) {
            Ok(Admission::Parked(handle)) => Reply::parked(receiver, Parked::Fetch(handle)),
            Ok(Admission::Ended) => Reply::completed(receiver),
            // No partitions to wait on, no room to wait in, or shutting down: answer with what is there.
            Err(rejected) => {
                rejected.into_inner().answer_now();
                Reply::completed(receiver)
            }
        }
    }

    fn produce(&self, request: ProduceRequest, caller: Caller) -> Reply {
        let timeout = fetch::wait(request.timeout_ms);
        let acks = match Acks::from_wire(request.acks) {
            Ok(acks) => acks,
            Err(error) => {
                let refused = Produced::refuse(request, error);
                return Response::Produce(refused.response()).into();
            }
        };
        let produced = Produced::append(request, acks, &self.topics, &self.follower);
        match acks {
            Acks::None => match produced.error() {
                Some(error) => Reply::Disconnect(format!("produce with acks 0: {error}")),
                None => Reply::Never,
            },
            Acks::Leader => Response::Produce(produced.response()).into(),
            Acks::All if caller.may_wait => self.await_replicas(produced, timeout),
            // What is not replicated yet has timed out.
            Acks::All => Response::Produce(produced.response()).into(),
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
            Ok(Admission::Parked(handle)) => Reply::parked(receiver, Parked::Produce(handle)),
            Ok(Admission::Ended) => Reply::completed(receiver),
            // No room to wait in, or shutting down: what is not replicated yet has timed out.
            Err(rejected) => {
                rejected.into_inner().answer_now();
                Reply::completed(receiver)
            }
        }
    }
}
