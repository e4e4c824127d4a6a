//! Keys that are counted, and keys whose hooks panic.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::thread;

/// Keys that are equal if their first fields are, whatever else they have.
#[macro_export]
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
pub use crate::by_number;

/// Counts the keys that it has made, and their clones, while they exist.
#[derive(Debug, Default)]
pub struct Census(Arc<()>);

/// A counted key.
#[derive(Debug, Clone)]
pub struct Counted(
    pub u64,
    #[expect(dead_code, reason = "it is there to be counted")] Arc<()>,
);

impl Census {
    pub fn key(&self, number: u64) -> Counted {
        Counted(number, self.0.clone())
    }

    /// How many exist.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

by_number!(Counted);

/// What a key does when it is dropped.
pub type Act = Arc<dyn Fn() + Send + Sync>;

/// Keys that do something when they are dropped; those that are made by cloning do nothing.
pub struct Acting(pub u64, pub Option<Act>);

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

/// A key that acts whenever a copy of it is dropped.
#[derive(Clone)]
pub struct Busy(pub u64, pub Option<Act>);

by_number!(Busy);

impl Drop for Busy {
    fn drop(&mut self) {
        self.1.iter().for_each(|act| act());
    }
}

thread_local! {
    static FUSE: Cell<Option<Fuse>> = const { Cell::new(None) };
    /// The [fragile] keys that this thread has made, and their clones, less those that it has dropped.
    static FRAGILE: Cell<usize> = const { Cell::new(0) };
}

/// Keys with this number panic on this thread, in this hook, when it has been called so often.
#[derive(Clone, Copy)]
struct Fuse {
    number: u32,
    hook: Hook,
    left: u32,
    /// They panic in the calls after that as well.
    for_good: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    Clone,
    Hash,
    Eq,
    Drop,
}

/// A key whose hooks panic when told to.
#[derive(Debug)]
pub struct Fragile(pub u32);

impl Fragile {
    fn hook(&self, hook: Hook) {
        let Some(fuse) = FUSE.get() else {
            return;
        };
        if (fuse.number, fuse.hook) != (self.0, hook) || thread::panicking() {
            return;
        }
        if let Some(left) = fuse.left.checked_sub(1) {
            return FUSE.set(Some(Fuse { left, ..fuse }));
        }
        if !fuse.for_good {
            FUSE.set(None);
        }
        panic!("a hook of key {}", self.0);
    }
}

/// A fragile key that counts among those that exist.
pub fn fragile(number: u32) -> Fragile {
    FRAGILE.set(FRAGILE.get().wrapping_add(1));
    Fragile(number)
}

/// How many exist, if all were made by [`fragile`] on this thread, and dropped here.
pub fn fragile_keys() -> usize {
    FRAGILE.get()
}

impl Clone for Fragile {
    fn clone(&self) -> Self {
        self.hook(Hook::Clone);
        fragile(self.0)
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
        FRAGILE.set(FRAGILE.get().wrapping_sub(1));
        self.hook(Hook::Drop);
    }
}

/// Runs `action` while the `hook` of key `number` panics on this thread.
pub fn with_fuse<R>(number: u32, hook: Hook, action: impl FnOnce() -> R) -> thread::Result<R> {
    with_fuse_after(0, number, hook, action)
}

/// The same, but the first `calls` calls of the hook do not panic.
pub fn with_fuse_after<R>(
    calls: u32,
    number: u32,
    hook: Hook,
    action: impl FnOnce() -> R,
) -> thread::Result<R> {
    let fuse = Fuse {
        number,
        hook,
        left: calls,
        for_good: true,
    };
    burn(fuse, action).0
}

/// As [`with_fuse_after`], but only one call of the hook panics. Returns `None` if it was not called so often.
pub fn with_one_panic_after<R>(
    calls: u32,
    number: u32,
    hook: Hook,
    action: impl FnOnce() -> R,
) -> Option<thread::Result<R>> {
    let fuse = Fuse {
        number,
        hook,
        left: calls,
        for_good: false,
    };
    let (result, left) = burn(fuse, action);
    left.is_none().then_some(result)
}

/// Also returns what is left of the fuse.
fn burn<R>(fuse: Fuse, action: impl FnOnce() -> R) -> (thread::Result<R>, Option<Fuse>) {
    FUSE.set(Some(fuse));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action));
    (result, FUSE.take())
}
