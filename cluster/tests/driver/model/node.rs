//! The model of a node: what it must know, ask for, count and answer, by what it was told. Maps and plain steps.

mod reads;
mod sessions;

use super::waits::{Claim, Ended, Known, Wait};
use request_purgatory_cluster::{Config, Epoch, Position, Reading};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// By which a timer may be late.
pub const TICK: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub struct Key {
    /// Tells it from the same key that was watched before.
    number: u64,
    pub interests: usize,
    idle_since: Instant,
    /// Which of several keys lost its last interest first, at one moment.
    left: u64,
    pub known: Known,
    /// Up to where the session has told, or had no chance to.
    heard: u64,
    /// What was known of the store's length when the key began to be watched.
    baseline: u64,
    /// When it was last read, or began to be watched; and in an audit.
    read_at: Instant,
    audited_at: Option<Instant>,
}

#[derive(Debug)]
struct Session {
    /// The generation that it began in.
    of: u64,
    /// Keys that were watched before it began, whether the feed watches them, and not read since.
    owed: BTreeMap<u64, bool>,
    live_since: Option<Instant>,
    /// When audits have found what was not heard.
    finds: BTreeSet<Instant>,
}

/// A read that is on its way.
#[derive(Debug)]
struct Ticket {
    reading: Reading,
    is_audit: bool,
    /// The first read of a session.
    opens: bool,
    number: u64,
    generation: u64,
    epoch: Option<Epoch>,
    /// The session that was there, if one was.
    session: u64,
    keys: Vec<Asked>,
}

/// A key that is read.
#[derive(Debug, Clone, Copy)]
struct Asked {
    key: u64,
    number: u64,
    /// The mark when the read began.
    mark: u64,
    /// Whether the session owes the read, and whether the feed had no chance to tell what it shows.
    is_owed: bool,
    excused: bool,
}

/// What is done again and again, with pauses that grow.
#[derive(Debug, Default)]
struct Attempts {
    failed: u32,
    /// When the next one may begin, and when it must have.
    next: Option<(Instant, Instant)>,
}

impl Attempts {
    /// It has failed, for this many times in a row, the one with the first pause included.
    fn pause(&mut self, config: &Config, now: Instant, times: u32) {
        let (first, longest) = config.backoff;
        let pause = first
            .saturating_mul(2u32.saturating_pow(times))
            .min(longest);
        self.next = Some((now + pause / 2, now + pause + TICK));
    }

    fn begin(&mut self, now: Instant, what: &str) {
        if let Some((from, to)) = self.next.take() {
            assert!((from..=to).contains(&now), "{what} is too early, or late");
        }
    }
}

#[derive(Debug)]
pub struct Node {
    pub config: Config,
    pub generation: u64,
    pub epoch: Option<Epoch>,
    head: u64,
    pub keys: BTreeMap<u64, Key>,
    /// How often a key lost an interest.
    left: u64,
    /// How many have come, and those that have gone, by their numbers: reads of them may be on their way.
    came: u64,
    gone: BTreeMap<u64, Key>,
    pub waits: BTreeMap<usize, Wait>,
    /// Keys that are to be read, and whether the feed had no chance to tell.
    wanted: BTreeMap<u64, bool>,
    /// Keys whose read was ordered. (A key may come before the order is taken.)
    pub ordered: Vec<u64>,
    settles: BTreeMap<u64, Instant>,
    tickets: BTreeMap<u64, Ticket>,
    /// How many reads have begun, those that open a session not included.
    begun: u64,
    reads_failed: Attempts,
    failed_at: Option<Instant>,
    held_at: Option<Instant>,
    opens: bool,
    asked_in: u64,
    session: Option<Session>,
    /// A session that was counted, until it is let go; and why it ended.
    is_open: bool,
    sessions_failed: Attempts,
    was_live_since: Option<Instant>,
    pub is_exact: bool,
    pub out_since: Option<Instant>,
    /// Why sessions failed, in the order of the last time, with the times. (Or without those that were over.)
    feed_troubles: Vec<Vec<(&'static str, u64)>>,
    pub unread: u64,
    pub advice: Option<Arc<str>>,
    /// After each attempt to open a session.
    is_to_be_advised: bool,
    pub counts: Counts,
    pub is_shut_down: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub sessions: u64,
    pub gaps: u64,
    pub failed: u64,
    pub heard: u64,
    pub healed: u64,
    pub resets: u64,
    pub reads: u64,
}

impl Node {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            generation: 0,
            epoch: None,
            head: 0,
            keys: BTreeMap::new(),
            left: 0,
            came: 0,
            gone: BTreeMap::new(),
            waits: BTreeMap::new(),
            wanted: BTreeMap::new(),
            ordered: Vec::new(),
            settles: BTreeMap::new(),
            tickets: BTreeMap::new(),
            begun: 0,
            reads_failed: Attempts::default(),
            failed_at: None,
            held_at: None,
            opens: false,
            asked_in: 0,
            session: None,
            is_open: false,
            sessions_failed: Attempts::default(),
            was_live_since: None,
            is_exact: true,
            out_since: Some(Instant::now()),
            feed_troubles: vec![Vec::new()],
            unread: 0,
            advice: None,
            is_to_be_advised: false,
            counts: Counts::default(),
            is_shut_down: false,
        }
    }

    fn audits(&self) -> bool {
        self.config.audit < Duration::from_secs(3_600)
    }

    pub fn live_since(&self) -> Option<Instant> {
        self.session.as_ref()?.live_since
    }

    pub fn position(&self, version: u64) -> Option<Position> {
        let epoch = self.epoch?;
        Some(Position { epoch, version })
    }

    // What the user does.

    /// One more interest in each of `keys`: in none of them where there is no room for one.
    pub fn enter(&mut self, keys: &[u64], now: Instant) -> bool {
        for (at, &key) in keys.iter().enumerate() {
            if let Some(known) = self.keys.get_mut(&key) {
                known.interests += 1;
                continue;
            }
            if self.keys.len() == self.config.max_keys {
                keys[..at].iter().for_each(|key| self.leave(*key, now));
                return false;
            }
            self.came += 1;
            let known = Key {
                number: self.came,
                interests: 1,
                idle_since: now,
                left: 0,
                known: Known::default(),
                heard: 0,
                baseline: self.head,
                read_at: now,
                audited_at: None,
            };
            self.keys.insert(key, known);
            // What is not watched at once is read at once.
            if self.live_since().is_none() {
                self.want(key, false);
            }
        }
        true
    }

    pub fn leave(&mut self, key: u64, now: Instant) {
        let known = self.keys.get_mut(&key).expect("it is watched");
        known.interests -= 1;
        self.left += 1;
        (known.idle_since, known.left) = (now, self.left);
    }

    pub fn want(&mut self, key: u64, excused: bool) {
        if self.keys.contains_key(&key) && !self.is_shut_down {
            *self.wanted.entry(key).or_default() |= excused;
        }
    }

    fn take_orders(&mut self) {
        for key in std::mem::take(&mut self.ordered) {
            self.want(key, false);
        }
    }

    pub fn claim(&self, key: u64, seen: u64, epoch: Option<Epoch>) -> Claim {
        let known = &self.keys[&key].known;
        Claim::new(
            known,
            (self.generation, self.epoch, self.begun),
            seen,
            epoch,
        )
    }

    pub fn announce(&mut self, key: u64, version: u64, now: Instant) {
        let known = self.keys.get_mut(&key);
        let is_raised = known.is_some_and(|it| it.known.raise(version));
        // A node that was shut down leaves the user's purgatories alone.
        if is_raised && !self.is_shut_down {
            self.told(key, version, now);
        }
    }

    /// Looks at the waits of `key`, and at operations that wait for versions up to `bound`.
    fn told(&mut self, key: u64, bound: u64, now: Instant) {
        let waits = self.waits.keys().copied().collect::<Vec<_>>();
        waits
            .into_iter()
            .for_each(|number| self.look(number, key, bound, now));
    }

    fn look(&mut self, number: usize, key: u64, bound: u64, now: Instant) {
        let history = (self.generation, self.epoch, self.begun);
        let keys = &self.keys;
        let known = |key: u64| keys.get(&key).map(|it| it.known).unwrap_or_default();
        let wait = self.waits.get_mut(&number).expect("it was begun");
        if wait.ended.is_none() {
            wait.ended = wait.examine(key, bound, history, known);
            if wait.ended.is_some() {
                self.leave_all(number, now);
            }
        }
    }

    /// A wait has just begun.
    pub fn began(&mut self, number: usize, wait: Wait, now: Instant) {
        let keys = wait.keys();
        self.waits.insert(number, wait);
        keys.into_iter()
            .for_each(|key| self.look(number, key, u64::MAX, now));
    }

    fn leave_all(&mut self, number: usize, now: Instant) {
        let keys = self.waits[&number].keys();
        keys.into_iter().for_each(|key| self.leave(key, now));
    }

    pub fn end(&mut self, number: usize, how: Option<Ended>, now: Instant) {
        let wait = self.waits.get_mut(&number).expect("it was begun");
        if wait.ended.is_none() {
            wait.ended = how;
            self.leave_all(number, now);
        }
    }

    pub fn shut_down(&mut self) {
        self.is_shut_down = true;
        for wait in self.waits.values_mut().filter(|it| !it.is_operation()) {
            if wait.ended.is_none() {
                wait.ended = Some(Ended::ShutDown);
                for key in wait.keys() {
                    self.keys.get_mut(&key).expect("it is watched").interests -= 1;
                }
            }
        }
    }

    /// What is told of the feed. A trouble is over some time after a session has been live for longer than the longest
    /// pause: the node looks once a second.
    pub fn troubled(&mut self, told: Option<(&'static str, u64)>, now: Instant) {
        let lived = self.live_since().map_or(Duration::ZERO, |it| now - it);
        let longest = self.config.backoff.1;
        let is_over = lived > longest + Duration::from_secs(1) + TICK;
        if told.is_none() && lived > longest {
            self.feed_troubles = vec![Vec::new()];
        } else {
            let is_over = is_over && self.config.audit == Duration::MAX;
            assert!(!is_over || told.is_none(), "{told:?} is over");
            let may_be = |troubles: &mut Vec<(&str, u64)>| troubles.last().copied() == told;
            self.feed_troubles.retain_mut(may_be);
            assert!(!self.feed_troubles.is_empty(), "{told:?}: {self:#?}");
        }
    }

    // What both sessions and reads do.

    fn note_step(&mut self, now: Instant) {
        let is_in_step = self.live_since().is_some() && self.reads_failed.failed == 0;
        if is_in_step {
            self.out_since = None;
        } else {
            self.out_since.get_or_insert(now);
        }
    }

    fn session_failed(&mut self, word: &'static str, now: Instant) {
        let longest = self.config.backoff.1;
        let has_lasted = self
            .was_live_since
            .take()
            .is_some_and(|it| it + longest < now);
        let failed = if has_lasted {
            0
        } else {
            self.sessions_failed.failed + 1
        };
        self.sessions_failed.failed = failed;
        self.sessions_failed
            .pause(&self.config, now, failed.saturating_sub(1));
        // The node may have looked since this session had lasted.
        let lived = self.live_since().map_or(Duration::ZERO, |it| now - it);
        if lived > longest {
            self.feed_troubles.push(Vec::new());
        }
        for troubles in &mut self.feed_troubles {
            let earlier = troubles.iter().position(|it| it.0 == word);
            let times = earlier.map_or(0, |at| troubles.remove(at).1);
            troubles.push((word, times + 1));
        }
        self.session = None;
    }

    fn progressed(&mut self, now: Instant) {
        if let Some(session) = &mut self.session
            && session.live_since.is_none()
            && session.owed.is_empty()
        {
            session.live_since = Some(now);
            self.was_live_since = Some(now);
            for key in self.keys.values_mut() {
                (key.read_at, key.audited_at) = (now, None);
            }
        }
    }

    /// Whether a read that the session owes is.
    fn is_on_its_way(&self, key: u64) -> bool {
        let is_of_this = |it: &&Ticket| it.session == self.counts.sessions;
        let mut tickets = self.tickets.values().filter(is_of_this);
        tickets.any(|it| it.keys.iter().any(|it| it.key == key && it.is_owed))
    }

    /// The session does not owe a read of it any more.
    fn spare(&mut self, key: u64) {
        if let Some(session) = &mut self.session {
            session.owed.remove(&key);
        }
    }

    // Time.

    /// The node watches this number of keys. It has forgotten those that had no interest for longest.
    pub fn forget(&mut self, now: Instant, watched: Option<usize>) {
        while watched.is_some_and(|it| it < self.keys.len()) {
            let idle = self.keys.iter().filter(|it| it.1.interests == 0);
            let first = idle.min_by_key(|it| it.1.left);
            let (&key, it) = first.expect("a key is forgotten that has an interest");
            assert!(
                it.idle_since + self.config.linger <= now,
                "{key} is forgotten too early"
            );
            let known = self.keys.remove(&key).expect("as seen");
            self.gone.insert(known.number, known);
            self.wanted.remove(&key);
            self.settles.remove(&key);
            // What is to be watched yet is so first, and the session owes a read that is on its way until it returns.
            let is_told = |it: &Session| it.owed.get(&key) == Some(&true);
            if self.session.as_ref().is_some_and(is_told) && !self.is_on_its_way(key) {
                self.spare(key);
            }
            self.progressed(now);
            self.note_step(now);
        }
    }

    /// Whatever was to be done by now was done.
    pub fn is_served(&mut self, now: Instant, is_held: bool) {
        if is_held {
            self.held_at = Some(now);
        }
        self.take_orders();
        assert!(
            !self.is_to_be_advised || self.is_shut_down,
            "no advice is asked for"
        );
        if self.is_shut_down || is_held {
            return;
        }
        // The node looks for keys that it may forget now and then.
        let look = (self.config.linger / 8).max(Duration::from_millis(10)) + TICK;
        let is_over = |it: &Key| it.idle_since + self.config.linger + look * 2 < now;
        let stays = self
            .keys
            .iter()
            .find(|it| it.1.interests == 0 && is_over(it.1));
        assert!(stays.is_none(), "{stays:?} has no interest");
        for attempts in [&self.reads_failed, &self.sessions_failed] {
            assert!(
                attempts.next.is_none_or(|it| it.1 >= now),
                "no attempt is made: {self:#?}"
            );
        }
        if self.reads_failed.next.is_none() {
            assert!(self.wanted.is_empty(), "{:?} are not read", self.wanted);
            let is_due = |due: &Instant| *due + TICK < now;
            assert!(!self.settles.values().any(is_due), "not read once more");
            for (key, it) in self.keys.iter().filter(|_| self.audits()) {
                let since = Some(it.read_at).max(self.failed_at).max(self.held_at);
                let is_late = since.is_some_and(|it| it + self.config.audit * 2 < now);
                assert!(!is_late, "no audit of {key}");
            }
        }
    }
}
