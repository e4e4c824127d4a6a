//! What happens to a request.

pub(crate) mod delayed;
pub(crate) mod fetch;
pub(crate) mod metadata;
pub(crate) mod partition;
pub(crate) mod produce;
pub(crate) mod topics;

use crate::broker::delayed::{Purgatories, Request as _, park};
use crate::broker::fetch::Fetch;
use crate::broker::produce::{ACKS_ALL, ACKS_NONE, Produced, follow};
use crate::broker::topics::Topics;
use crate::cli::Settings;
use crate::exchange::{Caller, Reply, milliseconds};
use crate::groups::{self, Coordinator};
use crate::messages::*;
use crate::storage::folder::Folder;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long a produce whose client sends no more waits for its replicas, at most.
const REPLICAS: Duration = Duration::from_secs(1);

/// The broker, without its sockets.
pub(crate) struct Broker {
    pub(crate) purgatories: Purgatories,
    pub(crate) groups: Coordinator,
    /// Each open connection has a clone of it.
    pub(crate) connection: Arc<()>,
    topics: Arc<Topics>,
    /// The next id of a producer. (Relaxed: it guards no memory.)
    producer_ids: AtomicU64,
    replica_lag: Duration,
}

impl Broker {
    pub(crate) fn open(settings: &Settings) -> anyhow::Result<Self> {
        let purgatories = Purgatories::new()?;
        let folder = settings.data.as_deref().map(Folder::open).transpose()?;
        let offsets = folder.as_ref().map(Folder::offsets);
        let groups = groups::Settings::new(settings.group_delay_ms, offsets)?;
        let topics = Topics::open(purgatories.clone(), folder, settings.partitions)?;
        let is_topic = |name: &str| topics.topic(name).is_ok();
        let groups = Coordinator::open(groups, is_topic)?;
        Ok(Self {
            replica_lag: settings.replica_lag_ms,
            connection: Arc::default(),
            topics: Arc::new(topics),
            purgatories,
            groups,
            // A new producer must not be taken for one that came before the restart: so they begin anywhere below 2^62.
            producer_ids: AtomicU64::new(RandomState::new().hash_one(()) >> 2),
        })
    }

    /// Sees to it that everything appended outlives the machine.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.topics.sync().and(self.groups.sync_offsets())
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
            None => metadata::api_versions(Some(Code::UnsupportedVersion)).into(),
            Some(RequestKind::ApiVersions(_)) => metadata::api_versions(None).into(),
            Some(RequestKind::Fetch(fetch)) => self.fetch(fetch, caller),
            Some(RequestKind::Produce(produce)) => self.produce(produce, caller),
            Some(RequestKind::Metadata(asked)) => metadata::metadata(asked, topics, caller),
            Some(RequestKind::ListOffsets(asked)) => metadata::list_offsets(asked, topics).into(),
            Some(RequestKind::CreateTopics(asked)) => metadata::create_topics(asked, topics).into(),
            Some(RequestKind::DeleteTopics(asked)) => {
                metadata::delete_topics(asked, topics, &self.groups).into()
            }
            Some(RequestKind::DescribeConfigs(asked)) => metadata::describe_configs(asked, topics),
            Some(RequestKind::InitProducerId(asked)) => self.init_producer_id(&asked, caller),
            Some(asked) => {
                let is_partition = |topic: &str, index| topics.partition(topic, index).is_ok();
                self.groups.handle(asked, caller, &is_partition)
            }
        }
    }

    fn fetch(&self, request: FetchRequest, caller: &Caller) -> Reply {
        // There are no fetch sessions here. A client that opens one (epoch 0) gets session 0, which means none, and names
        // all its partitions in every request; one that claims to have a session is told that it has not.
        if request.session_id != 0 {
            let error = Code::FetchSessionIdNotFound.code();
            return FetchResponse::default().with_error_code(error).into();
        }
        let max_wait = milliseconds(request.max_wait_ms);
        let fetch = Box::new(Fetch::new(request, &self.topics));
        if max_wait.is_zero() {
            return fetch.answer().into();
        }
        let partitions = fetch.known_partitions();
        let watches = partitions.iter().map(|partition| partition.fetches.watch());
        let fetches = &self.purgatories.fetch;
        Reply::Later(park(fetches, watches, fetch, max_wait, caller))
    }

    fn produce(&self, request: ProduceRequest, caller: &Caller) -> Reply {
        let (timeout, acks) = (milliseconds(request.timeout_ms), request.acks);
        let produced = Box::new(Produced::append(request, &self.topics));
        // High watermarks move, and requests wake up, once the follower has it.
        follow(produced.required(), self.replica_lag);
        match acks {
            ACKS_NONE => match produced.error() {
                Some(error) => Reply::Disconnect(format!("produce with acks 0: {error}")),
                None => Reply::Never,
            },
            ACKS_ALL => {
                let required = produced.required();
                let watches = required.iter().map(|(partition, offset)| {
                    // Offsets are ranks; none is negative.
                    partition.produces.watch().at_rank(*offset as u64)
                });
                let produces = &self.purgatories.produce;
                let mut waiting = park(produces, watches, produced, timeout, caller);
                // It is appended, and the replicas are about to have it.
                waiting.grace = REPLICAS;
                Reply::Later(waiting)
            }
            _ => produced.answer().into(),
        }
    }

    /// Gives an idempotent producer its id. There are no transactions here.
    fn init_producer_id(&self, asked: &InitProducerIdRequest, caller: &Caller) -> Reply {
        let answer = InitProducerIdResponse::default();
        if asked.transactional_id.is_none() {
            let id = ProducerId(self.producer_ids.fetch_add(1, Relaxed) as i64);
            return answer.with_producer_id(id).into();
        }
        const CAUSE: &str = "there are no transactions here";
        if caller.refusals.lock().insert(CAUSE) {
            let (client, id) = (caller.client, &caller.client_id);
            log!("{client} ({id:?}) has a transactional id: refused, {CAUSE}");
        }
        let error = Code::UnsupportedVersion.code();
        answer.with_error_code(error).with_producer_epoch(-1).into()
    }
}
