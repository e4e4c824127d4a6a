//! G14: chains through destructors. What an operation or a key that is dropped at an end causes does not nest in that
//! end, however long the chain is.

use crate::support::keys::{Act, Acting, Census, by_number};
use crate::support::{
    NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, lock, manual, on_a_stack_of, within,
};
use request_purgatory::purgatory::WeakRef;
use request_purgatory::{Purgatory, time::ManualClock};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LINKS: u64 = 100_000;
const TICK: Duration = Duration::from_millis(1);

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

/// How the destructor of a key ends the next operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Force,
    Cancel,
    Check,
    Expiry,
}

/// Whose copy of a key it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    Operation,
    /// The purgatory's own.
    Map,
    /// A name for a call.
    Argument,
}

struct Chain {
    purgatory: Purgatory<Op<Link>>,
    clock: ManualClock,
    by: By,
    armed: Copied,
    ended: Tally,
}

/// A key whose destructor ends the next operation.
struct Link(u64, Copied, Arc<Mutex<Option<Arc<Chain>>>>);

impl Clone for Link {
    fn clone(&self) -> Self {
        let copied = match self.1 {
            Copied::Operation => Copied::Map,
            other => other,
        };
        Self(self.0, copied, self.2.clone())
    }
}

by_number!(Link);

impl Drop for Link {
    fn drop(&mut self) {
        let chain = lock(&self.2).clone();
        if let Some(chain) = chain.filter(|chain| chain.armed == self.1) {
            chain.ended.add();
            self.end_next(&chain);
        }
    }
}

impl Link {
    fn end_next(&self, chain: &Chain) {
        let next = self.0.wrapping_add(1);
        let next = Self(next, Copied::Argument, self.2.clone());
        match chain.by {
            By::Force => _ = chain.purgatory.force_complete_for_key(&next),
            By::Cancel => drop(chain.purgatory.cancel_for_key(&next)),
            By::Check => _ = chain.purgatory.check_and_complete(&next),
            By::Expiry => {
                chain.clock.advance(TICK);
                chain.purgatory.advance();
            }
        }
    }
}

/// Of keys that are watched plainly, or were resolved.
fn chain_of_keys(by: By, armed: Copied, resolved: bool) {
    let (purgatory, clock) = manual::<Link>(|builder| builder);
    let chain = Arc::new(Chain {
        purgatory,
        clock,
        by,
        armed,
        ended: Tally::default(),
    });
    let place = Arc::<Mutex<_>>::default();
    let purgatory = &chain.purgatory;
    for link in 0..LINKS {
        let key = Link(link, Copied::Operation, place.clone());
        let mut examinations = 0;
        let op = Op::new(TICK * (link as u32 + 1)).when(move || {
            examinations += 1;
            by == By::Check && examinations == 3
        });
        let parked = match resolved {
            true => purgatory.try_complete_else_watch(op, [purgatory.resolve(key).watch()]),
            false => purgatory.try_complete_else_watch(op, [key]),
        };
        assert!(parked.is_ok_and(|parked| parked.is_parked()));
    }
    *lock(&place) = Some(chain.clone());
    let (first, same) = (chain.clone(), place.clone());
    on_a_stack_of(64, move || {
        Link(u64::MAX, Copied::Argument, same).end_next(&first)
    });
    *lock(&place) = None;
    assert_eq!(chain.ended.count(), LINKS, "{by:?} {armed:?}");
    assert!(purgatory.is_empty() && purgatory.stats().panicked == 0);
}

#[test]
fn g14_a_chain_of_keys_whose_destructors_end_the_next_operation_needs_no_stack() {
    for by in [By::Force, By::Cancel, By::Check, By::Expiry] {
        for armed in [Copied::Operation, Copied::Map] {
            within(PATIENCE * 2, move || chain_of_keys(by, armed, false));
        }
    }
    within(PATIENCE * 2, || chain_of_keys(By::Force, Copied::Map, true));
}

/// Each key is merged with a check that waits already, and its destructor defers a check of the next one.
#[test]
fn g14_a_chain_of_merged_checks_needs_no_stack() {
    type Slot = Arc<Mutex<Option<Act>>>;

    on_a_stack_of(256, || {
        let (purgatory, _clock) = manual::<Acting>(|builder| builder);
        (0..LINKS).for_each(|number| purgatory.check_later(Acting(number, None)));
        let (slot, defers, made) = (Slot::default(), purgatory.clone(), Tally::new());
        let (next, number) = (slot.clone(), made.clone());
        let act: Act = Arc::new(move || {
            if number.count() < LINKS {
                let key = Acting(number.count(), lock(&next).clone());
                number.add();
                defers.check_later(key);
            }
        });
        *lock(&slot) = Some(act.clone());
        purgatory.check_later(Acting(0, Some(act)));
        *lock(&slot) = None;
        assert_eq!(made.count(), LINKS);
    });
}

/// Its copies act when they are dropped.
struct Echo(u64, bool, Act);

by_number!(Echo);

impl Clone for Echo {
    fn clone(&self) -> Self {
        Self(self.0, true, self.2.clone())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        if self.1 {
            (self.2)();
        }
    }
}

/// A nested check that is made again while it waits is merged, and its copy of the key is dropped.
#[test]
fn g14_a_chain_of_merged_nested_checks_needs_no_stack() {
    on_a_stack_of(256, || {
        let (purgatory, _clock) = manual::<Echo>(|builder| builder);
        let (weak, made) = (purgatory.downgrade(), Tally::new());
        let check: Act = Arc::new(move || {
            let plain = Echo(1, false, Arc::new(|| ()));
            weak.upgrade().map(|it| it.check_and_complete(&plain));
        });
        let (next, number) = (check.clone(), made.clone());
        let act: Act = Arc::new(move || {
            if number.count() < LINKS {
                number.add();
                next();
            }
        });
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            check();
            // This one is merged.
            check();
            false
        });
        assert!(
            purgatory
                .try_complete_else_watch(op, [Echo(1, false, act)])
                .is_ok()
        );
        assert_eq!((made.count(), purgatory.stats().panicked), (LINKS, 0));
    });
}

/// A call that completes nothing, and drops a copy of a key, or a change: the completion of what the destructor ends
/// waits for the end of the call, and nothing is left of it then.
#[test]
fn g14_what_a_destructor_ends_has_gone_when_the_call_returns() {
    /// There is an operation on key 1.
    type Call = fn(&Purgatory<Op<Echo>>, &Act);
    const CALLS: [(&str, Call); 5] = [
        ("check of the keys that", |all, _| {
            _ = all.check_where(|_| false)
        }),
        ("snapshot", |all, _| drop(all.snapshot())),
        ("resolve", |all, act| {
            drop(all.resolve(Echo(1, false, act.clone())))
        }),
        ("release", |all, act| {
            drop(all.resolve(Echo(2, false, act.clone())))
        }),
        ("drop of a change that was left", |_, act| {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let (weak, act, mut examinations) = (purgatory.downgrade(), act.clone(), 0);
            let op = Op::new(Duration::MAX).when(move || {
                examinations += 1;
                if examinations == 3 {
                    let (inside, act) = (weak.upgrade().expect("it is checked"), act.clone());
                    let acts = OnDrop(move || act());
                    inside.force_complete_for_key_with(&1, move |_| _ = &acts);
                }
                examinations == 3
            });
            assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
            assert_eq!(purgatory.check_and_complete(&1), 1);
            purgatory.advance();
        }),
    ];
    for (name, call) in CALLS {
        within(PATIENCE, move || {
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
            let (purgatory, _clock) = manual::<Echo>(|builder| builder);
            let key = Echo(1, false, act.clone());
            assert!(
                purgatory
                    .try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [key])
                    .is_ok()
            );
            assert_eq!((probe.ending(), census.count()), (None, 2));
            call(&purgatory, &act);
            assert!(probe.ending().is_some(), "{name}");
            assert!(
                !nested.load(Ordering::SeqCst),
                "{name}: it nests in the destructor"
            );
            assert_eq!((census.count(), other.stats().panicked), (0, 0), "{name}");
        });
    }
}
