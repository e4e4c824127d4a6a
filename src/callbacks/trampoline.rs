//! The trampoline: calls caused inside a callback run after that callback has returned, not inside it.
//!
//! User code that the library calls may call the library again. Such an inner call may cause a completion. If the
//! completion ran on the spot, a chain of operations that complete one another would recurse as deep as the chain is
//! long, and a completion could run in the middle of another operation's `try_complete`. So what an inner call causes
//! waits in a queue of the thread, and the thread's *outermost call* of the library (which is inside no callback) runs
//! the queue before it returns.
//!
//! There are two queues. The first has completions, and destructors of ended values. The second has *nested checks*:
//! checks made by a `try_complete`. It runs only while the first is empty. The module `examining` knows which
//! `try_complete` a thread is inside.

use crate::callbacks::panics::Panics;
use crate::sync::SLICE;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// A queued call, which runs when the outermost call of its thread is about to return.
pub(crate) type WaitingCall = Box<dyn FnOnce()>;

/// The queues of one thread.
struct Waiting {
    /// Completions, and destructors of ended values.
    calls: VecDeque<WaitingCall>,
    /// Nested checks. Run only while `calls` is empty.
    checks: VecDeque<WaitingCall>,
    /// For each purgatory, an entry that lists its nested checks on this thread: those that wait in `checks`, and those
    /// that the thread has made already. Cleared when no call and no check waits.
    known: Vec<Rc<dyn Any>>,
}

impl Waiting {
    const NOTHING: Self = Self {
        calls: VecDeque::new(),
        checks: VecDeque::new(),
        known: Vec::new(),
    };
}

crate::sync::thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static SOMETHING_WAITS: Cell<bool> = const { Cell::new(false) };
    static WAITING: RefCell<Waiting> = const { RefCell::new(Waiting::NOTHING) };
    static IN_NESTED_CHECK: Cell<bool> = const { Cell::new(false) };
    static IN_DESTRUCTOR: Cell<bool> = const { Cell::new(false) };
    static NESTED_PARKS: Cell<u32> = const { Cell::new(0) };
    static DRIVES: Cell<bool> = const { Cell::new(false) };
}

/// A call of the library in progress on this thread. The destructor ends the call: it runs the queued calls if the call
/// is the outermost one.
pub(crate) struct Trampoline {
    outermost: bool,
}

impl Trampoline {
    /// Begins a call of the library that may run user code.
    #[inline]
    pub(crate) fn enter() -> Self {
        // `ACTIVE` has no destructor, so it is never destroyed (except in the loom models). Inner calls are therefore
        // recognised on an ending thread as well.
        let nested = ACTIVE.try_with(|active| active.replace(true));
        Self {
            outermost: !nested.unwrap_or(false),
        }
    }

    /// Whether the calling thread is inside a call of the library.
    pub(crate) fn in_progress() -> bool {
        ACTIVE.try_with(Cell::get).unwrap_or(false)
    }

    /// Whether this is the outermost call: no other call of the library is below it on the stack.
    #[inline(always)]
    pub(crate) fn is_outermost(&self) -> bool {
        self.outermost
    }

    /// Runs `call` outside every callback: at once if `self` is the outermost call of the library on this thread,
    /// otherwise when the outermost call is about to return.
    #[inline]
    pub(crate) fn run(&self, call: impl FnOnce() + 'static) {
        match self.outermost {
            true => call(),
            false => run_later(Box::new(call)),
        }
    }

    /// Whether queued calls wait for the end of this call. Always `false` if this call is not the outermost one.
    #[inline(always)]
    pub(crate) fn has_waiting(&self) -> bool {
        self.outermost && SOMETHING_WAITS.try_with(Cell::get).unwrap_or(false)
    }

    /// Runs the calls that wait for the end of this call, and ends this call. Returns the first of their panics instead
    /// of resuming it, for a caller that has a value to return.
    pub(crate) fn leave(self) -> Panics {
        match self.has_waiting() {
            true => run_waiting(),
            false => Panics::default(),
        }
    }
}

impl Drop for Trampoline {
    #[inline(always)]
    fn drop(&mut self) {
        if self.has_waiting() {
            leave_after_waiting();
        } else if self.outermost {
            leave();
        }
    }
}

/// Notes that the thread is outside the library.
#[inline]
fn leave() {
    // Ignore the error: it says that the thread is ending and has destroyed this local value.
    let _ = ACTIVE.try_with(|active| active.set(false));
}

#[cold]
fn leave_after_waiting() {
    let panics = run_waiting();
    leave();
    panics.resume();
}

/// Queues `call`, to run when the outermost call in progress on this thread is about to return. If the thread is ending
/// and has destroyed its queue, runs `call` at once.
pub(crate) fn run_later(call: WaitingCall) {
    let mut call = Some(call);
    let queue = |waiting: &RefCell<Waiting>| waiting.borrow_mut().calls.extend(call.take());
    if WAITING.try_with(queue).is_ok() {
        SOMETHING_WAITS.with(|something| something.set(true));
    } else if let Some(call) = call {
        call();
    }
}

/// Runs `call` on this thread, outside every callback of the library: at once, or, if the thread is inside a call of
/// the library, when the outermost of these calls is about to return.
///
/// For code on top of a [`Timer`](crate::Timer) or a [`Purgatory`](crate::Purgatory) in which a wake-up, completion or
/// destructor may cause another one of its kind. With `run_unnested`, a chain of any length needs no deep stack. Queued
/// calls run in the order in which they were queued. If one of them panics, the others still run. Then the outermost
/// call passes the first panic on. But if the outermost call parks, drives a timer, shuts down or returns an operation,
/// it returns its result, and the panic is only counted, in [`Stats::panicked`](crate::purgatory::Stats::panicked).
///
/// ```
/// use request_purgatory::threads::run_unnested;
///
/// /// Its destructor ends the next one.
/// struct Link(#[expect(dead_code)] Option<Box<Link>>);
///
/// impl Drop for Link {
///     fn drop(&mut self) {
///         let next = self.0.take();
///         run_unnested(move || drop(next));
///     }
/// }
///
/// let chain = (0..1_000_000).fold(Link(None), |chain, _| Link(Some(Box::new(chain))));
/// drop(chain); // on any stack
/// ```
pub fn run_unnested(call: impl FnOnce() + 'static) {
    Trampoline::enter().run(call);
}

/// Runs `call` with `of`, at once or later, as [`run_unnested`] does. If `call` runs at once, as most calls do, it gets
/// `of` itself. If it has to wait, it gets a clone of `of`. So if `T` is an `Arc`, the reference count changes only for
/// a call that waits.
pub fn run_unnested_on<T: Clone + 'static>(of: &T, call: impl FnOnce(&T) + 'static) {
    let trampoline = Trampoline::enter();
    match trampoline.is_outermost() {
        true => call(of),
        false => {
            let of = of.clone();
            run_later(Box::new(move || call(&of)));
        }
    }
}

/// Runs all queued calls and nested checks. If one panics, the others still run. Returns the first panic.
#[cold]
fn run_waiting() -> Panics {
    let mut panics = Panics::default();
    let run_next = || {
        run_one() || {
            // No call waits any more, so clear `known`, which lists the nested checks of this thread. It contains keys,
            // which are user values, and their destructors may queue more calls. So if `known` was not empty, the loop
            // looks again.
            let known = WAITING.try_with(|waiting| std::mem::take(&mut waiting.borrow_mut().known));
            let known = known.unwrap_or_default();
            let had_any = !known.is_empty();
            // Two purgatories may have copies of one key. If its destructor panics, the second panic must not come while
            // the first unwinds.
            Panics::for_each(known, drop);
            had_any
        }
    };
    while panics.catch(run_next).unwrap_or(true) {}
    SOMETHING_WAITS.with(|something| something.set(false));
    // Shrink the queues: many waiting calls may have made them large.
    let _ = WAITING.try_with(|waiting| {
        let waiting = &mut *waiting.borrow_mut();
        [&mut waiting.calls, &mut waiting.checks].map(|queue| queue.shrink_to(SLICE))
    });
    panics
}

/// Runs one queued call or, if there is none, one nested check (a check that a `try_complete` has made). `false` if
/// both queues are empty, or if they are destroyed because the thread is ending.
fn run_one() -> bool {
    let next = WAITING.try_with(|waiting| {
        let mut waiting = waiting.borrow_mut();
        let call = waiting.calls.pop_front();
        let is_check = call.is_none() && !waiting.checks.is_empty();
        IN_NESTED_CHECK.with(|inside| inside.set(is_check));
        call.or_else(|| waiting.checks.pop_front())
    });
    let next = next.ok().flatten();
    next.map(|call| call()).is_some()
}

/// Whether the calling thread runs a nested check that was queued.
pub(crate) fn is_in_nested_check() -> bool {
    IN_NESTED_CHECK.with(Cell::get)
}

/// The nested checks (checks made inside a `try_complete`) of one purgatory on this thread. Each purgatory has a list
/// of its own, a value of a type `T` that depends on the type of the purgatory. Returns the list that `is_wanted`
/// accepts. If there is none, makes one by `new`, and stores it. `None` if the thread is ending and has destroyed its
/// queues.
pub(crate) fn known_of_nested_checks<T: 'static>(
    is_wanted: impl Fn(&T) -> bool,
    new: impl FnOnce() -> T,
) -> Option<Rc<T>> {
    let found = WAITING.try_with(|waiting| {
        let known = &mut waiting.borrow_mut().known;
        let mut of_type = known.iter().filter_map(|it| it.clone().downcast().ok());
        of_type.find(|it| is_wanted(it)).unwrap_or_else(|| {
            let fresh = Rc::new(new());
            known.push(fresh.clone());
            fresh
        })
    });
    SOMETHING_WAITS.with(|something| something.set(true));
    found.ok()
}

/// Queues a nested check. It runs when the thread's outermost call is about to return, and no completion or destructor
/// is queued any more. Call [`known_of_nested_checks`] first: it sets the flag by which the outermost call learns that
/// something is queued. If it returns `Some`, the queue exists. If the thread is ending and has destroyed the queue,
/// this function panics.
pub(crate) fn queue_check(check: WaitingCall) {
    WAITING.with(|waiting| waiting.borrow_mut().checks.push_back(check));
}

/// Drops a value whose destructor may be user code: at once, or, if this thread is inside another such destructor, when
/// the outermost call is about to return. So destructors that end other operations run one after another, not nested.
/// The caller must be inside a call of the library, which runs what is queued.
#[inline]
pub(crate) fn drop_user_value<T: 'static>(value: T) {
    if std::mem::needs_drop::<T>() {
        in_turn(move || drop(value));
    }
}

/// A value that is [dropped as a user's value](drop_user_value), inside or outside a call of the library. A panic of
/// its destructor is passed on, unless the thread is unwinding already.
pub(crate) struct UserValue<T: 'static>(pub(crate) Option<T>);

impl<T: 'static> Drop for UserValue<T> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<T>() && self.0.is_some() {
            let _trampoline = Trampoline::enter();
            Panics::for_each(self.0.take(), drop_user_value);
        }
    }
}

/// Runs `call`, which drops a user's value, at once. But if this thread is already inside a `call` of this function,
/// queues the new `call`: it runs when the thread's outermost call of the library is about to return. So these drops do
/// not nest.
pub(crate) fn in_turn(call: impl FnOnce() + 'static) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            // Ignore the error: it says that the thread is ending and has destroyed this local value.
            let _ = IN_DESTRUCTOR.try_with(|inside| inside.set(false));
        }
    }
    let nested = IN_DESTRUCTOR.try_with(|inside| inside.replace(true));
    if nested.unwrap_or(false) {
        return run_later(Box::new(move || {
            // A destructor was running when this closure was queued. Usually it has returned by now, and
            // `IN_DESTRUCTOR` is false. But on an ending thread without a queue, `run_later` runs this closure at once,
            // inside the destructor. Then `IN_DESTRUCTOR` is still true, and `in_turn` would call `run_later` again,
            // without end. So set `IN_DESTRUCTOR` to false first.
            drop(Reset);
            in_turn(call);
        }));
    }
    let _reset = Reset;
    call();
}

/// While this value exists, the calling thread drives a timer: it is inside a pass (a round of expiry), runs the calls
/// that have waited for the end of the pass, or clears away what the pass has left.
pub(crate) struct Driving {
    /// Whether the thread drove a timer already when this value was made.
    outer: bool,
}

impl Driving {
    pub(crate) fn enter() -> Self {
        Self {
            outer: DRIVES.with(|drives| drives.replace(true)),
        }
    }

    /// Whether the calling thread drives a timer.
    pub(crate) fn is_in_progress() -> bool {
        DRIVES.with(Cell::get)
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVES.with(|drives| drives.set(self.outer));
    }
}

/// A park that is made inside another call of the library.
pub(crate) struct NestedPark(());

impl NestedPark {
    /// At most this many parks are nested, because each of them takes stack.
    const MAX: u32 = 8;

    /// Called when a park begins inside another call of the library. Counts the park as nested until the result is
    /// dropped. `None` if this thread is inside [`MAX`](Self::MAX) nested parks already: the caller then rejects this
    /// one.
    pub(crate) fn enter() -> Option<Self> {
        NESTED_PARKS.with(|nested| {
            let depth = nested.get();
            (depth < Self::MAX).then(|| {
                nested.set(depth + 1);
                Self(())
            })
        })
    }
}

impl Drop for NestedPark {
    fn drop(&mut self) {
        NESTED_PARKS.with(|nested| nested.set(nested.get() - 1));
    }
}
