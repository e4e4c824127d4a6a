//! Keys, and how they are hashed.

use std::hash::{BuildHasher, Hash, Hasher};

/// The name of something that operations wait for, or under which a tracker keeps a value. Implemented for every type
/// that meets the bounds.
pub trait Key: Eq + Hash + Clone + Send + Sync + 'static {}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> Key for K {}

/// The hasher of keys. Implemented for every `BuildHasher` that can be cloned, and shared between threads.
pub trait KeyHasher: BuildHasher + Clone + Send + Sync + 'static {}

impl<S: BuildHasher + Clone + Send + Sync + 'static> KeyHasher for S {}

/// The default hasher of keys: fast, and seeded at random for each purgatory, because clients often choose the keys.
///
/// It resists collisions that an attacker prepares without knowledge of the seed. It is no cryptographic hash: if
/// attackers can measure the time of single calls, choose [another](crate::purgatory::Builder::hasher) hasher. The
/// algorithm behind it (foldhash today) may change in any version.
#[derive(Clone, Default)]
pub struct RandomState(foldhash::fast::RandomState);

impl BuildHasher for RandomState {
    type Hasher = DefaultHasher;

    #[inline]
    fn build_hasher(&self) -> DefaultHasher {
        DefaultHasher(self.0.build_hasher())
    }
}

debug_fields!([] RandomState, "RandomState", |it|);

/// The hasher that [`RandomState`] builds.
#[derive(Clone)]
pub struct DefaultHasher(foldhash::fast::FoldHasher<'static>);

/// Forwards each method to the inner hasher. The default methods of `Hasher` would turn numbers into bytes, which the
/// inner hasher hashes more slowly.
macro_rules! forward {
    ($($method:ident: $type:ty),*) => {
        $(#[inline(always)]
        fn $method(&mut self, value: $type) {
            self.0.$method(value);
        })*
    };
}

impl Hasher for DefaultHasher {
    forward!(write: &[u8], write_u8: u8, write_u16: u16, write_u32: u32, write_u64: u64, write_u128: u128,
        write_usize: usize);

    #[inline]
    fn finish(&self) -> u64 {
        self.0.finish()
    }
}

debug_fields!([] DefaultHasher, "DefaultHasher", |it|);
