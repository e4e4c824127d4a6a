//! The requests that wait for a response, and the ids of those that have ended without one.

use crate::address::Address;
use crate::future::WaitError;
use crate::future::reply::Reply;
use crate::hash::{Key, KeyHasher};
use crate::panics::Panics;
use crate::promise::Promise;
use crate::stats::Count;
use crate::sync::{Arc, Mutex};
use crate::timer::inner::ValueStore;
use crate::tracker::entries::Entries;
use crate::trampoline::{UserValues, drop_user_value};
use equivalent::Equivalent;
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;

/// Answers a request. It ends with a shutdown where this is dropped.
pub(crate) type Responder<R> = Reply<Promise<Result<R, WaitError>>>;

pub(crate) struct Pending<K: 'static, R: 'static, S> {
    pub(super) entries: Entries<K, Responder<R>, S>,
    /// Its lock is taken before that of a map shard.
    ended: Mutex<Remembered<K>>,
    pub(super) late: Count,
    pub(super) unknown: Count,
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Pending<K, R, S> {
    pub(super) fn new(hasher: S, remembered: usize) -> Self {
        Self {
            entries: Entries::new(hasher, 0),
            ended: Mutex::new(Remembered {
                ids: UserValues(BTreeMap::new()),
                order: VecDeque::new(),
                max: remembered,
            }),
            late: Count::default(),
            unknown: Count::default(),
        }
    }

    /// Whether a request with this id, which just was not pending, has ended without a response. If its id is remembered
    /// by now, that is returned, and the request has its response from now on.
    pub(super) fn answer_ended<Q>(&self, id: &Q) -> (bool, Option<Arc<K>>)
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.entries.hash_of(id);
        let mut ended = self.ended.lock();
        let found = ended.take(hash, |ended| id.equivalent(ended));
        // While this thread has the lock, a request that is just ending does not leave the map. (A request that another
        // thread has made meanwhile is there as well. This response has come before it, and so is none to it.)
        let is_ended = found.is_some() || self.entries.has(hash, id);
        (is_ended, found)
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> ValueStore<u64, Failed<K, R>> for Pending<K, R, S> {
    const RETURNS_REMAINS: bool = false;

    /// Takes out a request.
    ///
    /// The lock of the ended is held from before an id leaves the map until it is among them. So a thread with this lock
    /// finds it in one of the two.
    fn take_value(&self, address: Address, hash: u64) -> Failed<K, R> {
        let mut ended = self.ended.lock();
        let (id, responder, token) = self.entries.take_value(address, hash);
        let id = Arc::new(id);
        let forgotten = ended.add((hash, token.get()), id.clone());
        Failed {
            id,
            responder,
            forgotten,
        }
    }

    fn shrink(&self) {
        self.entries.shrink();
    }
}

/// A request that has ended without a response, and has not been told.
pub(crate) struct Failed<K: 'static, R: 'static> {
    id: Arc<K>,
    responder: Responder<R>,
    /// An id that is not remembered any more because this one is.
    forgotten: Option<Arc<K>>,
}

impl<K, R> Failed<K, R> {
    /// Tells its future what `answer` makes of the id. That, wakers and destructors are the user's: the first panic goes
    /// on when all of them have run.
    pub(super) fn answer(self, answer: impl FnOnce(&K) -> Result<R, WaitError>) {
        let mut panics = Panics::default();
        let answer = panics.catch(|| answer(&self.id));
        let answer = answer.unwrap_or(Err(WaitError::Panicked));
        panics.catch(|| self.responder.answer(answer));
        panics.catch(|| drop_user_value(self.id));
        panics.catch(|| drop_user_value(self.forgotten));
        panics.resume();
    }
}

/// The ids of the requests that ended last without a response.
struct Remembered<K: 'static> {
    /// By the hash of the id, and the token of the request. (One id may be there several times.)
    ids: UserValues<BTreeMap<(u64, u64), Arc<K>>>,
    /// In the order in which they ended, with those whose response has come since.
    order: VecDeque<(u64, u64)>,
    /// The most that `order` has.
    max: usize,
}

impl<K> Remembered<K> {
    /// Adds an id. Returns the one that makes room for it.
    fn add(&mut self, at: (u64, u64), id: Arc<K>) -> Option<Arc<K>> {
        self.ids.0.insert(at, id);
        self.order.push_back(at);
        let oldest = (self.order.len() > self.max).then(|| self.order.pop_front());
        self.ids.0.remove(&oldest??)
    }

    /// Takes the oldest id with this hash that `is_it`.
    fn take(&mut self, hash: u64, is_it: impl Fn(&K) -> bool) -> Option<Arc<K>> {
        let mut equal = self.ids.0.range((hash, 0)..=(hash, u64::MAX));
        let (&at, _) = equal.find(|(_, id)| is_it(id))?;
        self.ids.0.remove(&at)
    }
}
