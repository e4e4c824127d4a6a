//! Keys: numbers from spaces of different sizes, and now and then one that panics when it is hashed.

use crate::ledger::Accounts;
use crate::panics;
use fastrand::Rng;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Keys below this have an offset that can be waited for.
pub(crate) const OFFSETS: u32 = 80;
const HOT: u64 = 4;
const SMALL: u64 = 64;
const LARGE: u64 = 1_000_000;
/// The number of a key that panics.
pub(crate) const BOMB: u32 = u32::MAX;

#[derive(Debug, Clone)]
pub(crate) struct Key {
    number: u32,
    bomb: Option<Arc<Bomb>>,
}

/// What happens to the accounts when it goes off.
#[derive(Debug)]
struct Bomb {
    accounts: Arc<Accounts>,
    /// Whether the library catches the panic, and counts it.
    caught: bool,
}

impl Key {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, bomb: None }
    }

    /// A key that panics when it is hashed, where the library catches that or where the caller must.
    pub(crate) fn bomb(accounts: &Arc<Accounts>, caught: bool) -> Self {
        let accounts = accounts.clone();
        Self {
            number: BOMB,
            bomb: Some(Arc::new(Bomb { accounts, caught })),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if let Some(bomb) = &self.bomb {
            panics::raise(|| {
                if bomb.caught {
                    bomb.accounts.panics.add(1);
                }
            });
        }
        self.number.hash(state);
    }
}

/// Any key.
pub(crate) fn any(random: &mut Rng) -> u32 {
    let number = match random.u64(..16) {
        0..4 => random.u64(..HOT),
        4..10 => HOT + random.u64(..SMALL),
        _ => u64::from(OFFSETS) + random.u64(..LARGE),
    };
    number as u32
}

/// A key with an offset.
pub(crate) fn with_offset(random: &mut Rng) -> u32 {
    let number = match random.u64(..3) {
        0 => random.u64(..HOT),
        _ => HOT + random.u64(..SMALL),
    };
    number as u32
}

/// From one to five keys; one of them twice at times.
pub(crate) fn some(random: &mut Rng) -> Vec<u32> {
    let mut keys = (0..random.u64(1..=5))
        .map(|_| any(random))
        .collect::<Vec<_>>();
    if random.u64(..8) == 0 {
        keys.push(keys[0]);
    }
    keys
}
