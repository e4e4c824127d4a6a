//! G14: chains through destructors. What an operation or a key that is dropped at an end causes does not nest in that
//! end, however long the chain is.

use crate::support::keys::{Act, Census};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, manual, on_a_stack_of, within};
use request_purgatory::Purgatory;
use request_purgatory::purgatory::WeakRef;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LINKS: u64 = 100_000;

/// Calls this when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The third examination panics; what `on_drop` does, the destructor of the operation does.
fn aborted(on_drop: impl FnMut() + Send + 'static) -> Op {
    let (on_drop, mut examinations) = (OnDrop(on_drop), 0);
    Op::new(NEVER_IN_A_TEST).when(move || {
        let _owned = &on_drop;
        examinations += 1;
        if examinations == 3 {
            // Without the hook, which would print it.
            resume_unwind(Box::new("intended"));
        }
        false
    })
}

#[test]
fn g14_a_chain_of_aborted_operations_whose_destructors_check_the_next_needs_no_stack() {
    within(PATIENCE * 2, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let dropped = Tally::new();
        for link in 0..LINKS {
            let (weak, dropped) = (purgatory.downgrade(), dropped.clone());
            let op = aborted(move || {
                dropped.add();
                if let Some(purgatory) = weak.upgrade() {
                    purgatory.check_and_complete(&(link + 1));
                }
            });
            drop(purgatory.try_complete_else_watch(op, [link]));
        }
        let first = purgatory.clone();
        on_a_stack_of(64, move || _ = first.check_and_complete(&0));
        assert_eq!((dropped.count(), purgatory.stats().parked), (LINKS, 0));
        assert_eq!(purgatory.stats().aborted, LINKS);
    });
}

#[test]
fn g14_a_chain_of_aborted_operations_whose_destructors_park_the_next_needs_no_stack() {
    fn link(weak: &WeakRef<Purgatory<Op>>, number: u64, dropped: &Arc<Tally>) -> Op {
        let (weak, dropped) = (weak.clone(), dropped.clone());
        aborted(move || {
            dropped.add();
            if let (Some(purgatory), true) = (weak.upgrade(), number < LINKS) {
                let next = link(&weak, number + 1, &dropped);
                drop(purgatory.try_complete_else_watch(next, [number]));
                purgatory.check_and_complete(&number);
            }
        })
    }
    within(PATIENCE * 2, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let dropped = Tally::new();
        let first = link(&purgatory.downgrade(), 1, &dropped);
        drop(purgatory.try_complete_else_watch(first, [0]));
        let same = purgatory.clone();
        // A park takes most of it, in a build without optimisation.
        on_a_stack_of(128, move || _ = same.check_and_complete(&0));
        assert_eq!((dropped.count(), purgatory.stats().parked), (LINKS, 0));
    });
}

/// A change that was left for an operation which ended without it: the completion of what its destructor ends waits for
/// the end of the call that drops the change, and nothing is left of it then.
#[test]
fn g14_what_the_destructor_of_a_change_ends_has_gone_when_the_call_returns() {
    within(PATIENCE, || {
        let (other, _clock) = manual(|builder| builder);
        let (census, probe) = (Census::default(), Probe::new());
        let parked = other.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [census.key(1)]);
        let handle = parked.ok().and_then(|parked| parked.into_handle());
        let handle = handle.expect("it cannot complete yet");
        let (ending, nested) = (probe.clone(), Arc::new(AtomicBool::new(false)));
        let nests = nested.clone();
        let act: Act = Arc::new(move || {
            if handle.force_complete() {
                nests.store(ending.ending().is_some(), Ordering::SeqCst);
            }
        });
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let (weak, mut examinations) = (purgatory.downgrade(), 0);
        let op = Op::new(Duration::MAX).when(move || {
            examinations += 1;
            if examinations == 3 {
                let inside = weak.upgrade().expect("it is checked");
                let act = act.clone();
                let acts = OnDrop(move || act());
                inside.force_complete_for_key_with(&1, move |_| _ = &acts);
            }
            examinations == 3
        });
        assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
        assert_eq!(purgatory.check_and_complete(&1), 1);
        purgatory.advance();
        assert!(probe.ending().is_some());
        assert!(!nested.load(Ordering::SeqCst), "it nests in the destructor");
        assert_eq!((census.count(), other.stats().panicked), (0, 0));
    });
}
