//! The trampoline: what user code causes while the library calls it runs after that call has returned, not inside it.
//!
//! User code that the library calls may call the library again. If a completion caused in there ran on the spot, a
//! chain of operations that complete one another would recurse as deep as the chain is long, and a completion could
//! run in the middle of another operation's `try_complete`. So calls that are caused by inner calls wait in a queue of
//! the thread, and the outermost call runs them before it returns.
//!
//! Completions, and destructors of what has ended, come before *nested checks*: those that an operation's
//! `try_complete` makes. (`examining` knows which `try_complete` a thread is in.)

use crate::callbacks::panics::Panics;
use crate::sync::SLICE;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// A call that waits for the end of the outermost call.
pub(crate) type WaitingCall = Box<dyn FnOnce()>;

/// What waits for the end of the outermost call.
struct Waiting {
    calls: VecDeque<WaitingCall>,
    /// They run when no call waits.
    checks: VecDeque<WaitingCall>,
    /// What is known of the checks, by purgatory, until none waits.
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
        // (Outside the models this local is never destroyed: a call on a thread that is ending nests as ever.)
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

    /// Whether calls wait for the end of this one.
    #[inline(always)]
    pub(crate) fn has_waiting(&self) -> bool {
        self.outermost && SOMETHING_WAITS.try_with(Cell::get).unwrap_or(false)
    }

    /// Runs the calls that wait for the end of this one, then ends it, and returns their panics: for a caller that has a
    /// value to return all the same.
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

/// The thread is outside the library.
#[inline]
fn leave() {
    // The local may be destroyed already.
    let _ = ACTIVE.try_with(|active| active.set(false));
}

#[cold]
fn leave_after_waiting() {
    let panics = run_waiting();
    leave();
    panics.resume();
}

/// Runs `call` when the outermost call of this thread, which is in progress, is about to return; or now, if the thread
/// is just ending and its locals are destroyed, the queue with them.
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
/// For code on top of a [`Timer`](crate::Timer) or a [`Purgatory`](crate::Purgatory) that wakes, completes or destroys
/// what may cause the next of its kind: a chain of these then needs no stack, however long it is. What waits runs in the
/// order of the calls. If one panics, the others still run, and the panic goes on from the outermost call (or is counted
/// there, where that has a result to return).
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

/// Runs `call` as [`run_unnested`] does, on what `of` refers to: if the call has to wait, on a clone of that. So a call
/// that runs now, as most do, counts no reference.
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

/// Runs all that waits. If a call panics, the others still run; returns the panics.
#[cold]
fn run_waiting() -> Panics {
    let mut panics = Panics::default();
    let run_next = || {
        run_one() || {
            // What is known of the checks is forgotten; with it go keys, whose destructors may add calls.
            let known = WAITING.try_with(|waiting| std::mem::take(&mut waiting.borrow_mut().known));
            known.is_ok_and(|known| !known.is_empty())
        }
    };
    while panics.catch(run_next).unwrap_or(true) {}
    SOMETHING_WAITS.with(|something| something.set(false));
    // The memory of a long chain is not kept.
    let _ = WAITING.try_with(|waiting| {
        let waiting = &mut *waiting.borrow_mut();
        [&mut waiting.calls, &mut waiting.checks].map(|queue| queue.shrink_to(SLICE))
    });
    panics
}

/// Runs one call that waits, or else one nested check. `false` if none waits. (Nothing waits if the queues are gone
/// because the thread is ending.)
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

/// What is known of the nested checks that wait on this thread: that which `is_wanted`, or what `new` makes. `None` if
/// the thread is just ending and has no queue for checks any more.
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

/// Runs `check` when the outermost call is about to return, and no other call waits. The queue is there: it
/// has just [told](known_of_nested_checks) what it knows.
pub(crate) fn queue_check(check: WaitingCall) {
    WAITING.with(|waiting| waiting.borrow_mut().checks.push_back(check));
}

/// Drops a value whose destructor may be the user's: now or, if this thread is inside another such destructor, when the
/// outermost call is about to return. So where a destructor ends another operation, the destructors of that one run
/// after it, not inside it. The caller is inside a call of the library.
#[inline]
pub(crate) fn drop_user_value<T: 'static>(value: T) {
    if std::mem::needs_drop::<T>() {
        in_turn(move || drop(value));
    }
}

/// [Drops](drop_user_value) several values, one after the other: of two destructors that panic together the process
/// would die. The first panic goes on when all are dropped.
pub(crate) fn drop_user_values<T: 'static>(values: impl IntoIterator<Item = T>) {
    let mut panics = Panics::default();
    for value in values {
        panics.catch(|| drop_user_value(value));
    }
    panics.resume();
}

/// Several values whose destructors may be the user's, which are [dropped](drop_user_values) one after the other.
pub(crate) struct UserValues<C: Default + IntoIterator<Item: 'static>>(pub(crate) C);

impl<C: Default + IntoIterator<Item: 'static>> Drop for UserValues<C> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<C::Item>() {
            let _trampoline = Trampoline::enter();
            drop_user_values(std::mem::take(&mut self.0));
        }
    }
}

/// Runs `call`, which destroys something of the user's: when and why, see [`drop_user_value`].
pub(crate) fn in_turn(call: impl FnOnce() + 'static) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            // The local may be destroyed already.
            let _ = IN_DESTRUCTOR.try_with(|inside| inside.set(false));
        }
    }
    let nested = IN_DESTRUCTOR.try_with(|inside| inside.replace(true));
    if nested.unwrap_or(false) {
        return run_later(Box::new(move || {
            // The destructor that it has waited for is over. Or it lies below on the stack, because the queue is gone
            // with the thread. Then this one nests.
            drop(Reset);
            in_turn(call);
        }));
    }
    let _reset = Reset;
    call();
}

/// A park that is made inside another call of the library.
pub(crate) struct NestedPark(());

impl NestedPark {
    /// At most this many parks are nested: each takes stack.
    const MAX: u32 = 8;

    /// `None` if too many are nested already.
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
