//! The two places where requests wait.

use crate::broker::delayed_fetch::DelayedFetch;
use crate::broker::delayed_produce::DelayedProduce;
use request_purgatory::{Purgatory, purgatory::BuildError};
use std::time::Duration;

/// Longest wait granted, whatever a client asks for.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(300);

/// Most requests parked in either purgatory. Past it they are answered at once, with what is there.
const MAX_PARKED: usize = 1_000_000;

/// The purgatories of the broker. A clone is another handle on the same two.
#[derive(Clone)]
pub(crate) struct Purgatories {
    pub(crate) fetch: Purgatory<DelayedFetch>,
    pub(crate) produce: Purgatory<DelayedProduce>,
}

impl Purgatories {
    pub(crate) fn new() -> Result<Self, BuildError> {
        Ok(Self {
            fetch: Purgatory::builder("fetch")
                .max_timeout(MAX_WAIT)
                .max_parked(MAX_PARKED)
                .build()?,
            produce: Purgatory::builder("produce")
                .max_timeout(MAX_WAIT)
                .max_parked(MAX_PARKED)
                .build()?,
        })
    }

    /// Answers everything that is parked, and parks nothing more.
    pub(crate) fn shutdown(&self) {
        self.fetch.shutdown();
        self.produce.shutdown();
    }
}
