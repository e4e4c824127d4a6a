//! How pending requests are built.

use super::pending::{Failed, Pending};
use super::{Inner, Requests};
use crate::engine::Engine;
use crate::engine::settings::{Builder, Built};
use crate::engine::shared_handle::SharedHandle;
use crate::error::BuildError;
use crate::future::WaitError;
use crate::hash::{Key, KeyHasher, RandomState};

/// The settings of requests alone.
pub(crate) struct Own<S> {
    hasher: S,
    remembered: usize,
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Built for Requests<K, R, S> {
    type Own = Own<S>;
}

impl<K: Key, R: Send + 'static> Requests<K, R> {
    /// With a tick of 1 ms, a reaper thread and a completion thread, on which futures that time out are woken.
    ///
    /// # Panics
    /// If the system refuses a thread. [`Builder::build`] returns that as an error.
    pub fn new(name: impl Into<String>) -> Self {
        match Self::builder(name).build() {
            Ok(requests) => requests,
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins to build them with other choices.
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        let own = Own {
            hasher: RandomState::default(),
            remembered: 8_192,
        };
        Builder::new(name, own)
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> Builder<Requests<K, R, S>> {
    /// How ids are hashed. Default: [`RandomState`], a fast hash with a random seed.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Requests<K, R, H>> {
        Builder {
            settings: self.settings,
            own: Own {
                hasher,
                remembered: self.own.remembered,
            },
        }
    }

    /// How many ids of requests that ended without a response are remembered, the most recent ones, so that a response
    /// that comes for one of them is [`Late`](super::Responded::Late) and not [`Unknown`](super::Responded::Unknown).
    /// Let it be as many as may time out while one response is on its way. Each takes about 100 bytes beside the id,
    /// once it has ended. Default: 8,192.
    pub fn remembered_ids(mut self, count: usize) -> Self {
        self.own.remembered = count;
        self
    }

    /// Builds them and starts the threads.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread.
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(self) -> Result<Requests<K, R, S>, BuildError> {
        let pending = Pending::new(self.own.hasher, self.own.remembered);
        let time_out = |failed: Failed<K, R>| failed.answer(|_| Err(WaitError::Expired));
        let inner = Inner::new(Engine::new(self.settings)?, pending, time_out);
        Ok(Requests {
            shared: SharedHandle::start(inner),
        })
    }
}
