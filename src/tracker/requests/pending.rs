//! The requests that wait for a response, and the ids of those that have ended without one.

use crate::address::Address;
use crate::future::WaitError;
use crate::hash::{Key, KeyHasher};
use crate::panics::Panics;
use crate::promise::Promise;
use crate::stats::Count;
use crate::sync::{Arc, Mutex};
use crate::timer::inner::Extra;
use crate::tracker::entries::Entries;
use crate::trampoline::{UserValues, drop_user_value};
use equivalent::Equivalent;
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;

/// The side of a promise that answers. Its destructor ends the request with a shutdown.
pub(crate) struct Caller<R: 'static>(pub(super) Arc<Promise<Result<R, WaitError>>>);

impl<R> Caller<R> {
    pub(super) fn answer(self, answer: Result<R, WaitError>) {
        // Nothing else keeps this promise while the caller exists. It refuses the answer if its future is just being
        // dropped.
        if let Err(unwanted) = self.0.keep(answer) {
            drop_user_value(unwanted);
        }
    }
}

impl<R> Drop for Caller<R> {
    fn drop(&mut self) {
        // The promise refuses this if there is an answer. A shutdown drops many callers, and the waker of one may
        // panic: the others must be told all the same. The panic hook has reported it.
        Panics::contain(|| drop(self.0.keep(Err(WaitError::ShutDown))));
    }
}

pub(crate) struct Pending<K: 'static, R: 'static, S> {
    pub(super) entries: Entries<K, Caller<R>, S>,
    /// Its lock is taken before that of a map shard.
    ended: Mutex<Ended<K>>,
    pub(super) late: Count,
    pub(super) unknown: Count,
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Pending<K, R, S> {
    pub(super) fn new(hasher: S, remembered: usize) -> Self {
        Self {
            entries: Entries::new(hasher, 0),
            ended: Mutex::new(Ended {
                ids: BTreeMap::new(),
                order: VecDeque::new(),
                max: remembered,
            }),
            late: Count::default(),
            unknown: Count::default(),
        }
    }

    /// Forgets an ended request, whose response has come, and returns its id. `None` if none is remembered.
    pub(super) fn forget<Q>(&self, id: &Q) -> Option<Arc<K>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.entries.hash_of(id);
        self.ended.lock().take(hash, |ended| id.equivalent(ended))
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Extra<u64, Failed<K, R>> for Pending<K, R, S> {
    /// Every id is either in the map or among the ended, for a thread that looks in the map first: the lock of the ended
    /// is held from before it leaves the one until it is in the other.
    fn leave(&self, address: Address, hash: u64) -> Failed<K, R> {
        let mut ended = self.ended.lock();
        let (id, caller, token) = self.entries.take(address, hash);
        let id = Arc::new(id);
        let forgotten = ended.add((hash, token.get()), id.clone());
        Failed {
            id,
            caller,
            forgotten,
        }
    }

    fn discard(&self, failed: Failed<K, R>) {
        failed.answer(|_| Err(WaitError::ShutDown));
    }
}

/// A request that has ended without a response, and has not been told.
pub(crate) struct Failed<K: 'static, R: 'static> {
    id: Arc<K>,
    caller: Caller<R>,
    /// An id that is not remembered any more because this one is.
    forgotten: Option<Arc<K>>,
}

impl<K, R> Failed<K, R> {
    /// Tells its future what `answer` makes of the id. That, wakers and destructors are the user's: the first panic goes
    /// on when all of them have run.
    pub(super) fn answer(self, answer: impl FnOnce(&K) -> Result<R, WaitError>) {
        let Self {
            id,
            caller,
            forgotten,
        } = self;
        let mut panics = Panics::default();
        let answer = panics.catch(|| answer(&id));
        let answer = answer.unwrap_or(Err(WaitError::Panicked));
        panics.catch(|| caller.answer(answer));
        panics.catch(|| drop_user_value(id));
        panics.catch(|| drop_user_value(forgotten));
        panics.resume();
    }
}

/// The ids of the requests that ended last without a response.
struct Ended<K: 'static> {
    /// By the hash of the id, and the token of the request. (One id may be there several times.)
    ids: BTreeMap<(u64, u64), Arc<K>>,
    /// In the order in which they ended, with those whose response has come since.
    order: VecDeque<(u64, u64)>,
    /// The most that `order` has.
    max: usize,
}

impl<K> Ended<K> {
    /// Adds an id. Returns the one that makes room for it.
    fn add(&mut self, at: (u64, u64), id: Arc<K>) -> Option<Arc<K>> {
        self.ids.insert(at, id);
        self.order.push_back(at);
        let oldest = (self.order.len() > self.max).then(|| self.order.pop_front());
        self.ids.remove(&oldest??)
    }

    /// Takes the oldest id with this hash that `is_it`.
    fn take(&mut self, hash: u64, is_it: impl Fn(&K) -> bool) -> Option<Arc<K>> {
        let mut equal = self.ids.range((hash, 0)..=(hash, u64::MAX));
        let (&at, _) = equal.find(|(_, id)| is_it(id))?;
        self.ids.remove(&at)
    }
}

impl<K> Drop for Ended<K> {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut self.ids);
        drop(UserValues(ids.into_values().collect()));
    }
}
