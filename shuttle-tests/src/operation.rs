//! An operation whose hooks may panic, and may call the purgatory that it is in.

use crate::ledger::Page;
use request_purgatory::{Completion, DelayedOperation, Purgatory, purgatory::WeakRef};
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

/// The same in every run, so that a schedule repeats.
pub type Hasher = BuildHasherDefault<DefaultHasher>;
pub type Place = Purgatory<Operation, Hasher>;

/// What a hook does besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    Nothing,
    Panic,
    /// Checks this key.
    Check(u64),
    /// Cancels what is on this key.
    Cancel(u64),
    /// Parks another, on this key.
    Park(u64),
    /// Shuts the purgatory down.
    ShutDown,
}

pub struct Operation {
    pub page: Arc<Page>,
    pub timeout: Duration,
    pub on_examination: Deed,
    pub on_end: Deed,
    pub purgatory: WeakRef<Purgatory<Operation, Hasher>>,
    /// Where the pages of operations go that hooks park.
    pub more: Arc<std::sync::Mutex<Vec<Arc<Page>>>>,
}

impl Operation {
    fn perform(&self, deed: Deed) {
        if deed == Deed::Panic {
            // Without the hook, which would take it for a failure.
            resume_unwind(Box::new("intended"));
        }
        let Some(purgatory) = self.purgatory.upgrade() else {
            return;
        };
        match deed {
            Deed::Nothing | Deed::Panic => {}
            Deed::Check(key) => drop(purgatory.check_and_complete(&key)),
            Deed::Cancel(key) => purgatory
                .cancel_for_key(&key)
                .into_iter()
                .for_each(Self::out),
            Deed::Park(key) => {
                let page = Page::new();
                let op = Self {
                    page: page.clone(),
                    timeout: Duration::from_millis(1),
                    on_examination: Deed::Nothing,
                    on_end: Deed::Nothing,
                    purgatory: self.purgatory.clone(),
                    more: self.more.clone(),
                };
                // No other thread runs while this lock is held.
                self.more
                    .lock()
                    .expect("nothing panics under it")
                    .push(page);
                if let Err(rejected) = purgatory.try_complete_else_watch(op, [key]) {
                    rejected.into_inner().out();
                }
            }
            Deed::ShutDown => purgatory.shutdown(),
        }
    }

    /// It came out of the purgatory, and is dropped.
    pub fn out(self) {}
}

impl DelayedOperation for Operation {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        let ready = self.page.hook(|| {
            let ready = self.page.has_happened();
            shuttle::thread::yield_now();
            ready
        });
        // Outside of what must not overlap: it may come back to this very operation, and is turned away.
        self.perform(self.on_examination);
        ready
    }

    fn on_complete(self, _: Completion) {
        self.page.hook(|| {});
        self.perform(self.on_end);
    }
}

/// However it ends, it is dropped then, once.
impl Drop for Operation {
    fn drop(&mut self) {
        self.page.end();
    }
}
