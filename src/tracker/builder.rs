//! How a tracker is built.

use super::entries::Entries;
use super::fencing::FencingToken;
use super::{Inner, Tracker};
use crate::address::Address;
use crate::engine::Engine;
use crate::engine::settings::{Builder, Built};
use crate::engine::shared_handle::SharedHandle;
use crate::error::BuildError;
use crate::hash::{Key, KeyHasher, RandomState};
use crate::panics::Panics;
use crate::timer::inner::Extra;
use crate::trampoline::drop_user_value;

/// The settings of a tracker alone.
pub(crate) struct Own<S> {
    hasher: S,
    first_token: u64,
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Built for Tracker<K, V, S> {
    type Own = Own<S>;
}

impl<K: Key, V: Send + 'static> Tracker<K, V> {
    /// A tracker with a tick of 1 ms, a reaper thread, and a completion thread on which `on_expiry` is called.
    ///
    /// # Panics
    /// If the system refuses a thread. [`Builder::build`] returns that as an error.
    pub fn new(
        name: impl Into<String>,
        on_expiry: impl Fn(K, V, FencingToken) + Send + Sync + 'static,
    ) -> Self {
        match Self::builder(name).build(on_expiry) {
            Ok(tracker) => tracker,
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins to build a tracker with other choices.
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        let own = Own {
            hasher: RandomState::default(),
            first_token: 1,
        };
        Builder::new(name, own)
    }
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Builder<Tracker<K, V, S>> {
    /// How keys are hashed. Default: [`RandomState`], a fast hash with a random seed, because clients often choose
    /// keys.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Tracker<K, V, H>> {
        Builder {
            settings: self.settings,
            own: Own {
                hasher,
                first_token: self.own.first_token,
            },
        }
    }

    /// The number of the first [`FencingToken`], from 1 to 2^63. Default: 1.
    ///
    /// A tracker forgets its tokens with the process. Where they must grow across restarts, give each start a number
    /// above all that the starts before can have reached: a count of the starts, from a store, in the upper 32 bits; or
    /// the time in microseconds since 1970, where the clock is never set back and there are fewer values than
    /// microseconds.
    pub fn first_token(mut self, number: u64) -> Self {
        self.own.first_token = number;
        self
    }

    /// Builds the tracker and starts its threads. `on_expiry` gets each value whose timeout has passed, with its key and
    /// its token, on the thread that [`dispatch`](Self::dispatch) says.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick), [`wheel_size`](Self::wheel_size) or [`first_token`](Self::first_token)
    /// is out of range, or the system refuses a thread.
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(
        self,
        on_expiry: impl Fn(K, V, FencingToken) + Send + Sync + 'static,
    ) -> Result<Tracker<K, V, S>, BuildError> {
        if !(1..=1 << 63).contains(&self.own.first_token) {
            return Err(BuildError::FirstToken);
        }
        let entries = Entries::new(self.own.hasher, self.own.first_token - 1);
        let on_expiry = move |(key, value, token)| on_expiry(key, value, token);
        let inner = Inner::new(Engine::new(self.settings)?, entries, on_expiry);
        Ok(Tracker {
            shared: SharedHandle::start(inner),
        })
    }
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Extra<u64, (K, V, FencingToken)>
    for Entries<K, V, S>
{
    fn leave(&self, address: Address, hash: u64) -> (K, V, FencingToken) {
        self.take(address, hash)
    }

    fn discard(&self, (key, value, _): (K, V, FencingToken)) {
        let mut panics = Panics::default();
        panics.catch(|| drop_user_value(value));
        panics.catch(|| drop_user_value(key));
        panics.resume();
    }
}
