//! Keys that are added to a listener while it listens, by the task that owns the listener or by the condition that the
//! task evaluates.

use super::operation::{ForgetsLinger, Listening, WaitOperation};
use super::reply::Awaiting;
use super::signal::Signal;
use crate::hash::{Key, KeyHasher, RandomState};
use crate::purgatory::{Handle, Watch};
use crate::sync::{Arc, KeyCode, Mutex};
use crate::time::Deadline;
use crate::watch::bound::Rank;
use std::collections::HashMap;

/// Adds keys to a [`Listener`](super::Listener), for example from inside the listener's condition. Made by
/// [`Listener::further_keys`](super::Listener::further_keys). This value does not keep the listener alive: after the
/// drop of the listener, [`also`](Self::also) does nothing.
pub struct FurtherKeys<K: Key, S: KeyHasher = RandomState>(Arc<Further<K, S>>);

/// The state that a listener shares with its [`FurtherKeys`].
struct Further<K: Key, S: KeyHasher> {
    /// The handle of the listener's own operation. Through this handle, `also` parks the operations of added keys in
    /// the same purgatory. `None` if the listener's operation was rejected, or ended while it was still being parked.
    handle: Option<Handle<WaitOperation<K>, S>>,
    signal: Arc<Signal>,
    /// `None` once the listener has been dropped.
    added: Mutex<Option<Added<K, S>>>,
}

struct Added<K: Key, S: KeyHasher> {
    /// The parked operations of the added keys, one for each addition.
    operations: Vec<Listening<K, S>>,
    /// The added keys, each with the lowest [rank](Rank) at which the listener watches it: a check up to a rank also
    /// reaches all lower ranks. `None` is the lowest of all: the key is watched without a rank, and every check reaches
    /// it.
    known: HashMap<K, Option<Rank>>,
}

impl<K: Key, S: KeyHasher> FurtherKeys<K, S> {
    /// Listens to checks of one more key, as [`Listener::also`](super::Listener::also) does.
    pub fn also<'a>(&self, key: impl Into<Watch<'a, K>>) {
        let further = &*self.0;
        let watch = key.into();
        // Without a handle, the listener has ended: the purgatory has rejected it, or its operation ended while it was
        // still being parked.
        let Some(handle) = &further.handle else {
            return;
        };
        if further.signal.is_found() || !further.is_news(&watch) {
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
    /// Whether [`also`](FurtherKeys::also) has to park an operation for the key. `false` if the listener was dropped,
    /// or if the key was added before at this rank or a lower one. A check that reaches this rank also reaches all
    /// lower ranks, so the operation of the earlier addition gets all checks that a new operation would get.
    fn is_news(&self, watch: &Watch<'_, K>) -> bool {
        let added = self.added.lock();
        let Some(Added { known, .. }) = &*added else {
            return false;
        };
        let _key_code = KeyCode::enter("a listener");
        let known = known.get(watch.name());
        known.is_none_or(|known| *known > watch.rank)
    }

    /// Cancels the operations of the added keys. From now on no key is added.
    #[cold]
    fn end(&self) {
        let added = self.added.lock().take();
        // An operation may stay parked past its deadline, for the listener's last evaluation or for the grace after a
        // recheck. Then it has an entry in `Inner::early`, which goes after the operation has ended.
        let operations = added.iter().flat_map(|added| &added.operations);
        let handles = operations.filter_map(|operation| operation.handle().cloned());
        let lingers = Vec::from_iter(handles.map(ForgetsLinger));
        drop(added);
        drop(lingers);
    }

    /// Keeps `listening`, the operation that was parked for `key`, and records in `known` that `key` is watched. Must
    /// be called after the park. If the key were recorded before, another thread that adds the same key could find the
    /// record, and park no operation. Its call of `also` would then return before any operation watches the key.
    fn add(&self, listening: Listening<K, S>, key: K, rank: Option<Rank>) {
        let mut added = self.added.lock();
        let Some(Added { operations, known }) = &mut *added else {
            // The listener was dropped after the call of `is_news`. Drop this operation too, which cancels it. Release
            // the lock before the drop, because destructors may be user code.
            drop(added);
            return drop(listening);
        };
        // Keep the operation before `Hash` and `Eq` of the key run. If they panic, the unwinding must not drop the
        // operation: that would end the listener, because all its operations share one signal.
        operations.push(listening);
        let _key_code = KeyCode::enter("a listener");
        match known.get_mut(&key) {
            Some(known) => *known = rank.min(*known),
            None => {
                known.insert(key, rank);
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

/// The keys added to a listener. `None` until the first addition, because most listeners add no key. The destructor of
/// this value cancels the operations of the added keys.
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
                    known: HashMap::new(),
                })),
            }))
        })
    }
}

impl<K: Key, S: KeyHasher> Drop for OwnFurther<K, S> {
    fn drop(&mut self) {
        if let Some(further) = &self.0 {
            further.0.end();
        }
    }
}
