//! The shipped feeds in the simulation: Redis by tracking and by publishing, with its reads as well, and NATS.

use crate::engine::Engine;
use crate::engines::Host;
use crate::engines::nats_server::NatsServer;
use crate::engines::redis_server::RedisServer;
use crate::world::{Backend, Scenario, World};
use crate::{
    CUTS, FLUSHES, LATE, LOSSY, MUTE, NO_FEED, ROLLS_BACK, SELDOM, SOUND, UNREAD, holds_on, ms,
    seeds,
};
use request_purgatory_cluster::nats::{NatsConfig, NatsEngine};
use request_purgatory_cluster::redis::{News, RedisConfig, RedisEngine};
use request_purgatory_cluster::{Cluster, Config};
use std::sync::Arc;

#[derive(Clone)]
struct Redis<const PUBLISHED: bool> {
    server: RedisServer,
    engine: RedisEngine,
}

impl<const PUBLISHED: bool> Backend for Redis<PUBLISHED> {
    fn new(world: &Arc<World>) -> Self {
        let server = RedisServer::new(world.clone());
        let config = RedisConfig {
            news: match PUBLISHED {
                true => News::Published,
                false => News::Tracking,
            },
            ..RedisConfig::default()
        };
        Self {
            engine: RedisEngine::simulated(Arc::new(server.clone()), config),
            server,
        }
    }

    fn start(&self, config: Config) -> Cluster<u64> {
        let engine = || self.engine.clone();
        Cluster::start(engine(), engine(), config).expect("in a runtime")
    }

    fn committed(&self, key: u64, version: u64) {
        self.server.committed(key, version);
    }

    fn cut(&self) {
        self.server.cut();
    }

    fn flushed(&self) {
        self.server.flush();
    }
}

#[derive(Clone)]
struct Nats {
    server: NatsServer,
    engine: NatsEngine,
    reads: Engine,
}

impl Backend for Nats {
    fn new(world: &Arc<World>) -> Self {
        let server = NatsServer::new(world.clone() as Arc<dyn Host>);
        Self {
            engine: NatsEngine::simulated(Arc::new(server.clone()), NatsConfig::default()),
            server,
            reads: Engine::new(world),
        }
    }

    fn start(&self, config: Config) -> Cluster<u64> {
        // Some of the keys have a subscription each, and then there is a wildcard.
        let config = Config {
            max_subscriptions: 3,
            ..config
        };
        Cluster::start(self.reads.clone(), self.engine.clone(), config).expect("in a runtime")
    }

    fn committed(&self, key: u64, version: u64) {
        self.server.committed(key, version);
    }

    fn cut(&self) {
        self.server.cut();
    }

    fn flushed(&self) {
        self.server.flush();
    }
}

/// Silence is noticed by signs of life alone.
const SILENT: Scenario = Scenario {
    audit: SOUND.audit,
    ping: ms(100),
    bound: ms(600),
    ..MUTE
};

fn g24_nothing_is_lost<B: Backend>() {
    holds_on::<B>(SOUND, seeds());
}

fn g24_nothing_is_lost_when_sessions_are_cut<B: Backend>() {
    holds_on::<B>(CUTS, seeds());
}

fn g24_nothing_is_lost_when_commits_are_few<B: Backend>() {
    holds_on::<B>(SELDOM, seeds());
}

fn g24_nothing_is_lost_when_interest_spreads_late<B: Backend>() {
    holds_on::<B>(LATE, seeds());
}

fn g24_lost_messages_are_healed<B: Backend>() {
    holds_on::<B>(
        Scenario {
            late_interest: ms(0),
            ..LOSSY
        },
        seeds(),
    );
}

fn g24_a_flushed_store_ends_waits_with_reset<B: Backend>() {
    holds_on::<B>(FLUSHES, seeds());
}

fn g24_an_older_copy_ends_waits_with_reset<B: Backend>() {
    holds_on::<B>(ROLLS_BACK, seeds());
}

fn g24_an_audit_replaces_a_silent_session<B: Backend>() {
    holds_on::<B>(MUTE, seeds());
}

fn g24_silence_ends_a_session<B: Backend>() {
    holds_on::<B>(SILENT, seeds());
}

fn g24_without_a_feed_waits_end_by_reads<B: Backend>() {
    holds_on::<B>(NO_FEED, seeds());
}

fn g24_reads_that_failed_are_made_again<B: Backend>() {
    holds_on::<B>(UNREAD, seeds());
}

macro_rules! shipped {
    ($($feed:ident: $backend:ty { $($test:ident)* })*) => {$(
        mod $feed {
            use super::*;

            $(
                #[test]
                fn $test() {
                    super::$test::<$backend>();
                }
            )*
        }
    )*};
}

shipped! {
    redis_tracking: Redis<false> { g24_nothing_is_lost g24_nothing_is_lost_when_sessions_are_cut g24_nothing_is_lost_when_commits_are_few g24_a_flushed_store_ends_waits_with_reset g24_an_older_copy_ends_waits_with_reset g24_without_a_feed_waits_end_by_reads g24_an_audit_replaces_a_silent_session g24_reads_that_failed_are_made_again }
    redis_published: Redis<true> { g24_nothing_is_lost g24_nothing_is_lost_when_sessions_are_cut g24_nothing_is_lost_when_commits_are_few g24_a_flushed_store_ends_waits_with_reset g24_an_older_copy_ends_waits_with_reset g24_without_a_feed_waits_end_by_reads g24_lost_messages_are_healed g24_silence_ends_a_session }
    nats: Nats { g24_nothing_is_lost g24_nothing_is_lost_when_sessions_are_cut g24_nothing_is_lost_when_commits_are_few g24_a_flushed_store_ends_waits_with_reset g24_an_older_copy_ends_waits_with_reset g24_without_a_feed_waits_end_by_reads g24_nothing_is_lost_when_interest_spreads_late g24_silence_ends_a_session }
}
