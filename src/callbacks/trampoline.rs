//! The trampoline: calls caused inside a callback run after that callback has returned, not inside it.
//!
//! User code that the library calls may call the library again. If a completion caused by such an inner call ran on the
//! spot, a chain of operations that complete one another would recurse as deep as the chain is long, and a completion
//! could run in the middle of another operation's `try_complete`. So the calls that inner calls cause wait in a queue
//! of the thread, and the outermost call runs them before it returns.
//!
//! There are two queues. Completions and destructors of ended values run first. *Nested checks*, made by a
//! `try_complete`, run when no completion or destructor waits. The module `examining` tells which `try_complete` a
//! thread is inside.

use crate::callbacks::panics::Panics;
use crate::sync::SLICE;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// A call that waits for the end of the outermost call.
pub(crate) type WaitingCall = Box<dyn FnOnce()>;

/// The calls that wait for the end of the outermost call.
struct Waiting {
    calls: VecDeque<WaitingCall>,
    /// Run only when `calls` is empty.
    checks: VecDeque<WaitingCall>,
    /// Bookkeeping of the nested checks, one entry for each purgatory, cleared when no check waits.
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
}

/// A call of the library in progress on this thread.
pub(crate) struct Trampoline {
    outermost: bool,
}

impl Trampoline {
    /// Begins a call that may run user code.
    #[inline]
    pub(crate) fn enter() -> Self {
        // Outside the loom models this thread-local value is never destroyed. So nesting is tracked on an ending thread
        // as well.
        let nested = ACTIVE.try_with(|active| active.replace(true));
        Self {
            outermost: !nested.unwrap_or(false),
        }
    }

    /// Whether the calling thread is inside a call of the library.
    pub(crate) fn in_progress() -> bool {
        ACTIVE.try_with(Cell::get).unwrap_or(false)
    }

    /// Whether no other call of the library is below this one on the stack.
    #[inline(always)]
    pub(crate) fn is_outermost(&self) -> bool {
        self.outermost
    }

    /// Runs `call` outside every callback: now, or when the outermost call is about to return.
    pub(crate) fn run(&self, call: WaitingCall) {
        match self.outermost {
            true => call(),
            false => run_later(call),
        }
    }

    /// Whether calls wait for the end of this call.
    #[inline(always)]
    pub(crate) fn has_waiting(&self) -> bool {
        self.outermost && SOMETHING_WAITS.try_with(Cell::get).unwrap_or(false)
    }

    /// Runs the calls that wait for the end of this call, and ends this call. Returns their panics instead of resuming
    /// the first one, for a caller that has a value to return.
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

/// Marks the thread as outside the library.
#[inline]
fn leave() {
    // Ignore the error: the thread is ending, and the local may be destroyed.
    let _ = ACTIVE.try_with(|active| active.set(false));
}

#[cold]
fn leave_after_waiting() {
    let panics = run_waiting();
    leave();
    panics.resume();
}

/// Runs `call` when the outermost call in progress on this thread is about to return. Runs `call` at once if the thread
/// is ending and its queue is destroyed.
pub(crate) fn run_later(call: WaitingCall) {
    let mut call = Some(call);
    let queue = |waiting: &RefCell<Waiting>| waiting.borrow_mut().calls.extend(call.take());
    if WAITING.try_with(queue).is_ok() {
        SOMETHING_WAITS.with(|something| something.set(true));
    } else if let Some(call) = call {
        call();
    }
}

/// Runs `call` on this thread, outside every callback of the library: now, or when the outermost call of the library in
/// progress on this thread is about to return.
///
/// For code on top of a [`Timer`](crate::Timer) or a [`Purgatory`](crate::Purgatory) in which a wake-up, completion or
/// destructor may cause another one of its kind. With `run_unnested`, a chain of any length needs no deep stack. Queued
/// calls run in the order in which they were made. If one of them panics, the others still run. Then the outermost call
/// passes the first panic on, or, if it has a result to return, only counts it.
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
    let trampoline = Trampoline::enter();
    match trampoline.is_outermost() {
        true => call(),
        false => run_later(Box::new(call)),
    }
}

/// Runs `call` as [`run_unnested`] does. Most calls run now, and get `of` itself; a call that has to wait gets a clone
/// of `of`. So if `T` is an `Arc`, the reference count changes only for a call that waits.
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

/// Runs all waiting calls and nested checks. If one panics, the others still run. Returns the panics.
#[cold]
fn run_waiting() -> Panics {
    let mut panics = Panics::default();
    let run_next = || {
        run_one() || {
            // Clear the bookkeeping of the checks. Dropping its keys may run destructors that queue more calls.
            let known = WAITING.try_with(|waiting| std::mem::take(&mut waiting.borrow_mut().known));
            known.is_ok_and(|known| !known.is_empty())
        }
    };
    while panics.catch(run_next).unwrap_or(true) {}
    SOMETHING_WAITS.with(|something| something.set(false));
    // Release the memory of a long chain.
    let _ = WAITING.try_with(|waiting| {
        let waiting = &mut *waiting.borrow_mut();
        [&mut waiting.calls, &mut waiting.checks].map(|queue| queue.shrink_to(SLICE))
    });
    panics
}

/// Runs one waiting call or, if no call waits, one nested check. `false` if the queues are empty, or if they are
/// destroyed because the thread is ending.
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

/// Whether the calling thread runs a nested check.
pub(crate) fn is_in_nested_check() -> bool {
    IN_NESTED_CHECK.with(Cell::get)
}

/// Finds the bookkeeping of this thread's nested checks that `is_wanted` accepts. If there is none, makes and stores
/// one by `new`. `None` if the thread is ending and its queue is destroyed.
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

/// Queues `check` to run when the outermost call is about to return and no other call waits. Call
/// [`known_of_nested_checks`] first: its `Some` says that the queue exists.
pub(crate) fn queue_check(check: WaitingCall) {
    WAITING.with(|waiting| waiting.borrow_mut().checks.push_back(check));
}

/// Drops a value whose destructor may be user code. If this thread is inside another such destructor, the value is
/// dropped when the outermost call is about to return, otherwise at once. So destructors that end other operations run
/// one after another, not nested. The caller is inside a call of the library.
#[inline]
pub(crate) fn drop_user_value<T: 'static>(value: T) {
    if std::mem::needs_drop::<T>() {
        in_turn(move || drop(value));
    }
}

/// [Drops](drop_user_value) several values one after another: two destructors that panic together would abort the
/// process. The first panic is resumed when all values are dropped.
pub(crate) fn drop_user_values<T: 'static>(values: impl IntoIterator<Item = T>) {
    let mut panics = Panics::default();
    for value in values {
        panics.catch(|| drop_user_value(value));
    }
    panics.resume();
}

/// Several values whose destructors may be user code. The values are [dropped](drop_user_values) one after another.
pub(crate) struct UserValues<C: Default + IntoIterator<Item: 'static>>(pub(crate) C);

impl<C: Default + IntoIterator<Item: 'static>> Drop for UserValues<C> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<C::Item>() {
            let _trampoline = Trampoline::enter();
            drop_user_values(std::mem::take(&mut self.0));
        }
    }
}

/// Runs `call`, which destroys a user's value, at once or later, by the rule of [`drop_user_value`].
pub(crate) fn in_turn(call: impl FnOnce() + 'static) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            // Ignore the error: the thread is ending, and the local may be destroyed.
            let _ = IN_DESTRUCTOR.try_with(|inside| inside.set(false));
        }
    }
    let nested = IN_DESTRUCTOR.try_with(|inside| inside.replace(true));
    if nested.unwrap_or(false) {
        return run_later(Box::new(move || {
            // Usually the destructor that this call waited for has returned. But if the thread is ending and its queue
            // is destroyed, this call runs inside that destructor.
            drop(Reset);
            in_turn(call);
        }));
    }
    let _reset = Reset;
    call();
}

/// A park made inside another call of the library.
pub(crate) struct NestedPark(());

impl NestedPark {
    /// The limit of nested parks, because each of them takes stack.
    const MAX: u32 = 8;

    /// `None` if the maximum number of parks is nested already.
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
