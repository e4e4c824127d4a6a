//! Keys, and how they are hashed.

use std::hash::{BuildHasher, Hash, Hasher};

/// The name of something that operations wait for, or under which values are kept. Implemented for every type that
/// meets the bounds.
pub trait Key: Eq + Hash + Clone + Send + Sync + 'static {}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> Key for K {}

/// The hasher of keys. Implemented for every `BuildHasher` that can be cloned and shared.
pub trait KeyHasher: BuildHasher + Clone + Send + Sync + 'static {}

impl<S: BuildHasher + Clone + Send + Sync + 'static> KeyHasher for S {}

/// The default hasher of keys: fast, and seeded at random for each purgatory, since clients often choose the keys.
///
/// It resists collisions that an attacker prepares without knowledge of the seed. It is no cryptographic hash: where
/// attackers can measure single calls, choose [another](crate::purgatory::Builder::hasher). The algorithm
/// behind it (foldhash today) may change in any version.
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

/// Forwards each method. The default methods would turn numbers into bytes, for which the inner hasher is slower.
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
