//! What happens to a request.

pub(crate) mod admin;
pub(crate) mod delayed;
pub(crate) mod fetch;
pub(crate) mod metadata;
pub(crate) mod partition;
pub(crate) mod produce;
pub(crate) mod topics;

use crate::broker::delayed::{Purgatories, Request as _, park};
use crate::broker::fetch::Fetch;
use crate::broker::produce::{Acks, Follower, Produced};
use crate::broker::topics::Topics;
use crate::console::log;
use crate::exchange::{Caller, Reply, milliseconds};
use crate::groups::{self, Coordinator};
use crate::storage::folder::Folder;
use anyhow::Context;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::*;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What an operator may choose.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Of a topic whose creator does not say how many.
    pub(crate) partitions: i32,
    pub(crate) replica_lag: Duration,
    pub(crate) group_delay: Duration,
    /// Where topics and offsets are kept, if not in memory.
    pub(crate) data: Option<PathBuf>,
}

/// The broker, without its sockets.
pub(crate) struct Broker {
    pub(crate) purgatories: Purgatories,
    pub(crate) groups: Arc<Coordinator>,
    /// Each open connection has a clone of it.
    pub(crate) connection: Arc<()>,
    topics: Topics,
    /// The next id of a producer. (Relaxed: it guards no memory.)
    producer_ids: AtomicU64,
    follower: Follower,
}

impl Broker {
    /// A broker with the topics that were kept. Starts the follower on the current tokio runtime.
    pub(crate) fn open(settings: &Settings) -> anyhow::Result<Self> {
        let opened = Self::open_folder(settings);
        match &settings.data {
            Some(data) => opened.with_context(|| format!("cannot use {}", data.display())),
            None => opened,
        }
    }

    fn open_folder(settings: &Settings) -> anyhow::Result<Self> {
        let purgatories = Purgatories::new()?;
        let folder = settings.data.as_deref().map(Folder::open).transpose()?;
        let groups = groups::settings::Settings {
            offsets: folder.as_ref().map(Folder::offsets),
            ..groups::settings::Settings::new(settings.group_delay)?
        };
        let topics = Topics::open(purgatories.clone(), folder, settings.partitions)?;
        Ok(Self {
            follower: Follower::start(settings.replica_lag),
            connection: Arc::default(),
            topics,
            purgatories,
            groups: Coordinator::open(groups)?,
            // A new producer must not be taken for one that came before the restart: so they begin anywhere below 2^62.
            producer_ids: AtomicU64::new(RandomState::new().hash_one(()) >> 2),
        })
    }

    /// Sees to it that everything appended outlives the machine.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.topics.sync()?;
        self.groups.sync_offsets()
    }

    /// Answers everything that is parked, and parks nothing more.
    pub(crate) fn shutdown(&self) {
        self.purgatories.fetch.shutdown();
        self.purgatories.produce.shutdown();
        self.groups.shutdown();
    }

    /// Does what `request` asks, short of waiting.
    pub(crate) fn handle(&self, request: Option<RequestKind>, caller: &Caller) -> Reply {
        let topics = &self.topics;
        match request {
            None => metadata::api_versions(Some(ResponseError::UnsupportedVersion)).into(),
            Some(RequestKind::ApiVersions(_)) => metadata::api_versions(None).into(),
            Some(RequestKind::Fetch(fetch)) => self.fetch(fetch, caller),
            Some(RequestKind::Produce(produce)) => self.produce(produce, caller),
            Some(RequestKind::Metadata(asked)) => metadata::metadata(asked, topics, caller).into(),
            Some(RequestKind::ListOffsets(asked)) => metadata::list_offsets(asked, topics).into(),
            Some(RequestKind::CreateTopics(asked)) => admin::create_topics(asked, topics).into(),
            Some(RequestKind::DeleteTopics(asked)) => {
                admin::delete_topics(asked, topics, &self.groups).into()
            }
            Some(RequestKind::DescribeConfigs(asked)) => {
                admin::describe_configs(asked, topics).into()
            }
            Some(RequestKind::InitProducerId(asked)) => {
                self.init_producer_id(&asked, caller).into()
            }
            Some(asked) => {
                let is_partition = |topic: &str, index| topics.partition(topic, index).is_ok();
                self.groups.handle(asked, caller, &is_partition)
            }
        }
    }

    fn fetch(&self, request: FetchRequest, caller: &Caller) -> Reply {
        if let Some(refused) = fetch::refuse(&request) {
            return refused.into();
        }
        let max_wait = milliseconds(request.max_wait_ms);
        let fetch = Box::new(Fetch::new(request, &self.topics));
        if max_wait.is_zero() || !caller.may_wait {
            return Reply::Now(fetch.answer());
        }
        let partitions = fetch.known_partitions();
        let watches = partitions.iter().map(|partition| partition.for_fetches());
        park(&self.purgatories.fetch, watches, fetch, max_wait)
    }

    fn produce(&self, request: ProduceRequest, caller: &Caller) -> Reply {
        let timeout = milliseconds(request.timeout_ms);
        let acks = match Acks::from_wire(request.acks) {
            Ok(acks) => acks,
            Err(error) => return Produced::refuse(request, error).response().into(),
        };
        let produced = Produced::append(request, acks, &self.topics, &self.follower);
        match acks {
            Acks::None => match produced.error() {
                Some(error) => Reply::Disconnect(format!("produce with acks 0: {error}")),
                None => Reply::Never,
            },
            Acks::All if caller.may_wait => {
                let required = produced.required();
                let required = required.iter();
                let watches = required.map(|(partition, offset)| partition.for_produces(*offset));
                let produced = Box::new(produced);
                park(&self.purgatories.produce, watches, produced, timeout)
            }
            // With acks of all and no memory to wait in, what is not replicated yet has timed out.
            Acks::Leader | Acks::All => produced.response().into(),
        }
    }

    /// Gives an idempotent producer its id. There are no transactions here.
    fn init_producer_id(
        &self,
        asked: &InitProducerIdRequest,
        caller: &Caller,
    ) -> InitProducerIdResponse {
        let answer = InitProducerIdResponse::default();
        if asked.transactional_id.is_none() {
            let id = ProducerId(self.producer_ids.fetch_add(1, Relaxed) as i64);
            return answer.with_producer_id(id).with_producer_epoch(0);
        }
        const CAUSE: &str = "there are no transactions here";
        if caller.refusals.is_first(CAUSE) {
            let (client, id) = (caller.client, &caller.client_id);
            log!("{client} ({id:?}) has a transactional id: refused, {CAUSE}");
        }
        let answer = answer.with_error_code(ResponseError::UnsupportedVersion.code());
        answer
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1)
    }
}
