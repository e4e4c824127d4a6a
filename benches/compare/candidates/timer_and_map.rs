//! What one writes today: a timer from the shelf behind a mutex, a `DashMap` of watchers, and the
//! glue that a purgatory needs between them. The timer is the parameter.
//!
//! A request lives in a reference-counted [`Entry`] behind a mutex of its own. That mutex makes
//! `try_complete` exclusive and decides which thread ends the request: the one that takes it out. It is held
//! while keys are registered, so a checker that meets a request half parked waits for its parker,
//! as in Kafka. Lock order: entry, then timer or map; the timer's thread takes no entry's lock
//! while it holds the timer's.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::watch_lists::WatchLists;
use crate::candidate::{ByHandle, Candidate, poll_once};
use crate::request::{Ending, Request};

/// A timer that runs by itself, once constructed.
pub(crate) trait Timer: Sized + Send + Sync {
    const NAME: &'static str;

    /// What stops a timer that was started.
    type Token: Send + 'static;

    /// `expire` is called with each entry whose deadline has passed, holding no lock.
    fn new(expire: impl Fn(&Arc<Entry<Self::Token>>) + Send + Sync + 'static) -> Self;

    fn start(&self, entry: &Arc<Entry<Self::Token>>, deadline: Instant) -> Self::Token;

    /// Harmless if the timer has fired already.
    fn stop(&self, entry: &Entry<Self::Token>, token: Self::Token);

    fn len(&self) -> usize;

    /// See [`Candidate::drive`].
    fn drive<T>(&self, body: impl Future<Output = T>) -> T {
        poll_once(body)
    }
}

/// One parked request; empty once it has ended.
pub(crate) struct Entry<T> {
    parked: Mutex<Option<Parked<T>>>,
    /// For timers whose tokens may be reused once fired: set under the timer's lock as it fires.
    pub(crate) fired: AtomicBool,
}

struct Parked<T> {
    request: Request,
    keys: SmallVec<[u64; 4]>,
    token: T,
}

impl<T> Entry<T> {
    /// Takes the request out if it is still there and can complete.
    fn try_complete(&self) -> Option<Parked<T>> {
        let mut parked = self.parked.lock();
        if parked.as_mut()?.request.try_complete() {
            parked.take()
        } else {
            None
        }
    }
}

/// The candidate: a timer, the watch lists, and the two kept consistent.
pub(crate) struct TimerAndMap<T: Timer> {
    timer: T,
    lists: Arc<WatchLists<Entry<T::Token>>>,
}

impl<T: Timer> TimerAndMap<T> {
    fn finish(&self, entry: &Arc<Entry<T::Token>>, parked: Parked<T::Token>) {
        self.timer.stop(entry, parked.token);
        for &key in &parked.keys {
            self.lists.unwatch(key, entry);
        }
        parked.request.on_complete(Ending::Satisfied);
    }
}

impl<T: Timer> Candidate for TimerAndMap<T> {
    const NAME: &'static str = T::NAME;

    fn new() -> Self {
        let lists = Arc::new(WatchLists::<Entry<T::Token>>::new());
        let timer = T::new({
            let lists = Arc::clone(&lists);
            move |entry| {
                let Some(parked) = entry.parked.lock().take() else {
                    return;
                };
                for &key in &parked.keys {
                    lists.unwatch(key, entry);
                }
                parked.request.on_complete(Ending::Expired);
            }
        });
        Self { timer, lists }
    }

    #[inline(always)]
    fn park(&self, request: Request, keys: &[u64]) -> bool {
        self.park_for_handle(request, keys).is_none()
    }

    #[inline(never)]
    fn check(&self, key: u64) -> usize {
        let mut completed = 0;
        for entry in self.lists.watchers(key) {
            if let Some(parked) = entry.try_complete() {
                self.finish(&entry, parked);
                completed += 1;
            }
        }
        completed
    }

    fn parked(&self) -> usize {
        self.timer.len()
    }

    fn watched(&self) -> usize {
        self.lists.len()
    }

    fn drive<R>(&self, body: impl Future<Output = R>) -> R {
        self.timer.drive(body)
    }
}

impl<T: Timer> ByHandle for TimerAndMap<T> {
    type Handle = Arc<Entry<T::Token>>;

    #[inline(never)]
    fn park_for_handle(&self, mut request: Request, keys: &[u64]) -> Option<Self::Handle> {
        if request.try_complete() {
            request.on_complete(Ending::Satisfied);
            return None;
        }
        let deadline = Instant::now() + request.timeout();
        let entry = Arc::new(Entry {
            parked: Mutex::new(None),
            fired: AtomicBool::new(false),
        });
        let mut parked = entry.parked.lock();
        let token = self.timer.start(&entry, deadline);
        for &key in keys {
            self.lists.watch(key, &entry);
        }
        // The event may have come between the first try and the registration, when its check
        // could not find the request: look once more.
        if request.try_complete() {
            drop(parked);
            self.finish(
                &entry,
                Parked {
                    request,
                    keys: keys.into(),
                    token,
                },
            );
            return None;
        }
        *parked = Some(Parked {
            request,
            keys: keys.into(),
            token,
        });
        drop(parked);
        Some(entry)
    }

    #[inline(never)]
    fn force_complete(&self, entry: Self::Handle) -> bool {
        let taken = entry.parked.lock().take();
        let completed = taken.is_some();
        if let Some(parked) = taken {
            self.finish(&entry, parked);
        }
        completed
    }
}
