//! Clients: each waits for a key to pass what it has seen, thinks, and waits again.

use crate::store::{KEYS, Store};
use request_purgatory_cluster::model::{Table, wait_past_position};
use request_purgatory_cluster::request_purgatory::Waits;
use request_purgatory_cluster::{Interest, Position, WaitError, WaitPast};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Which clients were woken.
#[derive(Default)]
pub struct Woken(Mutex<Vec<usize>>);

impl Woken {
    pub fn take(&self) -> Vec<usize> {
        std::mem::take(&mut self.0.lock().expect("no test panics with it"))
    }
}

struct WakeClient {
    client: usize,
    woken: Arc<Woken>,
}

impl Wake for WakeClient {
    fn wake(self: Arc<Self>) {
        self.woken
            .0
            .lock()
            .expect("no test panics with it")
            .push(self.client);
    }
}

pub struct Client {
    waker: Waker,
    wait: Option<WaitPast<usize, Position>>,
    pub key: usize,
    began: Duration,
    /// What it has seen of each key, and in which history.
    seen: [(Position, u64); KEYS],
}

/// How a wait ended, if it did.
pub enum Answer {
    Pending,
    /// So late.
    News {
        late: Duration,
        is_wrong: bool,
    },
    Reset {
        late: Duration,
    },
    Expired,
}

impl Client {
    pub fn new(client: usize, store: &Store, woken: &Arc<Woken>) -> Self {
        let woken = woken.clone();
        Self {
            waker: Arc::new(WakeClient { client, woken }).into(),
            wait: None,
            key: 0,
            began: Duration::ZERO,
            seen: std::array::from_fn(|key| (store.position(key), store.history)),
        }
    }

    /// Waits for news of `key`.
    pub fn begin(
        &mut self,
        key: usize,
        table: &Arc<Table<usize>>,
        waits: &Waits<usize>,
        now: Duration,
    ) {
        self.key = key;
        self.began = now;
        let interest = Interest::new(table, [key]).expect("there is room");
        let timeout = Duration::from_secs(60);
        self.wait = Some(wait_past_position(
            interest,
            waits,
            self.seen[key].0,
            timeout,
        ));
    }

    /// Looks whether the wait has ended.
    pub fn poll(&mut self, store: &Store, now: Duration) -> Answer {
        let Some(wait) = &mut self.wait else {
            return Answer::Pending;
        };
        let mut context = Context::from_waker(&self.waker);
        let Poll::Ready(result) = Pin::new(wait).poll(&mut context) else {
            return Answer::Pending;
        };
        self.wait = None;
        let (seen, history) = self.seen[self.key];
        let present = (store.position(self.key), store.history);
        match result {
            Ok(position) => {
                // A version may have been committed and lost again while the answer was on its way.
                let is_present = position.epoch == store.epoch && history == store.history;
                let is_wrong = position.version <= seen.version
                    || position.epoch != seen.epoch
                    || !store.has_had(self.key, position)
                    || is_present && position.version > present.0.version;
                let since = match is_present {
                    true => store.committed_after(self.key, seen.version),
                    false => None,
                };
                self.seen[self.key] = (position, if is_present { store.history } else { history });
                let late = since.map_or(Duration::ZERO, |since| {
                    now.saturating_sub(since.max(self.began))
                });
                Answer::News { late, is_wrong }
            }
            Err(WaitError::Reset) => {
                let late = now.saturating_sub(store.began.max(self.began));
                self.seen[self.key] = present;
                Answer::Reset { late }
            }
            Err(WaitError::Expired) => Answer::Expired,
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether it waits for what has happened.
    pub fn is_lost(&self, store: &Store) -> bool {
        let (seen, _) = self.seen[self.key];
        let present = store.position(self.key);
        self.wait.is_some() && (seen.epoch != present.epoch || seen.version != present.version)
    }
}
