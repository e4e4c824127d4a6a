//! Steps that the tests of G1 and G2 take again and again, and those of `one_ending`.

pub(crate) use crate::chains::scene::park;
use crate::support::{NEVER_IN_A_TEST, Op, Probe, lock};
use request_purgatory::purgatory::Key;
use request_purgatory::{CheckBound, Completion, DelayedOperation, Handle, Purgatory, Watch};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A park examines its operation twice: the third examination is that of the first check.
pub(crate) const FIRST_CHECK: u32 = 3;

pub(crate) const SATISFIED: Option<Completion> = Some(Completion::Satisfied);

/// Parks the operation of a new probe.
pub(crate) fn park_probe<'a, K: Key>(
    purgatory: &Purgatory<Op<K>>,
    watches: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
) -> (Arc<Probe>, Handle<Op<K>>) {
    let probe = Probe::new();
    let handle = park(purgatory, probe.op(NEVER_IN_A_TEST), watches);
    (probe, handle)
}

/// An operation whose hook may call `purgatory`, and is told how many examinations there were, with this one.
pub(crate) fn hooked_op<K: Key>(
    purgatory: &Purgatory<Op<K>>,
    timeout: Duration,
    mut hook: impl FnMut(&Purgatory<Op<K>>, u32) -> bool + Send + 'static,
) -> Op<K> {
    let (weak, mut examinations) = (purgatory.downgrade(), 0);
    Op::new(timeout).when(move || {
        examinations += 1;
        hook(&weak.upgrade().expect("the test has it"), examinations)
    })
}

/// Parks an operation with such a hook, which never expires in a test.
pub(crate) fn park_hook<'a, K: Key>(
    purgatory: &Purgatory<Op<K>>,
    watches: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
    hook: impl FnMut(&Purgatory<Op<K>>, u32) -> bool + Send + 'static,
) -> Handle<Op<K>> {
    let op = hooked_op(purgatory, NEVER_IN_A_TEST, hook);
    park(purgatory, op, watches)
}

/// An operation with such a hook that `probe` watches, and that is told the probe.
pub(crate) fn probed_op(
    purgatory: &Purgatory<Op>,
    probe: &Arc<Probe>,
    timeout: Duration,
    mut hook: impl FnMut(&Purgatory<Op>, &Probe, u32) -> bool + Send + 'static,
) -> Op {
    let (examining, ending) = (probe.clone(), probe.clone());
    let op = hooked_op(purgatory, timeout, move |all, nth| {
        examining.examine(|| hook(all, &examining, nth))
    });
    op.then(move |completion| ending.end(completion))
}

/// The watch at this rank, if there is one.
pub(crate) fn ranked<K>(watch: Watch<'_, K>, rank: Option<u64>) -> Watch<'_, K> {
    match rank {
        Some(rank) => watch.at_rank(rank),
        None => watch,
    }
}

/// All up to this rank.
pub(crate) fn up_to(rank: u64) -> CheckBound {
    CheckBound::all().up_to(rank)
}

/// What was written down since it was last taken.
pub(crate) fn taken<T: Default>(written: &Mutex<T>) -> T {
    std::mem::take(&mut *lock(written))
}

/// How many watches there are, and of how many keys.
pub(crate) fn watches<P: DelayedOperation>(purgatory: &Purgatory<P>) -> (usize, usize) {
    (purgatory.stats().watched, purgatory.watched_keys())
}

pub(crate) fn assert_empty<P: DelayedOperation>(purgatory: &Purgatory<P>) {
    let left = (purgatory.stats().parked, watches(purgatory));
    assert_eq!(left, (0, (0, 0)), "something is left");
}

/// Calls on another thread, and waits for it.
pub(crate) fn elsewhere<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(call).join().expect("no call panics"))
}

/// Calls on `count` threads at once, each with its number, and waits for them.
pub(crate) fn on_threads(count: u64, call: impl Fn(u64) + Sync) {
    thread::scope(|scope| {
        let call = &call;
        (0..count).for_each(|number| _ = scope.spawn(move || call(number)));
    });
}
