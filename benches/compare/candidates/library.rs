//! This crate, as its defaults are.

use request_purgatory::{Completion, DelayedOperation, Handle, Purgatory};
use std::thread;
use std::time::{Duration, Instant};

use crate::candidate::{ByHandle, Candidate};
use crate::request::{Ending, Request};

/// The longest that clearing away may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A purgatory with nothing configured: its own reaper, expired requests ended on its own thread.
pub(crate) struct Library(Purgatory<Request>);

impl Library {
    /// For what only this candidate offers.
    pub(crate) fn purgatory(&self) -> &Purgatory<Request> {
        &self.0
    }
}

impl DelayedOperation for Request {
    type Key = u64;

    fn timeout(&self) -> Duration {
        Self::timeout(self)
    }

    fn try_complete(&mut self) -> bool {
        Self::try_complete(self)
    }

    fn on_complete(self, completion: Completion) {
        match completion {
            Completion::Satisfied => Self::on_complete(self, Ending::Satisfied),
            Completion::Expired => Self::on_complete(self, Ending::Expired),
            other => panic!("nothing here cancels or shuts down while requests wait: {other:?}"),
        }
    }
}

impl Candidate for Library {
    const NAME: &'static str = "request_purgatory";

    fn new() -> Self {
        Self(Purgatory::new("compare"))
    }

    #[inline(never)]
    fn park(&self, request: Request, keys: &[u64]) -> bool {
        let parked = self
            .0
            .try_complete_else_watch(request, keys.iter().copied());
        !parked
            .expect("neither full nor shut down, and every request has a key")
            .is_parked()
    }

    #[inline(never)]
    fn check(&self, key: u64) -> usize {
        self.0.check_and_complete(&key)
    }

    fn parked(&self) -> usize {
        self.0.stats().parked
    }

    fn watched(&self) -> usize {
        self.0.stats().watched
    }

    /// After a storm, its reaper clears away.
    fn settle(&self) {
        let begun = Instant::now();
        while self.0.stats().watched > 0 && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl ByHandle for Library {
    type Handle = Handle<Request>;

    #[inline(never)]
    fn park_for_handle(&self, request: Request, keys: &[u64]) -> Option<Self::Handle> {
        self.0
            .try_complete_else_watch(request, keys.iter().copied())
            .expect("neither full nor shut down, and every request has a key")
            .into_handle()
    }

    #[inline(never)]
    fn force_complete(&self, handle: Self::Handle) -> bool {
        handle.force_complete()
    }
}
