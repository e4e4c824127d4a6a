//! Checks, and the other things that can be done to the operations on a key or behind a handle.

use super::core::Core;
use super::end::{Examined, Outcome};
use crate::address::Address;
use crate::cell::state::Mark;
use crate::engine::deliver::{Outbox, Ready, Site, deliver};
use crate::engine::home::Rescheduled;
use crate::operation::{DelayedOperation, KeyHasher};
use crate::stats::Ending;
use crate::sync::Arc;
use crate::turn::Turn;
use crate::watch::list::Rank;
use crate::watch::resolved::Resolved;
use crate::watch::{Few, Found};
use std::any::Any;
use std::borrow::Borrow;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// A panic, on its way.
type Panic = Box<dyn Any + Send>;

/// Visits the watchers of a key. `Hash` and `Eq` of that are the user's, and a long list is looked up more than once: a
/// panic on the way comes back, to [go on](pass_on) when everybody whose operation was ended before has been told.
fn visiting(visit: impl FnOnce()) -> Result<(), Panic> {
    catch_unwind(AssertUnwindSafe(visit))
}

fn pass_on(visited: Result<(), Panic>) {
    if let Err(panic) = visited {
        resume_unwind(panic);
    }
}

/// A check in progress.
struct Check<O> {
    turn: Turn,
    completed: usize,
    in_vain: u64,
    outbox: O,
}

impl<O> Check<O> {
    #[inline(always)]
    fn new(outbox: O) -> Self {
        Self {
            turn: Turn::enter(),
            completed: 0,
            in_vain: 0,
            outbox,
        }
    }

    /// Examines one operation, or has its holder do so.
    #[inline(always)]
    fn examine<Op, S>(&mut self, core: &Arc<Core<Op, S>>, address: Address)
    where
        Op: DelayedOperation,
        S: KeyHasher,
        O: Outbox<Outcome<Op>>,
    {
        let Some(mut tenant) = core.engine.begin(address, Mark::Recheck) else {
            return;
        };
        let answer = core.look(&mut tenant);
        match core.settle(tenant, answer, &mut self.outbox) {
            Examined::Ended(Ending::Satisfied) => self.completed += 1,
            Examined::Ended(_) => {}
            Examined::Aborted(op) => core.discard(op),
            Examined::Parked => self.in_vain += 1,
        }
    }

    /// Runs the completions. Returns how many operations were found satisfied.
    #[inline(always)]
    fn conclude<Op, S>(self, core: &Arc<Core<Op, S>>, site: Site) -> usize
    where
        Op: DelayedOperation,
        S: KeyHasher,
        O: Outbox<Outcome<Op>>,
    {
        if self.in_vain > 0 {
            let home = core.engine.my_home();
            home.events.vain_checks.add(self.in_vain);
        }
        deliver(core, &self.turn, self.outbox, site);
        self.completed
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Core<Op, S> {
    /// Checks every operation on `key`; of those that watch it at a rank, only up to `up_to`. Returns how many this
    /// completed.
    #[inline(always)]
    pub(crate) fn check_key<Q>(self: &Arc<Self>, key: &Q, up_to: Rank, site: Site) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut few = Few::default();
        match self.watch.find(key, &mut few) {
            // Most checks find nobody.
            None => 0,
            Some(Found::One(watcher)) => usize::from(self.check_one(watcher, site)),
            Some(found) => self.check_found(key, (found, &few), up_to, site),
        }
    }

    #[inline(never)]
    fn check_found<Q>(
        self: &Arc<Self>,
        key: &Q,
        found: (Found, &Few),
        up_to: Rank,
        site: Site,
    ) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut check = Check::new(Ready::new());
        let visited = visiting(|| {
            self.watch
                .visit(key, found, up_to, |watcher| check.examine(self, watcher));
        });
        let completed = check.conclude(self, site);
        pass_on(visited);
        completed
    }

    /// The same for a resolved key, in whose list `only` was seen.
    #[inline(never)]
    pub(crate) fn check_resolved(
        self: &Arc<Self>,
        list: &Resolved<Op::Key>,
        only: Option<Option<Address>>,
        up_to: Rank,
    ) -> usize {
        if let Some(Some(watcher)) = only {
            return usize::from(self.check_one(watcher, Site::Here));
        }
        let mut check = Check::new(Ready::new());
        list.visit(only, up_to, |watcher| check.examine(self, watcher));
        check.conclude(self, Site::Here)
    }

    /// Checks one operation. Returns whether this completed it.
    #[inline(never)]
    pub(crate) fn check_one(self: &Arc<Self>, address: Address, site: Site) -> bool {
        let mut check = Check::new(None);
        check.examine(self, address);
        check.conclude(self, site) == 1
    }

    /// Completes one operation whether it can or not. Returns whether this call did it.
    pub(crate) fn force_one(self: &Arc<Self>, address: Address) -> bool {
        let turn = Turn::enter();
        let mut ended = None;
        let forced = self.force_into(address, &mut ended);
        deliver(self, &turn, ended, Site::Here);
        forced
    }

    /// The same for every operation on `key`. Returns how many this call did.
    pub(crate) fn force_key<Q>(self: &Arc<Self>, key: &Q) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let turn = Turn::enter();
        let mut ready = Ready::new();
        let mut forced = 0;
        let visited = visiting(|| {
            self.watch.visit_all(key, |watcher| {
                forced += usize::from(self.force_into(watcher, &mut ready));
            });
        });
        deliver(self, &turn, ready, Site::Here);
        drop(turn);
        pass_on(visited);
        forced
    }

    fn force_into(
        self: &Arc<Self>,
        address: Address,
        outbox: &mut impl Outbox<Outcome<Op>>,
    ) -> bool {
        match self.engine.begin(address, Mark::Force) {
            Some(tenant) => {
                self.end_into(tenant, Ending::Forced, outbox);
                true
            }
            None => false,
        }
    }

    /// Takes one operation back without a completion.
    pub(crate) fn cancel_one(&self, address: Address) -> Option<Op> {
        let tenant = self.engine.begin(address, Mark::Cancel)?;
        Some(self.end(tenant, Ending::Cancelled))
    }

    /// The same for every operation on `key`. If that panics, nobody gets back what was taken: it is told so instead.
    pub(crate) fn cancel_key<Q>(self: &Arc<Self>, key: &Q) -> Vec<Op>
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut cancelled = Vec::new();
        let visited = visiting(|| {
            self.watch.visit_all(key, |watcher| {
                cancelled.extend(self.cancel_one(watcher));
            });
        });
        if visited.is_err() {
            let turn = Turn::enter();
            let mut ready = Ready::new();
            for op in cancelled.drain(..) {
                ready.push(Outcome::of(op, Ending::Cancelled));
            }
            deliver(self, &turn, ready, Site::Here);
        }
        pass_on(visited);
        cancelled
    }

    /// Gives every operation on `key` another deadline. Returns how many got it.
    pub(crate) fn reschedule_key<Q>(&self, key: &Q, timeout: Duration) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut rescheduled = std::collections::HashSet::new();
        self.watch.visit_all(key, |watcher| {
            if let Rescheduled::Done(_) = self.engine.reschedule(watcher, timeout) {
                rescheduled.insert(watcher);
            }
        });
        rescheduled.len()
    }
}
