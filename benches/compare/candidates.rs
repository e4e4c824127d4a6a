//! The implementations that are compared, one file each.

mod binary_heap;
mod btree_map;
mod delay_queue;
mod driven;
mod floor;
mod harness;
mod hash_wheel;
mod library;
mod nexus_wheel;
mod own_wheel;
mod paused_delay_queue;
mod straight_port;
mod timer_and_map;
mod tm_wheel;
mod tokio_idiom;
mod watch_lists;

pub(crate) use binary_heap::{Heap, HeapAndMap};
pub(crate) use btree_map::{BTree, BTreeAndMap};
pub(crate) use delay_queue::DelayQueueAndMap;
pub(crate) use floor::Floor;
pub(crate) use harness::Harness;
pub(crate) use hash_wheel::HashWheel;
pub(crate) use library::Library;
pub(crate) use nexus_wheel::{NexusQueue, NexusWheel};
pub(crate) use own_wheel::OwnWheel;
pub(crate) use paused_delay_queue::PausedDelayQueue;
pub(crate) use straight_port::{KafkaPort, ManualTimer, UnpurgedPort};
pub(crate) use tm_wheel::{TmWheel, TmWheelAndMap};
#[cfg(tokio_unstable)]
pub(crate) use tokio_idiom::AltTimer;
pub(crate) use tokio_idiom::{OnThreads, TokioIdiom};
