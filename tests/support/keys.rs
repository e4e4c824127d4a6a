//! Keys that are counted, and keys whose hooks panic.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::thread;

/// Keys that are equal if their first fields are, whatever else they have.
macro_rules! by_number {
    ($key:ty) => {
        impl PartialEq for $key {
            fn eq(&self, other: &Self) -> bool {
                self.0 == other.0
            }
        }

        impl Eq for $key {}

        impl std::hash::Hash for $key {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }
    };
}
#[allow(unused_imports, reason = "each test target uses its own part")]
pub(crate) use by_number;

/// Counts the keys that it has made, and their clones, while they exist.
#[derive(Debug, Default)]
pub(crate) struct Census(Arc<()>);

/// A counted key.
#[derive(Debug, Clone)]
pub(crate) struct Counted(
    pub(crate) u64,
    #[expect(dead_code, reason = "it is there to be counted")] Arc<()>,
);

impl Census {
    pub(crate) fn key(&self, number: u64) -> Counted {
        Counted(number, self.0.clone())
    }

    /// How many exist.
    pub(crate) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

by_number!(Counted);

/// What a key does when it is dropped.
pub(crate) type Act = Arc<dyn Fn() + Send + Sync>;

/// Keys that do something when they are dropped; those that are made by cloning do nothing.
pub(crate) struct Acting(pub(crate) u64, pub(crate) Option<Act>);

impl Clone for Acting {
    fn clone(&self) -> Self {
        Self(self.0, None)
    }
}

by_number!(Acting);

impl Drop for Acting {
    fn drop(&mut self) {
        if let Some(act) = self.1.take() {
            act();
        }
    }
}

thread_local! {
    /// Keys with this number panic on this thread, in the hook that is named, once it has been called so often.
    static FUSE: Cell<Option<(u32, Hook, u32)>> = const { Cell::new(None) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    Clone,
    Hash,
    Eq,
    Drop,
}

/// A key whose hooks panic when told to.
#[derive(Debug)]
pub(crate) struct Fragile(pub(crate) u32);

impl Fragile {
    fn hook(&self, hook: Hook) {
        let Some((number, hooked, left)) = FUSE.get() else {
            return;
        };
        if (number, hooked) != (self.0, hook) || thread::panicking() {
            return;
        }
        match left.checked_sub(1) {
            Some(left) => FUSE.set(Some((number, hooked, left))),
            None => panic!("a hook of key {number}"),
        }
    }
}

impl Clone for Fragile {
    fn clone(&self) -> Self {
        self.hook(Hook::Clone);
        Self(self.0)
    }
}

impl Hash for Fragile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hook(Hook::Hash);
        self.0.hash(state);
    }
}

impl PartialEq for Fragile {
    fn eq(&self, other: &Self) -> bool {
        self.hook(Hook::Eq);
        self.0 == other.0
    }
}

impl Eq for Fragile {}

impl Drop for Fragile {
    fn drop(&mut self) {
        self.hook(Hook::Drop);
    }
}

/// Runs `action` while the `hook` of key `number` panics on this thread.
pub(crate) fn with_fuse<R>(
    number: u32,
    hook: Hook,
    action: impl FnOnce() -> R,
) -> thread::Result<R> {
    with_fuse_after(0, number, hook, action)
}

/// The same, but the first `calls` calls of the hook do not panic.
pub(crate) fn with_fuse_after<R>(
    calls: u32,
    number: u32,
    hook: Hook,
    action: impl FnOnce() -> R,
) -> thread::Result<R> {
    FUSE.set(Some((number, hook, calls)));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action));
    FUSE.set(None);
    result
}
