//! Examining an operation that one holds, and ending it.

use super::core::{Address, Core, Tenant};
use super::ready::Ready;
use crate::cell::slab::Released;
use crate::cell::state::Mark;
use crate::operation::{Completion, DelayedOperation};
use crate::stats::Ending;
use crate::sync::Arc;
use std::hash::BuildHasher;

/// What became of an examined operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Examined {
    /// It is parked, and nobody holds it.
    Parked,
    /// It has ended so, by this thread.
    Ended(Ending),
}

impl From<Mark> for Ending {
    fn from(mark: Mark) -> Self {
        match mark {
            // (A recheck ends nothing by itself.)
            Mark::Recheck => Self::Satisfied,
            Mark::Force => Self::Forced,
            Mark::Cancel => Self::Cancelled,
            Mark::Expire => Self::Expired,
            Mark::ShutDown => Self::ShutDown,
        }
    }
}

impl<Op: DelayedOperation, S: BuildHasher + Clone + Send + Sync + 'static> Core<Op, S> {
    /// Asks the operation whether it can complete, as often as others ask for it meanwhile, and ends it or lets go.
    #[inline]
    pub(crate) fn examine(
        self: &Arc<Self>,
        tenant: Tenant<'_, Op>,
        ready: &mut Ready<Op>,
    ) -> Examined {
        let Tenant { home, mut held } = tenant;
        let (held, ending) = loop {
            match self.guarded(|| held.with(|parked| parked.op.try_complete())) {
                Ok(true) => break (held, Ending::Satisfied),
                Err(_) => break (held, Ending::Aborted),
                Ok(false) => {}
            }
            match held.release() {
                Released::Parked => return Examined::Parked,
                Released::Recheck(again) => held = again,
                Released::End(held, mark) => break (held, mark.into()),
            }
        };
        self.end_into(Tenant { home, held }, ending, ready);
        Examined::Ended(ending)
    }

    /// Ends the operation and prepares its completion.
    #[inline]
    pub(crate) fn end_into(
        self: &Arc<Self>,
        tenant: Tenant<'_, Op>,
        ending: Ending,
        ready: &mut Ready<Op>,
    ) {
        let op = self.end(tenant, ending);
        let completion = match ending {
            Ending::Satisfied | Ending::Forced => Completion::Satisfied,
            Ending::Expired => Completion::Expired,
            Ending::Cancelled => Completion::Cancelled,
            Ending::ShutDown => Completion::ShutDown,
            Ending::Aborted => {
                // Its state is whatever the panic left: nothing more of it is called but its destructor.
                let _ = self.guarded(|| drop(op));
                return;
            }
        };
        ready.push(op, completion);
    }

    /// The one ending of a parked operation: from here on nobody finds it, under any key or handle or in the timer.
    ///
    /// The order matters. First the operation moves out and its references go stale, so that nobody else can end it;
    /// then it leaves the watch lists, while its slot cannot have another tenant yet; last the slot and the timer go
    /// back, and the books say so.
    #[inline]
    pub(crate) fn end(&self, tenant: Tenant<'_, Op>, ending: Ending) -> Op {
        let Tenant { home, held } = tenant;
        let at = held.at();
        let watcher = Address {
            home: home.number,
            at,
        }
        .watcher();
        let (parked, ended) = held.end();
        let keys = parked.keys.as_slice();
        for key in keys {
            self.watch.remove(key, watcher, |other| self.is_live(other));
        }
        home.give_back(ended, ending, keys.len());
        if let Some(limit) = &self.limit {
            limit.give_back();
        }
        parked.op
    }
}
