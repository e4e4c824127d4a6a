//! The settings of a node.

use crate::error::StartError;
use crate::rules::Rules;
use std::time::Duration;
use tokio::sync::Semaphore;

/// A time that is longer is taken for this: 30 years, which clocks can add to the present.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The capacity that a channel gets for the one that an engine was given: it cannot have none, nor more than its
/// semaphore counts.
pub(crate) fn channel_capacity(given: usize) -> usize {
    given.clamp(1, Semaphore::MAX_PERMITS)
}

/// The addresses of servers as they may be printed: `redis://user:password@host` without what stands before the host,
/// `redis+unix:///path?pass=password` without what stands behind the path.
#[cfg(any(feature = "nats", feature = "redis"))]
pub(crate) fn without_secrets(addresses: &[String]) -> Vec<&str> {
    let shown = addresses.iter().map(|address| {
        let (place, query) = address.split_once('?').unwrap_or((address, ""));
        match place.rsplit_once('@') {
            Some((_, host)) => host,
            // A password has a `?`, or stands in the query: which of them cannot be told.
            None if query.contains('@') => "(an address with a password)",
            None => place,
        }
    });
    shown.collect()
}

/// The settings of a node. Every node may have its own; nothing is negotiated. A time of [`Duration::MAX`] means never.
///
/// ```
/// use request_purgatory_cluster::Config;
/// use std::time::Duration;
///
/// let config = Config {
///     name: "polls".into(),
///     audit: Duration::from_secs(5),
///     ..Config::default()
/// };
/// ```
#[derive(Debug, Clone)]
pub struct Config {
    /// Names the node's metrics and spans. Default: `cluster`.
    pub name: String,

    /// How often all watched keys are read, although nothing was heard of them; each time 20 % earlier or later by
    /// chance, so that nodes that start together do not read together. With a session or without one. Default: 15 s.
    ///
    /// This bounds how late a wait ends when the engine loses a message silently. It costs one read per watched key and
    /// audit: at the default, 100,000 keys are 6,700 reads a second in batches of 1,000. 15 s lies below the 30 s
    /// to 60 s that clients usually let a long poll wait, so a wait whose message was lost still ends in time.
    pub audit: Duration,

    /// How long a key stays watched after the last interest in it ended, and up to a quarter of that longer. Default:
    /// 10 s.
    ///
    /// A client that polls again, and one that waits for the next version, finds the key watched and its mark current:
    /// neither the engine nor the store is asked. 10 s covers the pause between two polls; longer only costs
    /// memory and messages.
    pub linger: Duration,

    /// How long a message may be on its way. Default: 200 ms.
    ///
    /// An audit that finds a version of which nothing was heard looks again this much later before it counts that as a
    /// fault. Where `watch` is not exact (a NATS cluster), new keys are read once more after this time. 200 ms is ten
    /// times what a loaded server on another continent needs; shorter ends healthy sessions under load.
    pub settle: Duration,

    /// The number of keys up to which each has a subscription of its own, for engines that have to choose: above, NATS
    /// uses one wildcard. Default: 4,096.
    ///
    /// A subscription per key costs the server and this node about 6 KB; a wildcard costs this node CPU time for each
    /// event of the whole cluster. Raise it for nodes that wait for few of many events.
    pub max_subscriptions: usize,

    /// The number of keys in one `watch` and in one read, at the most. Default: 1,000. (Redis is told of very long keys in
    /// several commands, so that its answers fit into its output buffer.)
    ///
    /// A store answers 1,000 keys in about a millisecond. Larger batches hold up what other clients of the store ask
    /// meanwhile, smaller ones spend more time on the way.
    pub read_batch: usize,

    /// The number of reads in flight at once. Default: 4.
    ///
    /// Enough to keep a connection busy; a herd of nodes that read 100,000 keys each after a restart of the store still
    /// asks for no more than 4,000 keys per node at a time.
    pub concurrent_reads: usize,

    /// The number of keys that this node may watch, those that linger included. Default: 1,000,000.
    ///
    /// Clients choose keys. An interest in one more key is refused with
    /// [`InterestError::TooManyKeys`](crate::InterestError::TooManyKeys). A million keys take about 1 GB on this node
    /// at the most.
    pub max_keys: usize,

    /// The number of keys that linger at the most, to within 16. Default: 100,000.
    ///
    /// Where more lose their last wait within the linger, those that lost it first are forgotten at once: a crowd of
    /// clients that leaves together does not keep its keys, which take about 900 bytes each. Of 0 none lingers.
    pub max_lingering: usize,

    /// The pauses between sessions: the first and the longest. Default: 50 ms and 5 s.
    ///
    /// The pause doubles with each attempt that fails, and a random part of up to half of it is left out, so that nodes
    /// that lost the same engine do not come back together. After a session that had caught up and lasted for longer
    /// than the longest pause it begins again with the first one; reads that fail pause alike. 50 ms is short beside a
    /// restart of an engine; 5 s is short beside the timeout of a wait.
    pub backoff: (Duration, Duration),

    /// How often the engine is asked for a sign of life, and how long it may take to give it. Default: 5 s.
    ///
    /// The clients of the engines do not ask by themselves (redis-rs), or every 60 s (async-nats). A frozen
    /// connection is noticed within twice this time; until then its waits are late.
    pub ping: Duration,

    /// Which rules of the protocol are kept.
    #[doc(hidden)]
    pub rules: Rules,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "cluster".into(),
            audit: Duration::from_secs(15),
            linger: Duration::from_secs(10),
            settle: Duration::from_millis(200),
            max_subscriptions: 4_096,
            read_batch: 1_000,
            concurrent_reads: 4,
            max_keys: 1_000_000,
            max_lingering: 100_000,
            backoff: (Duration::from_millis(50), Duration::from_secs(5)),
            ping: Duration::from_secs(5),
            rules: Rules::default(),
        }
    }
}

impl Config {
    /// Whether there is ever an audit.
    pub(crate) fn audits(&self) -> bool {
        self.audit < LONGEST
    }

    /// The settings of a node that starts.
    pub(crate) fn validated(mut self) -> Result<Self, StartError> {
        let zero = [
            ("audit", self.audit.is_zero()),
            ("read_batch", self.read_batch == 0),
            ("concurrent_reads", self.concurrent_reads == 0),
            ("max_keys", self.max_keys == 0),
            ("backoff", self.backoff.0.min(self.backoff.1).is_zero()),
            ("ping", self.ping.is_zero()),
        ];
        if let Some((setting, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(StartError::Zero(setting));
        }
        let Self {
            audit,
            linger,
            settle,
            backoff: (first, longest),
            ping,
            ..
        } = &mut self;
        for time in [audit, linger, settle, first, longest, ping] {
            *time = LONGEST.min(*time);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(feature = "nats", feature = "redis"))]
    #[test]
    fn what_is_printed_of_an_engine_has_no_password() {
        for (address, place) in [
            ("redis://me:secret@store:6379/1", "store:6379/1"),
            ("redis+unix:///run/store?pass=secret", "/run/store"),
            ("redis://me:secret@much@store", "store"),
            ("nats://me:secret@store:4222", "store:4222"),
            ("redis+unix:///store?pass=p@secret", "an address"),
            ("nats://me:secret?much@store", "an address"),
        ] {
            let redis = crate::redis::RedisConfig {
                addresses: vec![address.into()],
                ..Default::default()
            };
            let nats = crate::nats::NatsConfig {
                servers: vec![address.into()],
                ..Default::default()
            };
            for printed in [format!("{redis:?}"), format!("{nats:?}")] {
                assert!(printed.contains(place), "{printed}");
                assert!(!printed.contains("secret"), "{printed}");
            }
        }
    }

    /// None of them would end, wait or read.
    #[test]
    fn a_setting_of_zero_is_refused() {
        type Change = fn(&mut Config);
        let settings: [(&str, Change); 7] = [
            ("audit", |it| it.audit = Duration::ZERO),
            ("read_batch", |it| it.read_batch = 0),
            ("concurrent_reads", |it| it.concurrent_reads = 0),
            ("max_keys", |it| it.max_keys = 0),
            ("backoff", |it| it.backoff.0 = Duration::ZERO),
            ("backoff", |it| it.backoff.1 = Duration::ZERO),
            ("ping", |it| it.ping = Duration::ZERO),
        ];
        for (name, change) in settings {
            let mut config = Config::default();
            assert!(config.clone().validated().is_ok());
            change(&mut config);
            let refused = config.validated().err();
            assert_eq!(refused, Some(StartError::Zero(name)));
        }
    }

    #[test]
    fn g24_a_channel_has_a_capacity_that_it_can_have() {
        let taken = [0, 7, usize::MAX].map(channel_capacity);
        assert_eq!(taken, [1, 7, Semaphore::MAX_PERMITS]);
    }

    /// The engines' clients add it to the present. Any other time is taken as it is.
    #[test]
    fn g24_a_time_without_end_is_one_that_a_clock_reaches() {
        let of = |time| Config {
            audit: time,
            linger: time,
            settle: time,
            backoff: (time, time),
            ping: time,
            ..Config::default()
        };
        for time in [Duration::MAX, Duration::from_secs(7)] {
            let config = of(time).validated().expect("it is not zero");
            let (first, longest) = config.backoff;
            for taken in [
                config.audit,
                config.linger,
                config.settle,
                first,
                longest,
                config.ping,
            ] {
                assert!(taken == time || time == Duration::MAX && taken >= LONGEST);
                assert!(std::time::Instant::now().checked_add(taken).is_some());
            }
        }
    }
}
