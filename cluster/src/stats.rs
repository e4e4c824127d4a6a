//! What a node counts.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counter. Not part of the protocol, so it is the same under shuttle.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

// ORDERING: Relaxed throughout: counters are read for people, and nothing follows from them.
impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sessions: Count,
    pub(crate) gaps: Count,
    pub(crate) failed: Count,
    pub(crate) heard: Count,
    pub(crate) healed: Count,
    pub(crate) resets: Count,
    pub(crate) reads: Count,
}

/// What a node has seen so far. Counters begin with the cluster and only grow.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that are watched now, those that linger included.
    pub watched_keys: usize,
    /// Sessions that were opened.
    pub sessions: u64,
    /// Sessions that ended, other than by the shutdown: times in which nothing was heard.
    pub gaps: u64,
    /// Attempts to open a session that failed.
    pub failed: u64,
    /// Changes of watched keys that the feed told.
    pub heard: u64,
    /// Versions that a read found before the feed told of them. A few are news on the way; many mean that the feed
    /// loses messages.
    pub healed: u64,
    /// Times that the store lost its data, so that waits ended with `Reset`.
    pub resets: u64,
    /// Reads of keys that succeeded.
    pub reads: u64,
    /// For how long this node has not been in step with the store. Zero while a session is live and the last read has
    /// succeeded. Live: every key that was watched as it began is so again, and was read. (One that came later may not
    /// be yet.)
    pub lag: Duration,
    /// Why sessions fail, or hear nothing, while they do, the last time: `None` once one has lasted for the longest pause of
    /// [`Config::backoff`](crate::Config::backoff) and for two audits that found nothing unheard. Waits end by reads
    /// meanwhile, within an audit.
    pub feed_trouble: Option<Trouble>,
    /// Why reads of keys fail, while they do. Waits of this node do not end meanwhile, except by the feed and by their
    /// timeouts. (A read with which a session opens is in `feed_trouble`.)
    pub store_trouble: Option<Trouble>,
    /// What the feed's operator should change, if anything.
    pub advice: Option<Arc<str>>,
}

/// All [`Trouble::word`]s.
#[cfg(feature = "metrics")]
pub(crate) const WORDS: [&str; 10] = [
    "connect", "cut", "refused", "lagged", "silent", "protocol", "unread", "unheard", "reset",
    "panicked",
];

/// Something that fails again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trouble {
    /// Why, the last time.
    pub cause: Arc<str>,
    /// It in one word, as in the metric: `connect`, `cut`, `refused`, `lagged`, `silent`, `protocol`, `unread` (the store
    /// cannot be read), `unheard` (audits found what the feed had not told), `reset` or `panicked`.
    pub word: &'static str,
    /// How often with this word since all went well, other causes in between or not.
    pub times: u64,
}

/// What fails, and why: one for each word since all went well, the last one at the end. (So causes that take turns
/// do not hide one another.)
#[derive(Debug, Default)]
pub(crate) struct Troubles(Mutex<Vec<Trouble>>);

impl Troubles {
    pub(crate) fn now(&self) -> Option<Trouble> {
        self.0.lock().last().cloned()
    }

    /// How often it has failed with this word.
    #[cfg(feature = "metrics")]
    pub(crate) fn times(&self, word: &str) -> u64 {
        let troubles = self.0.lock();
        let of_this = troubles.iter().find(|it| it.word == word);
        of_this.map_or(0, |it| it.times)
    }

    /// It has failed once more; `word` says why in one. Returns how often with this word. (The text may name what differs
    /// each time: a subject, an address.)
    pub(crate) fn note(&self, word: &'static str, cause: &str) -> u64 {
        let mut troubles = self.0.lock();
        let earlier = troubles.iter().position(|it| it.word == word);
        let times = 1 + earlier.map_or(0, |at| troubles.remove(at).times);
        troubles.push(Trouble {
            cause: cause.into(),
            word,
            times,
        });
        times
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
