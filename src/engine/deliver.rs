//! On which thread the user's code runs for a payload that has ended.

use super::handler::{EndedPayload, Handler};
use crate::callbacks::trampoline::{Trampoline, run_later};
use crate::cell::address::Address;
use crate::stats::{Ending, Statistic};
use crate::sync::{Arc, Ordering, fence};
use crate::threads::dispatch::{Dispatch, Job};
use scopeguard::guard;
use std::mem::ManuallyDrop;

/// Where the user's code runs for payloads that did not expire. For expired payloads, the builder's [`Dispatch`]
/// decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunOn {
    /// On the thread that ended the payload.
    Caller,
    /// Where the builder's dispatch says, as for expired payloads.
    Dispatch,
}

/// Collects payloads that have ended, and delivers them when it is dropped, so that none of them is lost if other code
/// panics first, for instance a key's `Hash`.
pub(crate) struct Outbox<'a, H: Handler> {
    handler: &'a Arc<H>,
    trampoline: &'a Trampoline,
    run_on: RunOn,
    /// The destructor of the outbox empties this field, so nothing is left to drop.
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

    /// Adds a payload to the payloads collected before. Not inlined, so that the first payload stays in registers.
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

    /// Called for the last payload that a call ends. If this is the only payload of the call, and its user code belongs
    /// on this thread, runs that code now. Otherwise pushes the payload. A panic of the user's code is passed on.
    #[inline(always)]
    pub(crate) fn complete_or_push(&mut self, last: EndedPayload<H::Value>) {
        let is_only = matches!(*self.ended, Collected::None);
        if is_only && runs_here(self.handler, self.trampoline, &last, self.run_on) {
            complete_in_guard(&**self.handler, last);
        } else {
            self.push(last);
        }
    }

    /// If exactly one payload was collected, and its user code belongs on this thread, runs that code now. A panic of
    /// the user's code is passed on.
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

    /// [Hands over](Handler::hand_over) the payload that was pushed last. Called after each push, before other user
    /// code runs.
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

    /// Returns the collected payloads. None of them is delivered.
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

/// Runs the user's code for one payload: now, at the end of the outermost call, or where the builder's dispatch says.
/// Called with no lock held.
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

/// [Hands over](Handler::hand_over) a payload. Called before other user code runs. Returns whether the payload is still
/// awaited.
#[inline(always)]
pub(super) fn hand_over<H: Handler>(handler: &H, ended: &mut EndedPayload<H::Value>) -> bool {
    handler.hand_over(&mut ended.value, ended.ending)
}

/// [Delivers](deliver) several payloads. Payloads that other threads complete are passed on first, so that they do not
/// wait for the completions on this thread. A payload that nothing awaits any more is completed on this thread, so that
/// its destructors do not wait for slow completions of other payloads.
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
        // All payloads are completed on this thread, so there is nothing to sort.
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
            // If the executor panics, the unwinding drops the job, and the drop runs the job.
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

/// Runs the user's code for one payload, and then frees the payload's permit, even if the user's code panics. The panic
/// is passed on. Only this function calls [`Handler::complete`].
#[inline(always)]
fn complete_in_guard<H: Handler>(handler: &H, ended: EndedPayload<H::Value>) {
    // Take the payload apart, so that its parts stay in registers. A closure that borrows one part of a payload would
    // force the whole payload to memory.
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

/// Completes payloads when it is dropped, on any thread. So the payloads are completed even if an executor drops the
/// job without running it.
struct Delivery<H: Handler> {
    handler: Arc<H>,
    ended: Vec<EndedPayload<H::Value>>,
    /// Whether the user's executor runs the job. It may do so inside the call that hands the job over.
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
        // If the executor runs the job inside the call that hands it over, the completions wait for the end of the
        // outermost call, because completions must not nest.
        if self.by_executor && Trampoline::in_progress() {
            let later = Self {
                handler: self.handler.clone(),
                ended,
                by_executor: false,
            };
            return run_later(Box::new(move || drop(later)));
        }
        // The thread may be the user's. Enter the library, so that calls that a completion causes run after it, not
        // inside it.
        let trampoline = Trampoline::enter();
        let engine = self.handler.engine();
        for ended in ended {
            complete(&*self.handler, ended);
            // ORDERING: Release pairs with the Acquire fence in `Stats::of`: a thread that reads this delivery there
            // sees the effects of the completion.
            fence(Ordering::Release);
            engine.count(Statistic::Delivered, 1);
        }
        // Pass on no panic: the thread may be the user's, and a job never panics.
        engine.leave(trampoline);
    }
}
