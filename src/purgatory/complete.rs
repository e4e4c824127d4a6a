//! Examining an operation, ending it, and completing it.

use super::checked_key::{Asked, Checked};
use super::deferred::Deferred;
use super::inner::{Claim, Inner, Parked, Stale};
use super::keys::Keys;
#[cfg(debug_assertions)]
use super::stuck::InProgress;
use crate::address::Address;
use crate::cell::slab::Released;
use crate::cell::state::Mark;
use crate::engine::UserPanic;
use crate::engine::handler::Ended;
use crate::hash::KeyHasher;
use crate::observe::End;
use crate::operation::{Cause, Completion, DelayedOperation};
use crate::stats::Ending;
use crate::sync::{Arc, MAX_EXAMINATIONS};
use crate::trampoline::{Examining, Why, drop_user_value};
use crate::watch::Target;
use crate::watch::bound::Bound;
use crate::watch::sweep::Sweep;
use crate::watch::turn::Turn;

/// What became of an examined operation.
pub(crate) enum Examined<Op> {
    /// It is parked here, and no thread holds it.
    Parked(Address),
    /// This thread has ended it.
    Ended(Ended<Op>),
}

impl Ending {
    /// What the operation is told. (After a panic, nothing.)
    pub(super) fn completion(self) -> Option<Completion> {
        match self {
            Self::Satisfied | Self::Forced => Some(Completion::Satisfied),
            Self::Expired => Some(Completion::Expired),
            Self::Cancelled => Some(Completion::Cancelled),
            Self::ShutDown => Some(Completion::ShutDown),
            Self::Aborted => None,
        }
    }
}

impl From<Mark> for Ending {
    fn from(mark: Mark) -> Self {
        match mark {
            // A recheck ends nothing by itself.
            Mark::Recheck => Self::Satisfied,
            Mark::Force => Self::Forced,
            Mark::Cancel => Self::Cancelled,
            Mark::Expire => Self::Expired,
            Mark::ShutDown => Self::ShutDown,
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Examines one operation for the key that is `checked`; for no key in particular if there is none. `None` if it has
    /// ended, or if another thread holds it, which will examine it again.
    #[inline(always)]
    pub(crate) fn examine(
        self: &Arc<Self>,
        address: Address,
        checked: Option<&dyn Checked<Op::Key>>,
    ) -> Option<Examined<Op>> {
        let mut claim = self.engine.claim(address, Mark::Recheck)?;
        let answer = self.ask(&mut claim, checked);
        let for_its_key = checked.is_some() && matches!(answer, Ok(true));
        let mut examined = self.release_or_end(claim, answer);
        if let Examined::Ended(ended) = &mut examined {
            ended.for_its_key = for_its_key;
        }
        Some(examined)
    }

    /// Asks a held operation whether it can complete.
    #[inline(always)]
    fn ask(
        &self,
        claim: &mut Claim<'_, Op>,
        checked: Option<&dyn Checked<Op::Key>>,
    ) -> Result<bool, UserPanic> {
        let _examining = Examining::enter(claim.examinee(), Why::Check);
        #[cfg(debug_assertions)]
        let _call = InProgress::begin::<Op, Op::Key>(&self.engine.name);
        self.engine.guarded(|| {
            claim.held.with(|parked| {
                let Parked { op, keys, .. } = parked;
                match checked {
                    Some(checked) => op.try_complete_for(Cause::of_key(&Asked { checked, keys })),
                    None => op.try_complete_for(Cause::OTHER),
                }
            })
        })
    }

    /// Asks it for a reason that names no key: another thread has left a mark, or the deadline has passed.
    #[cold]
    #[inline(never)]
    pub(crate) fn ask_for(
        &self,
        claim: &mut Claim<'_, Op>,
        cause: Cause<'_, Op::Key>,
        why: Why,
    ) -> Result<bool, UserPanic> {
        let _examining = Examining::enter(claim.examinee(), why);
        #[cfg(debug_assertions)]
        let _call = InProgress::begin::<Op, Op::Key>(&self.engine.name);
        self.engine
            .guarded(|| claim.held.with(|parked| parked.op.try_complete_for(cause)))
    }

    /// Hands a held operation that is being forced its cause, if one was left for it.
    #[cold]
    pub(crate) fn apply_cause(&self, claim: &mut Claim<'_, Op>) {
        if let Some(cause) = self.causes.take(claim.address()) {
            let _examining = Examining::enter(claim.examinee(), Why::Check);
            // A panic is counted, and the operation ends all the same.
            let _ = self
                .engine
                .guarded(|| claim.held.with(|parked| cause(&mut parked.op)));
            let _ = self.engine.guarded(|| drop_user_value(cause));
        }
    }

    /// Acts on the operation's answer: ends the operation, or releases it. If other threads have left marks meanwhile,
    /// acts on these first.
    #[inline(always)]
    pub(crate) fn release_or_end(
        self: &Arc<Self>,
        mut claim: Claim<'_, Op>,
        mut answer: Result<bool, UserPanic>,
    ) -> Examined<Op> {
        let (mut examinations, mut pass) = (0, None);
        let ending = loop {
            match answer {
                Ok(true) => break Ending::Satisfied,
                Ok(false) => {}
                Err(UserPanic) => break Ending::Aborted,
            }
            examinations += 1;
            let address = claim.address();
            let Claim { shard, held } = claim;
            // A holder that other threads keep asking for another examination leaves that to the thread that drives the
            // timer: its own thread has other things to do.
            match held.release(examinations < MAX_EXAMINATIONS) {
                Released::Parked { unexamined } => {
                    if unexamined {
                        self.defer(Deferred::Operation(address), Bound::all());
                    }
                    return Examined::Parked(address);
                }
                Released::Recheck(held) => {
                    claim = Claim { shard, held };
                    answer = self.ask_for(&mut claim, Cause::OTHER, Why::Mark);
                }
                Released::End {
                    held,
                    mark,
                    unexamined,
                } => {
                    claim = Claim { shard, held };
                    // A drain or a shutdown that finds this ending counted waits for its completion as well.
                    if matches!(mark, Mark::Expire | Mark::ShutDown) {
                        pass = Some(self.engine.passes.begin());
                    }
                    if mark == Mark::Force {
                        self.apply_cause(&mut claim);
                    }
                    // The event may have been reported before the ending.
                    let ask = || self.ask_for(&mut claim, Cause::OTHER, Why::Mark);
                    break match unexamined.then(ask) {
                        Some(Ok(true)) => Ending::Satisfied,
                        Some(Err(UserPanic)) => Ending::Aborted,
                        Some(Ok(false)) | None => mark.into(),
                    };
                }
            }
        };
        let ended = self.end_and_reclaim(claim, ending);
        Examined::Ended(Ended { pass, ..ended })
    }

    /// Ends an operation, and takes it off its watch lists and out of the timer.
    #[inline(always)]
    pub(crate) fn end_and_reclaim(&self, claim: Claim<'_, Op>, ending: Ending) -> Ended<Op> {
        let (ended, stale) = self.end(claim, ending, false);
        let Stale {
            taken,
            watcher,
            keys,
        } = stale;
        self.unwatch(&keys, watcher);
        self.engine.free(taken, ending, keys.len());
        self.discard(keys);
        ended
    }

    /// Drops keys that are not watched, or not any more. A destructor that panics costs the operation neither its
    /// completion nor its way back.
    #[inline]
    pub(crate) fn discard(&self, keys: Keys<Op::Key>) {
        if std::mem::needs_drop::<Op::Key>() {
            let _ = self.engine.guarded(|| keys.drop_each());
        }
    }

    /// THE one ending of a parked operation, whatever the reason: from here on no thread finds it, under any key or
    /// handle or in the timer.
    ///
    /// The order matters. First the operation moves out and its references go stale, so that no other thread can end
    /// it; then it leaves the watch lists, so that a thread that finds its ending counted finds no watch of it; last the
    /// slot and the timer are freed, and the ending is counted. The caller does the second and third, now or (in a storm
    /// of expiries, where the ending is counted first) later.
    #[inline(always)]
    pub(crate) fn end(
        &self,
        claim: Claim<'_, Op>,
        ending: Ending,
        missed_check: bool,
    ) -> (Ended<Op>, Stale<Op::Key>) {
        let watcher = claim.address();
        let wanted = self
            .engine
            .observe(|observer| observer.wants_deadline(ending));
        let deadline = wanted.then(|| self.engine.deadline(watcher)).flatten();
        let (Parked { op, keys, span }, taken) = self.engine.take(claim);
        let watches = keys.len();
        let end = End {
            ending,
            missed_check,
            deadline,
        };
        self.engine.observe(|observer| {
            observer.ended(span, end, watches, || self.engine.clock.now());
        });
        let ended = Ended::new(op, ending);
        let stale = Stale {
            taken,
            watcher,
            keys,
        };
        (ended, stale)
    }

    /// Takes an operation that has ended off the lists of its keys.
    #[inline(always)]
    fn unwatch(&self, keys: &Keys<Op::Key>, watcher: Address) {
        self.for_each_watch(
            keys,
            #[inline(always)]
            |target, turn| self.watch.remove(target, turn, watcher),
        );
    }

    /// Takes several operations off the lists of their keys, list by list.
    pub(crate) fn unwatch_all(&self, batch: &[Stale<Op::Key>]) {
        if let [stale] = batch {
            return self.unwatch(&stale.keys, stale.watcher);
        }
        let watches = batch.iter().map(|stale| stale.keys.len()).sum();
        let mut sweep = Sweep::of(&self.watch, watches);
        for stale in batch {
            self.for_each_watch(&stale.keys, |target, turn| {
                sweep.add(target, turn, stale.watcher);
            });
        }
        sweep.sort();
        while !sweep.is_done() {
            // `Eq` of a key may panic.
            let _ = self.engine.guarded(|| sweep.step());
        }
    }

    /// Calls `each` for every watch. If `Hash` or `Eq` of a key panics, its list keeps a dead entry, and the others
    /// follow.
    #[inline(always)]
    fn for_each_watch<'k>(
        &self,
        keys: &'k Keys<Op::Key>,
        mut each: impl FnMut(Target<&'k Op::Key>, Turn<'k>),
    ) {
        let mut next = 0;
        while next < keys.len() {
            let _ = self.engine.guarded(|| {
                keys.for_each(
                    next,
                    #[inline(always)]
                    |target, turn| {
                        next += 1;
                        each(target, turn);
                    },
                );
            });
        }
    }

    /// Gives an ended operation to the caller: no user code runs for it.
    #[inline]
    pub(crate) fn give_back(&self, ended: Ended<Op>) -> Op {
        self.engine.free_place();
        ended.left
    }
}
