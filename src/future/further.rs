//! Keys that are added to a listener while it listens, by its task or by its condition.

use super::operation::{Listening, WaitOperation};
use super::reply::Awaiting;
use super::signal::Signal;
use crate::callbacks::trampoline::UserValues;
use crate::hash::{Key, KeyHasher, RandomState};
use crate::purgatory::{Handle, Watch};
use crate::sync::{Arc, KeyCode, Mutex};
use crate::time::Deadline;
use crate::watch::bound::Rank;
use std::collections::HashMap;

/// Adds keys to a [`Listener`](super::Listener), for example from inside its condition. Made by
/// [`Listener::further_keys`](super::Listener::further_keys). Does not keep the listener alive: once the listener is
/// dropped, no key is added.
pub struct FurtherKeys<K: Key, S: KeyHasher = RandomState>(Arc<Further<K, S>>);

/// The state that a listener shares with its [`FurtherKeys`].
struct Further<K: Key, S: KeyHasher> {
    /// The handle of the listener's own operation. It parks the operations of added keys in the same purgatory. `None`
    /// if the purgatory has rejected the listener.
    handle: Option<Handle<WaitOperation<K>, S>>,
    signal: Arc<Signal>,
    /// `None` once the listener has been dropped.
    added: Mutex<Option<Added<K, S>>>,
}

struct Added<K: Key, S: KeyHasher> {
    /// One operation for each addition.
    operations: Vec<Listening<K, S>>,
    /// The added keys, each with the lowest rank at which it is watched (`None`: without a rank, which is below all
    /// ranks).
    known: UserValues<HashMap<K, Option<Rank>>>,
}

impl<K: Key, S: KeyHasher> FurtherKeys<K, S> {
    /// Listens to checks of one more key, as [`Listener::also`](super::Listener::also) does.
    pub fn also<'a>(&self, key: impl Into<Watch<'a, K>>) {
        let further = &*self.0;
        let watch = key.into();
        // Without a handle, the purgatory has rejected the listener, which has ended.
        let Some(handle) = &further.handle else {
            return;
        };
        if !further.is_news(&watch) {
            return;
        }
        let key = watch.name().clone();
        let rank = watch.rank;
        let operation = WaitOperation::listener(Deadline::Never, further.signal.clone());
        let parked = handle.park_beside(operation, watch);
        let listening = Awaiting::new(further.signal.clone(), parked);
        further.add(listening, key, rank);
    }
}

impl<K: Key, S: KeyHasher> Further<K, S> {
    /// Whether the key is to be added: the listener still exists, and has not yet added the key at this rank or a lower
    /// one.
    fn is_news(&self, watch: &Watch<'_, K>) -> bool {
        let added = self.added.lock();
        let Some(Added { known, .. }) = &*added else {
            return false;
        };
        let _key_code = KeyCode::enter("a listener");
        let known = known.0.get(watch.name());
        known.is_none_or(|known| *known > watch.rank)
    }

    /// Notes that the key is watched. Called after the operation for the key was parked: another thread that adds the
    /// same key then parks no operation, and relies on this operation.
    fn add(&self, listening: Listening<K, S>, key: K, rank: Option<Rank>) {
        let mut added = self.added.lock();
        let Some(Added { operations, known }) = &mut *added else {
            // The listener was dropped meanwhile: end this operation as well, with no lock held.
            drop(added);
            return drop(listening);
        };
        // Keep the operation before `Hash` and `Eq` of the key run, because they may panic.
        operations.push(listening);
        let _key_code = KeyCode::enter("a listener");
        match known.0.get_mut(&key) {
            Some(known) => *known = rank.min(*known),
            None => {
                known.0.insert(key, rank);
            }
        }
    }
}

impl<K: Key, S: KeyHasher> Clone for FurtherKeys<K, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

debug_fields!([K: Key, S: KeyHasher] FurtherKeys<K, S>, "FurtherKeys", |it| handle: it.0.handle);

/// The [`FurtherKeys`] of a listener, if it has any: most have none. The destructor of this value ends the operations
/// of the added keys.
pub(super) struct OwnFurther<K: Key, S: KeyHasher>(Option<FurtherKeys<K, S>>);

impl<K: Key, S: KeyHasher> OwnFurther<K, S> {
    pub(super) fn none() -> Self {
        Self(None)
    }

    pub(super) fn keys(&mut self, listening: &Listening<K, S>) -> &FurtherKeys<K, S> {
        self.0.get_or_insert_with(|| {
            FurtherKeys(Arc::new(Further {
                handle: listening.handle().cloned(),
                signal: listening.shared().clone(),
                added: Mutex::new(Some(Added {
                    operations: Vec::new(),
                    known: UserValues(HashMap::new()),
                })),
            }))
        })
    }
}

impl<K: Key, S: KeyHasher> Drop for OwnFurther<K, S> {
    fn drop(&mut self) {
        let further = self.0.as_ref();
        let added = further.and_then(|further| further.0.added.lock().take());
        drop(added);
    }
}
