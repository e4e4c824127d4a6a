//! Examining an operation that one holds, and ending it.

use super::Parked;
use super::core::{Core, Later, Tenant};
use super::keys::Keys;
use crate::address::Address;
use crate::cell::slab::Released;
use crate::cell::state::Mark;
use crate::engine::UserPanic;
use crate::engine::deliver::Outbox;
use crate::observe::{End, Stay};
use crate::operation::{Completion, DelayedOperation, KeyHasher};
use crate::stats::Ending;
use crate::sync::{Arc, LOOKS};
use crate::time::Timestamp;
use crate::watch::Target;
use crate::watch::list::Rank;

/// What became of an examined operation.
pub(crate) enum Examined<Op> {
    /// It is parked, and nobody holds it.
    Parked,
    /// It has ended so, by this thread.
    Ended(Ending),
    /// It has ended because it panicked; nothing more of it may be called but its destructor.
    Aborted(Op),
}

/// An operation that has ended, on its way out.
pub(crate) enum Outcome<Op> {
    /// To be told how.
    Completed(Op, Completion),
    /// It panicked: only its destructor runs.
    Aborted(Op),
}

impl<Op> Outcome<Op> {
    #[inline(always)]
    pub(crate) fn of(op: Op, ending: Ending) -> Self {
        let completion = match ending {
            Ending::Satisfied | Ending::Forced => Completion::Satisfied,
            Ending::Expired => Completion::Expired,
            Ending::Cancelled => Completion::Cancelled,
            Ending::ShutDown => Completion::ShutDown,
            Ending::Aborted => return Self::Aborted(op),
        };
        Self::Completed(op, completion)
    }
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

impl<Op: DelayedOperation, S: KeyHasher> Core<Op, S> {
    /// Asks the operation whether it can complete.
    #[inline(always)]
    pub(crate) fn look(&self, tenant: &mut Tenant<'_, Op>) -> Result<bool, UserPanic> {
        self.engine
            .guarded(|| tenant.held.with(|parked| parked.op.try_complete()))
    }

    /// Goes by the operation's answer: ends it, or lets go of it. If others ask for another look meanwhile, it is
    /// looked at again first.
    #[inline(always)]
    pub(crate) fn settle(
        self: &Arc<Self>,
        tenant: Tenant<'_, Op>,
        mut answer: Result<bool, UserPanic>,
        outbox: &mut impl Outbox<Outcome<Op>>,
    ) -> Examined<Op> {
        let address = tenant.address();
        let Tenant { home, mut held } = tenant;
        let mut looks = 0;
        let (held, ending) = loop {
            match answer {
                Ok(true) => break (held, Ending::Satisfied),
                Ok(false) => {}
                Err(UserPanic) => {
                    let tenant = Tenant { home, held };
                    return Examined::Aborted(self.end(tenant, Ending::Aborted));
                }
            }
            looks += 1;
            // A holder whom others keep asking to look again leaves that to whoever drives the timer: its thread has
            // other things to do.
            match held.release(looks < LOOKS) {
                Released::Parked { asked } => {
                    if asked {
                        self.put_off(Later::Operation(address));
                    }
                    return Examined::Parked;
                }
                Released::Recheck(again) => {
                    let mut tenant = Tenant { home, held: again };
                    answer = self.look(&mut tenant);
                    held = tenant.held;
                }
                Released::End(held, mark) => break (held, mark.into()),
            }
        };
        self.end_into(Tenant { home, held }, ending, outbox);
        Examined::Ended(ending)
    }

    /// Ends the operation and prepares its completion.
    #[inline(always)]
    pub(crate) fn end_into(
        self: &Arc<Self>,
        tenant: Tenant<'_, Op>,
        ending: Ending,
        outbox: &mut impl Outbox<Outcome<Op>>,
    ) {
        let op = self.end(tenant, ending);
        outbox.push(Outcome::of(op, ending));
    }

    /// Drops an operation that panicked.
    pub(crate) fn discard(&self, op: Op) {
        // A panic of its destructor is counted, and concerns nobody else.
        let _ = self.engine.guarded(|| drop(op));
    }

    /// The one ending of a parked operation: from here on nobody finds it, under any key or handle or in the timer.
    #[inline(always)]
    pub(crate) fn end(&self, tenant: Tenant<'_, Op>, ending: Ending) -> Op {
        self.end_watching(tenant, ending, usize::MAX)
    }

    /// The same for an operation of which only so many keys are watched yet.
    ///
    /// The order matters. First the operation moves out and its references go stale, so that nobody else can end it;
    /// then it leaves the watch lists, while its slot cannot have another tenant yet; last the slot and the timer go
    /// back, and the books say so.
    #[inline(always)]
    pub(crate) fn end_watching(
        &self,
        tenant: Tenant<'_, Op>,
        ending: Ending,
        watched: usize,
    ) -> Op {
        let watcher = tenant.address();
        let end = End {
            ending,
            missed_check: false,
            deadline: self.deadline_to_tell(&tenant, ending),
        };
        let (Parked { op, keys, stay }, vacated) = self.engine.vacate(tenant);
        self.tell_end(stay, end, keys.len());
        self.unwatch(&keys, watcher, watched);
        self.engine.give_back(vacated, ending, keys.len());
        if std::mem::needs_drop::<Op::Key>() {
            let _ = self.engine.guarded(|| drop(keys));
        }
        op
    }

    /// When the operation is due, if the end that it is about to have is to be told with that.
    #[inline]
    pub(crate) fn deadline_to_tell(
        &self,
        tenant: &Tenant<'_, Op>,
        ending: Ending,
    ) -> Option<Timestamp> {
        let wanted = self
            .engine
            .observe(|observer| observer.wants_deadline(ending));
        wanted
            .then(|| self.engine.deadline(tenant.address()))
            .flatten()
    }

    /// Tells of the end of an operation that has moved out.
    #[inline]
    pub(crate) fn tell_end(&self, stay: Stay, end: End, watches: usize) {
        self.engine.observe(|observer| {
            observer.ended(stay, end, watches, || self.engine.clock.now());
        });
    }

    /// Takes an operation that has ended off the lists of its first so many keys.
    #[inline(always)]
    pub(crate) fn unwatch(&self, keys: &Keys<Op::Key>, watcher: Address, watched: usize) {
        self.for_each_watch(keys, watched, |target, rank| {
            self.watch
                .remove(target, rank, watcher, |other| self.is_live(other));
        });
    }

    /// Calls `each` for the first so many keys.
    #[inline(always)]
    pub(crate) fn for_each_watch<'k>(
        &self,
        keys: &'k Keys<Op::Key>,
        watched: usize,
        mut each: impl FnMut(Target<&'k Op::Key>, Option<Rank>),
    ) {
        let mut next = 0;
        // If `Hash` or `Eq` of a key panics, its list keeps a dead entry, and the others follow.
        while next < keys.len().min(watched) {
            let _ = self.engine.guarded(|| {
                keys.for_each(next, |target, rank| {
                    next += 1;
                    if next <= watched {
                        each(target, rank);
                    }
                });
            });
        }
    }
}
