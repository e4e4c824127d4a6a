//! Runs the user's code for payloads (operations or timer values) that have ended, each on the right thread.

use super::handler::{EndedPayload, Handler};
use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::{Driving, Trampoline, run_later};
use crate::cell::address::Address;
use crate::stats::{Ending, Statistic};
use crate::sync::{Arc, Ordering, fence};
use crate::threads::dispatch::{Dispatch, Job};
use scopeguard::guard;
use std::mem::ManuallyDrop;

/// Collects payloads that have ended during a call. Its drop delivers them: runs the user's code for them, or passes
/// them to the thread that does. So no payload is lost if other code of the call panics first, for instance a key's
/// `Hash`.
pub(crate) struct Outbox<'a, H: Handler> {
    handler: &'a Arc<H>,
    trampoline: &'a Trampoline,
    /// `ManuallyDrop`, because the destructor of the outbox takes all payloads out of this field: nothing is left to
    /// drop.
    ended: ManuallyDrop<Collected<EndedPayload<H::Value>>>,
}

/// The payloads that one call has ended. Most calls end one payload or none, and then need no vector.
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

    /// Adds a second or later payload. Not inlined, so that a first payload stays in registers.
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
    pub(crate) fn new(handler: &'a Arc<H>, trampoline: &'a Trampoline) -> Self {
        Self {
            handler,
            trampoline,
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

    /// Takes `last`, the last payload that a call ends. If the call has ended no other payload, and the user's code for
    /// `last` belongs on this thread, runs that code now. Otherwise collects `last`. A panic of the user's code is
    /// passed on.
    #[inline(always)]
    pub(crate) fn complete_or_push(&mut self, last: EndedPayload<H::Value>) {
        let is_only = matches!(*self.ended, Collected::None);
        if is_only && runs_here(self.handler, self.trampoline, &last) {
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
        if runs_here(self.handler, self.trampoline, only) {
            if let Collected::Only(only) = self.ended.take() {
                complete_in_guard(&**self.handler, only);
            }
        }
    }

    /// [Hands over](Handler::hand_over) the payload that was pushed last: moves values that a future awaits to where
    /// the future finds them. Called after each push, before other user code runs, because that code may drop the
    /// future.
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

    /// Returns the collected payloads to the caller. The user's code does not run for them.
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
            Collected::Only(only) => deliver(self.handler, self.trampoline, only),
            Collected::More(several) => {
                deliver_all(self.handler, self.trampoline, several);
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

/// Delivers one payload that has ended: runs the user's code for it now, or at the end of the outermost call of the
/// library on this thread, or on the thread that the builder's [`Dispatch`] names. The caller holds no lock.
#[inline(always)]
pub(crate) fn deliver<H: Handler>(
    handler: &Arc<H>,
    trampoline: &Trampoline,
    ended: EndedPayload<H::Value>,
) {
    if runs_here(handler, trampoline, &ended) {
        complete(&**handler, ended);
    } else {
        deliver_one(handler, trampoline, ended);
    }
}

/// Whether the user's code for this payload runs on this thread, at once: this thread is inside no other call of the
/// library, and no other thread is to run the code.
#[inline(always)]
fn runs_here<H: Handler>(
    handler: &Arc<H>,
    trampoline: &Trampoline,
    ended: &EndedPayload<H::Value>,
) -> bool {
    let has_expired = ended.ending == Ending::Expired;
    trampoline.is_outermost()
        && (!has_expired || matches!(handler.engine().dispatch, Dispatch::Inline))
}

/// [Delivers](deliver) one payload later or on another thread. Not inlined, so that a payload that completes at once
/// stays in registers.
#[cold]
#[inline(never)]
fn deliver_one<H: Handler>(
    handler: &Arc<H>,
    trampoline: &Trampoline,
    ended: EndedPayload<H::Value>,
) {
    deliver_all(handler, trampoline, vec![ended]);
}

/// [Hands over](Handler::hand_over) a payload: if a future awaits it, moves its result into the state that payload and
/// future share. Called before other user code runs. Returns `false` if the future was dropped before.
#[inline(always)]
pub(super) fn hand_over<H: Handler>(handler: &H, ended: &mut EndedPayload<H::Value>) -> bool {
    handler.hand_over(&mut ended.value, ended.ending)
}

/// [Delivers](deliver) several payloads. Some payloads are to be completed by another thread. They are handed to that
/// thread first, so that they do not wait for the completions on this thread. A payload whose future was dropped is
/// always completed on this thread: in the queue of another thread, its destructors would wait behind slow completions
/// of other payloads.
pub(crate) fn deliver_all<H: Handler>(
    handler: &Arc<H>,
    trampoline: &Trampoline,
    mut all: Vec<EndedPayload<H::Value>>,
) {
    let engine = handler.engine();
    // A thread that drives the timer runs user code: a `try_complete` at its deadline, for example, or the destructor
    // of a key that is reclaimed. That code may call the library again, and such an inner call may end other
    // operations. Their completions must not run here, because they would delay the timer.
    //
    // The trampoline tells an inner call from the pass (one round of expiry), which calls this function too. The
    // trampoline of an inner call is not the outermost one, because the inner call is made inside the pass, or inside
    // the reclaiming after it. The trampoline of the pass is the outermost one, unless the pass runs in a callback.
    let is_caused_by_driving = Driving::is_in_progress() && !trampoline.is_outermost();
    let run_here = |ended: EndedPayload<H::Value>| match trampoline.is_outermost() {
        true => complete(&**handler, ended),
        false => run_later(job(handler, vec![ended], false)),
    };
    let mut elsewhere = Vec::new();
    let here = match &engine.dispatch {
        // `Inline` completes all payloads on this thread, so none of them goes to `elsewhere`.
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
                let must_not_run_here = is_caused_by_driving || ended.ending == Ending::Expired;
                match is_awaited && must_not_run_here {
                    true => elsewhere.push(ended),
                    false => here.push(ended),
                }
            }
            here
        }
    };
    match &engine.dispatch {
        // Make one job for each payload, so that the executor can run the jobs in parallel.
        Dispatch::Executor(executor) => elsewhere.into_iter().for_each(|ended| {
            let job = job(handler, vec![ended], true);
            // If the executor panics, the unwinding drops the job, and the drop of a job runs it.
            let _ = engine.guarded(|| executor(job));
        }),
        // Make one job of all payloads: the completion thread runs them one after another anyway.
        Dispatch::OwnThread if !elsewhere.is_empty() => {
            let job = job(handler, elsewhere, false);
            // The completion thread takes no job after the shutdown, and the system may refuse to start the thread.
            // This thread then runs the job itself.
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

/// Runs the user's code for one payload. A panic of that code is caught and counted, and affects no other payload.
#[inline(always)]
fn complete<H: Handler>(handler: &H, ended: EndedPayload<H::Value>) {
    let _ = handler
        .engine()
        .guarded(move || complete_in_guard(handler, ended));
}

/// Runs the user's code for one payload, and then frees the payload's permit (its place under `max_parked` and
/// `max_weight`), even if the user's code panics. The panic is passed on to the caller. Only this function calls
/// [`Handler::complete`].
#[inline(always)]
fn complete_in_guard<H: Handler>(handler: &H, ended: EndedPayload<H::Value>) {
    // Take the struct apart first, so that its fields stay in registers. A closure that borrows one field of a struct
    // would force the whole struct to memory.
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

/// The contents of a job: payloads that are completed when this value is dropped, on any thread. So they are completed
/// even if an executor drops the job without running it.
struct Delivery<H: Handler> {
    /// `None` only while this value is dropped.
    handler: Option<Arc<H>>,
    ended: Vec<EndedPayload<H::Value>>,
    /// Whether the user's executor runs the job. The executor may run it inside the call of the library that hands the
    /// job over.
    by_executor: bool,
}

/// Makes a job that completes `ended`. Counts these payloads as handed over: until they are completed, their
/// completions are pending in the statistics.
fn job<H: Handler>(
    handler: &Arc<H>,
    mut ended: Vec<EndedPayload<H::Value>>,
    by_executor: bool,
) -> Job {
    handler.engine().count(Statistic::HandedOver, ended.len());
    ended.iter_mut().for_each(|ended| ended.underway = None);
    let delivery = Delivery {
        handler: Some(handler.clone()),
        ended,
        by_executor,
    };
    Box::new(move || drop(delivery))
}

impl<H: Handler> Drop for Delivery<H> {
    fn drop(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        let Some(handler) = self.handler.take() else {
            return;
        };
        // The executor may run the job at once, inside the call of the library that hands the job over. Then the
        // completions wait until the outermost call on this thread returns, because completions must not nest.
        if self.by_executor && Trampoline::in_progress() {
            let later = Self {
                handler: Some(handler),
                ended,
                by_executor: false,
            };
            return run_later(Box::new(move || drop(later)));
        }
        // Enter a call of the library, because this thread may be inside none: it may be a thread of the user's
        // executor. If a completion then causes another completion, the second one waits in the trampoline's queue (the
        // calls that this thread has put off), and runs after the first, not inside it.
        let trampoline = Trampoline::enter();
        let engine = handler.engine();
        for ended in ended {
            complete(&*handler, ended);
            // ORDERING: Release pairs with the Acquire fence in `Stats::of`. The completion comes before this fence,
            // and the count after it. So a thread that reads the count there sees the effects of the completion.
            fence(Ordering::Release);
            engine.count(Statistic::Delivered, 1);
        }
        // Pass on no panic: this thread may be the user's, and a job must not panic.
        engine.leave(trampoline);
        // This may be the last reference: then destructors of the user's code run, of the callback for example.
        Panics::contain(|| drop(handler));
    }
}
