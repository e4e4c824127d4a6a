//! On which thread the user's code runs for a payload that has ended.

use super::handler::{EndedPayload, Handler};
use crate::callbacks::trampoline::{Trampoline, run_later};
use crate::cell::address::Address;
use crate::stats::{Ending, Statistic};
use crate::sync::{Arc, Ordering, fence};
use crate::threads::dispatch::{Dispatch, Job};
use scopeguard::guard;
use std::mem::ManuallyDrop;

/// Where the user's code runs for payloads that did not expire. For expired payloads, the builder decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunOn {
    /// On the thread that ended the payload.
    Caller,
    /// Where the builder's dispatch says, as for expired payloads.
    Dispatch,
}

/// Collects payloads that have ended, and delivers them when it is dropped, so that a panic on the way (of a key's
/// `Hash`, for instance) loses none of them.
pub(crate) struct Outbox<'a, H: Handler> {
    handler: &'a Arc<H>,
    trampoline: &'a Trampoline,
    run_on: RunOn,
    /// Empty after the destructor of the outbox.
    ended: ManuallyDrop<Collected<EndedPayload<H::Value>>>,
}

/// The payloads that a call has ended: most calls end one or none.
enum Collected<T> {
    None,
    Only(T),
    More(Vec<T>),
}

impl<T> Collected<T> {
    #[inline]
    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::None)
    }

    /// Adds a payload to those collected before. Not inlined, so that the first payload stays in registers.
    #[inline(never)]
    fn push_another(&mut self, another: T) {
        let mut all = self.take().into_vec();
        all.push(another);
        *self = Self::More(all);
    }

    fn into_vec(self) -> Vec<T> {
        match self {
            Self::None => Vec::new(),
            Self::Only(only) => vec![only],
            Self::More(several) => several,
        }
    }
}

impl<'a, H: Handler> Outbox<'a, H> {
    #[inline(always)]
    pub(crate) fn new(handler: &'a Arc<H>, trampoline: &'a Trampoline, run_on: RunOn) -> Self {
        Self {
            handler,
            trampoline,
            run_on,
            ended: ManuallyDrop::new(Collected::None),
        }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, ended: EndedPayload<H::Value>) {
        match *self.ended {
            Collected::None => self.ended = ManuallyDrop::new(Collected::Only(ended)),
            _ => self.ended.push_another(ended),
        }
    }

    /// Runs the user's code for the last payload of a call now, if it is the only payload and belongs on this thread.
    /// Otherwise pushes it. A panic of the user's code unwinds from here.
    #[inline(always)]
    pub(crate) fn complete_or_push(&mut self, last: EndedPayload<H::Value>) {
        let is_only = matches!(*self.ended, Collected::None);
        if is_only && runs_here(self.handler, self.trampoline, &last, self.run_on) {
            complete_in_guard(&**self.handler, last);
        } else {
            self.push(last);
        }
    }

    /// Delivers the payload, if exactly one was collected. A panic of the user's code unwinds from here.
    #[inline(always)]
    pub(crate) fn deliver_only(&mut self) {
        let Collected::Only(only) = &*self.ended else {
            return;
        };
        if runs_here(self.handler, self.trampoline, only, self.run_on) {
            if let Collected::Only(only) = self.ended.take() {
                complete_in_guard(&**self.handler, only);
            }
        }
    }

    /// Before other code of users' runs, after each push: hands the last one [over](Handler::hand_over).
    #[inline(always)]
    pub(crate) fn hand_over_last(&mut self) {
        let last = match &mut *self.ended {
            Collected::None => None,
            Collected::Only(only) => Some(only),
            Collected::More(several) => several.last_mut(),
        };
        if let Some(last) = last {
            hand_over(&**self.handler, last);
        }
    }

    /// Takes them back: none of them is delivered.
    pub(crate) fn into_all(mut self) -> impl Iterator<Item = EndedPayload<H::Value>> {
        self.ended.take().into_vec().into_iter()
    }
}

impl<H: Handler> Outbox<'_, H> {
    #[cold]
    #[inline(never)]
    fn deliver_collected(&mut self) {
        match self.ended.take() {
            Collected::None => {}
            Collected::Only(only) => deliver(self.handler, self.trampoline, only, self.run_on),
            Collected::More(several) => {
                deliver_all(self.handler, self.trampoline, several, self.run_on);
            }
        }
    }
}

impl<H: Handler> Drop for Outbox<'_, H> {
    #[inline(always)]
    fn drop(&mut self) {
        if !matches!(*self.ended, Collected::None) {
            self.deliver_collected();
        }
    }
}

/// Runs the user's code for one payload on the thread where it belongs. No lock is held.
#[inline(always)]
pub(crate) fn deliver<H: Handler>(
    handler: &Arc<H>,
    trampoline: &Trampoline,
    ended: EndedPayload<H::Value>,
    run_on: RunOn,
) {
    if runs_here(handler, trampoline, &ended, run_on) {
        complete(&**handler, ended);
    } else {
        deliver_one(handler, trampoline, ended, run_on);
    }
}

/// Whether the user's code for this payload runs on this thread, at once.
#[inline(always)]
fn runs_here<H: Handler>(
    handler: &Arc<H>,
    trampoline: &Trampoline,
    ended: &EndedPayload<H::Value>,
    run_on: RunOn,
) -> bool {
    trampoline.is_outermost() && !runs_elsewhere::<H>(handler, ended, run_on)
}

/// [Delivers](deliver) one payload. Not inlined, so that a payload that completes at once stays in registers.
#[cold]
#[inline(never)]
fn deliver_one<H: Handler>(
    handler: &Arc<H>,
    trampoline: &Trampoline,
    ended: EndedPayload<H::Value>,
    run_on: RunOn,
) {
    deliver_all(handler, trampoline, vec![ended], run_on);
}

/// [Hands](Handler::hand_over) a payload over before other code of users' runs.
#[inline(always)]
pub(super) fn hand_over<H: Handler>(handler: &H, ended: &mut EndedPayload<H::Value>) -> bool {
    handler.hand_over(&mut ended.value, ended.ending)
}

/// [Delivers](deliver) several. Those that other threads complete come first: they need not wait for what runs here.
/// What nothing awaits any more runs here: its destructors are not to wait for slow completions of others.
pub(crate) fn deliver_all<H: Handler>(
    handler: &Arc<H>,
    trampoline: &Trampoline,
    mut all: Vec<EndedPayload<H::Value>>,
    run_on: RunOn,
) {
    let engine = handler.engine();
    let run_here = |ended: EndedPayload<H::Value>| match trampoline.is_outermost() {
        true => complete(&**handler, ended),
        false => trampoline.run(job(handler, vec![ended], false)),
    };
    let mut elsewhere = Vec::new();
    let here = match &engine.dispatch {
        // Nothing is sorted where all of it runs here.
        Dispatch::Inline => {
            for ended in &mut all {
                hand_over(&**handler, ended);
            }
            all
        }
        Dispatch::OwnThread | Dispatch::Executor(_) => {
            let mut here = Vec::new();
            for mut ended in all {
                let is_awaited = hand_over(&**handler, &mut ended);
                match is_awaited && runs_elsewhere::<H>(handler, &ended, run_on) {
                    true => elsewhere.push(ended),
                    false => here.push(ended),
                }
            }
            here
        }
    };
    match &engine.dispatch {
        // One job for each payload, so that the jobs can run in parallel.
        Dispatch::Executor(executor) => elsewhere.into_iter().for_each(|ended| {
            let job = job(handler, vec![ended], true);
            // If the executor panics, the unwinding drops the job, and the drop runs it.
            let _ = engine.guarded(|| executor(job));
        }),
        // One job for all payloads: the thread runs them one after another anyway.
        Dispatch::OwnThread if !elsewhere.is_empty() => {
            let job = job(handler, elsewhere, false);
            // The thread takes no job after the shutdown, and the system may refuse the thread.
            let untaken = match &engine.threads.completions {
                Some(thread) => thread.submit(&engine.name, job).err(),
                None => Some(job),
            };
            if let Some(job) = untaken {
                trampoline.run(job);
            }
        }
        Dispatch::OwnThread | Dispatch::Inline => {}
    }
    here.into_iter().for_each(run_here);
}

fn runs_elsewhere<H: Handler>(handler: &H, ended: &EndedPayload<H::Value>, run_on: RunOn) -> bool {
    (run_on == RunOn::Dispatch || ended.ending == Ending::Expired)
        && !matches!(handler.engine().dispatch, Dispatch::Inline)
}

/// Runs the user's code for one payload. A panic is counted, and affects this payload only.
#[inline(always)]
fn complete<H: Handler>(handler: &H, ended: EndedPayload<H::Value>) {
    let _ = handler
        .engine()
        .guarded(move || complete_in_guard(handler, ended));
}

/// Runs the user's code for one payload, by the only call of [`Handler::complete`]. Then frees its permit, even after a
/// panic, which unwinds from here.
#[inline(always)]
fn complete_in_guard<H: Handler>(handler: &H, ended: EndedPayload<H::Value>) {
    // Take the payload apart, so that it stays in registers: a closure that borrows a part would force the whole to
    // memory.
    let EndedPayload {
        value,
        ending,
        permit,
        underway,
        ..
    } = ended;
    let _underway = underway;
    let _permit = guard(permit, |permit| {
        if permit != Address::NONE {
            handler.engine().permits.free(permit);
        }
    });
    handler.complete(value, ending);
}

/// Runs the user's code when it is dropped, on whatever thread: an executor that loses the job cannot lose the ending.
struct Delivery<H: Handler> {
    handler: Arc<H>,
    ended: Vec<EndedPayload<H::Value>>,
    /// Whether an executor of the user's runs the job, perhaps at once.
    by_executor: bool,
}

/// Makes a job that delivers payloads, and counts them as handed over.
fn job<H: Handler>(
    handler: &Arc<H>,
    mut ended: Vec<EndedPayload<H::Value>>,
    by_executor: bool,
) -> Job {
    handler.engine().count(Statistic::HandedOver, ended.len());
    ended.iter_mut().for_each(|ended| ended.underway = None);
    let delivery = Delivery {
        handler: handler.clone(),
        ended,
        by_executor,
    };
    Box::new(move || drop(delivery))
}

impl<H: Handler> Drop for Delivery<H> {
    fn drop(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        // Inside the call that hands the job over, the completions must not nest.
        if self.by_executor && Trampoline::in_progress() {
            let later = Self {
                handler: self.handler.clone(),
                ended,
                by_executor: false,
            };
            return run_later(Box::new(move || drop(later)));
        }
        // The thread may be the user's: enter the library, so that calls caused by a completion do not nest in it.
        let trampoline = Trampoline::enter();
        let engine = self.handler.engine();
        for ended in ended {
            complete(&*self.handler, ended);
            // ORDERING: Release, see `Stats::of`.
            fence(Ordering::Release);
            engine.count(Statistic::Delivered, 1);
        }
        // A job never panics, because the thread may be the user's.
        engine.leave(trampoline);
    }
}
