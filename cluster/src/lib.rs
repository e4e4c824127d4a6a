// (The programs of the page need both engines.)
#![cfg_attr(any(not(doctest), all(feature = "redis", feature = "nats")), doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(any(feature = "rules", request_purgatory_shuttle)),
    allow(
        unreachable_pub,
        reason = "the models reach the protocol through `model`, which is not there"
    )
)]

mod cluster;
mod config;
mod driver;
mod error;
#[cfg(any(feature = "redis", feature = "nats"))]
mod event;
mod feed;
mod interest;
mod key;
mod library;
pub mod memory;
#[cfg(any(feature = "rules", request_purgatory_shuttle))]
#[doc(hidden)]
pub mod model;
#[cfg(feature = "nats")]
pub mod nats;
mod observe;
mod position;
mod protocol;
#[cfg(feature = "redis")]
pub mod redis;
mod rules;
mod shared;
mod source;
mod stats;
mod sync;
mod table;
mod waits;

pub use cluster::Cluster;
pub use config::Config;
pub use error::{BoxError, EngineError, FeedError, InterestError, KeyError, StartError, WaitError};
#[cfg(any(feature = "redis", feature = "nats"))]
pub use event::Event;
pub use feed::{Change, Changes, Feed, Interests};
pub use interest::Interest;
pub use key::{Key, WireKey};
pub use position::{Epoch, ParsePositionError, Position};
pub use request_purgatory;
pub use source::{Reading, Source};
pub use stats::{Stats, Trouble};
pub use waits::{ClusterWaits, WaitPast};
