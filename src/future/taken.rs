//! A value in the hands of one waiter, and its way back.

use super::operation::WaitOperation;
use crate::engine::shared_handle::WeakRef;
use crate::hash::{Key, KeyHasher};
use crate::panics::Panics;
use crate::purgatory::{Bound, Purgatory};
use crate::trampoline::{Trampoline, UserValues, in_turn, is_in_nested_check};
use parking_lot::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A value that a [take](Purgatory::take) has taken: [done](Self::done), or given back when it is dropped.
///
/// It may go to another thread. It does not keep the purgatory alive, and has no place in it. A guard that is leaked
/// (by [`std::mem::forget`]) leaks its own value, and concerns no other. One that is dropped inside another destructor
/// that the library has called gives its value back when the outermost call of the library on that thread returns: so a
/// chain of guards, each owned by another, needs no stack.
#[must_use = "a value that is dropped goes back to where it came from"]
pub struct Taken<T: 'static>(Option<(T, Way<T>)>);

impl<T> Taken<T> {
    pub(super) fn new(value: T, way: Way<T>) -> Self {
        Self(Some((value, way)))
    }

    /// Returns the value, which does not go back any more.
    ///
    /// Call it when the work is done, with no `await` between the work's effect and this call: a worker that is aborted
    /// there has the work done twice.
    ///
    /// Drops the closure `give_back` and the keys. If a destructor of these panics, the panic is caught and
    /// [counted](crate::purgatory::Stats::panicked).
    pub fn done(mut self) -> T {
        let (value, way) = self.part();
        way.close();
        value
    }

    /// Gives the value back while the operation that took it is being parked; then its keys are checked in their order
    /// of arrival.
    pub(super) fn put_back(mut self) -> Way<T> {
        let (value, mut way) = self.part();
        way.get_mut().give_back(value);
        way.get_mut().check(true);
        way
    }

    fn part(&mut self) -> (T, Way<T>) {
        self.0.take().unwrap_or_else(|| unreachable!("{PRESENT}"))
    }

    /// Whether other operations watch one of the keys, where the one that took watches each `own` times.
    pub(super) fn is_watched_by_others(&mut self, own: usize) -> bool {
        let way = self.0.as_mut().map(|(_, way)| way.get_mut());
        way.is_some_and(|way| way.is_watched_by_others(own))
    }
}

const PRESENT: &str = "only a method that consumes the guard takes its value out";

impl<T> Deref for Taken<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some((value, _)) => value,
            None => unreachable!("{PRESENT}"),
        }
    }
}

impl<T> DerefMut for Taken<T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            Some((value, _)) => value,
            None => unreachable!("{PRESENT}"),
        }
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        if let Some((value, mut way)) = self.0.take() {
            let _trampoline = Trampoline::enter();
            // Guards may own one another.
            in_turn(move || {
                way.get_mut().give_back(value);
                way.offer();
            });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Taken<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Taken").field(&**self).finish()
    }
}

/// How a value goes back. Catches and counts all panics of the user's code.
///
/// (The lock is never taken. It makes guards `Sync`, which the user's closure need not be.)
pub(super) struct Way<T>(Mutex<Box<dyn WayBack<T>>>);

impl<T: 'static> Way<T> {
    pub(super) fn new<K: Key, S: KeyHasher>(
        waits: WeakRef<Purgatory<WaitOperation<K>, S>>,
        keys: Vec<K>,
        give_back: impl FnMut(T) + Send + 'static,
    ) -> Self {
        Self(Mutex::new(Box::new(Route {
            waits,
            keys: UserValues(keys),
            give_back,
        })))
    }

    fn get_mut(&mut self) -> &mut dyn WayBack<T> {
        &mut **self.0.get_mut()
    }

    /// Checks each key for one completion, and drops the way.
    pub(super) fn offer(mut self) {
        self.get_mut().check(false);
        self.close();
    }

    /// Drops the way.
    pub(super) fn close(self) {
        self.0.into_inner().close();
    }
}

trait WayBack<T>: Send {
    /// Whether other operations watch one of the keys, where the one that asks watches each `own` times.
    fn is_watched_by_others(&self, own: usize) -> bool;

    fn give_back(&mut self, value: T);

    /// Checks each key for one completion. Inside an examination: when the outermost call returns, if it is that of the
    /// operation that `arrives`; else when the timer is driven. (So is it if a nested check has caused the arrival: that
    /// operation may arrive anew in each.)
    fn check(&self, arrives: bool);

    fn close(self: Box<Self>);
}

struct Route<K: Key, S: KeyHasher, G> {
    waits: WeakRef<Purgatory<WaitOperation<K>, S>>,
    keys: UserValues<K>,
    give_back: G,
}

impl<K: Key, S: KeyHasher, G> Route<K, S, G> {
    fn contain(&self, user_code: impl FnOnce()) {
        if Panics::contain(user_code).is_none() {
            self.waits.upgrade().inspect(Purgatory::count_panic);
        }
    }
}

impl<T, K: Key, S: KeyHasher, G: FnMut(T) + Send> WayBack<T> for Route<K, S, G> {
    fn is_watched_by_others(&self, own: usize) -> bool {
        let waits = self.waits.upgrade();
        let watched =
            |waits: Purgatory<_, S>| self.keys.0.iter().any(|key| waits.watchers(key) > own);
        waits.is_some_and(watched)
    }

    fn give_back(&mut self, value: T) {
        if Panics::contain(|| (self.give_back)(value)).is_none() {
            self.waits.upgrade().inspect(Purgatory::count_panic);
        }
    }

    fn check(&self, arrives: bool) {
        let Some(waits) = self.waits.upgrade() else {
            return;
        };
        for key in &self.keys.0 {
            // `Hash` and `Eq` of a key may panic.
            self.contain(|| match arrives && !is_in_nested_check() {
                true => _ = waits.check_and_complete_with(key, Bound::at_most(1)),
                false => waits.offer(key, 1),
            });
        }
    }

    fn close(self: Box<Self>) {
        let Self {
            waits,
            keys,
            give_back,
        } = *self;
        for dropped in [
            Panics::contain(|| drop(keys)),
            Panics::contain(|| drop(give_back)),
        ] {
            if dropped.is_none() {
                waits.upgrade().inspect(Purgatory::count_panic);
            }
        }
    }
}
