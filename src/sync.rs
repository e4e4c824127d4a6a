//! The threading primitives that the library uses (atomics, locks, thread-local values), and the sizes and limits that
//! are smaller under the model checkers loom and shuttle.
//!
//! The other modules do not know about loom and shuttle, except for a few lines that exist for models alone. A normal
//! build gets std, parking_lot, crossbeam and dashmap ([`native`]). A build with `--cfg request_purgatory_loom` or
//! `--cfg request_purgatory_shuttle` gets instrumented stand-ins with the same interface (`loom-tests/inside/sync.rs`).
//! So the models in `loom-tests` and the random schedules of `shuttle-tests` run the library's own code.

mod key_code;
#[cfg(any(request_purgatory_loom, request_purgatory_shuttle))]
#[path = "../loom-tests/inside/sync.rs"]
#[cfg_attr(
    request_purgatory_shuttle,
    allow(
        unreachable_pub,
        reason = "models of loom use its locks themselves, random schedules do not"
    )
)]
pub(crate) mod model;
#[cfg(not(any(request_purgatory_loom, request_purgatory_shuttle)))]
mod native;
pub(crate) mod numbers;
mod sharded_map;

#[cfg(any(request_purgatory_loom, request_purgatory_shuttle))]
pub(crate) use model::*;
#[cfg(not(any(request_purgatory_loom, request_purgatory_shuttle)))]
pub(crate) use native::*;

pub(crate) use key_code::KeyCode;
pub(crate) use sharded_map::{Edit, ShardedMap};
pub(crate) use std::sync::{Arc, Weak};

/// `std::cell::UnsafeCell` with the interface of loom's: every access goes through a closure.
#[cfg(not(request_purgatory_loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(request_purgatory_loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}

/// A value that threads may share although its type is not `Sync`: every access to the value needs `&mut self` or
/// `self`. The mutex inside is never locked. It makes this type `Sync` without unsafe code.
pub(crate) struct Exclusive<T>(parking_lot::Mutex<T>);

impl<T> Exclusive<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}
