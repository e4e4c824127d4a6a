//! G12, G14, G16, G22: code of the caller's that a call takes along: a hasher, a key that panics in the middle of a
//! check, an iterator. `calls.rs` has a key that panics in any call.

use super::calls::{FRAGILE, OTHER, SOON};
use crate::chains::scene::{inside, once_checked, park};
use crate::support::keys::{
    Act, Acting, Fragile, Hook, fragile, with_fuse_after, with_one_panic_after,
};
use crate::support::{Op, Probe, manual, on_a_stack_of, refusal};
use request_purgatory::{CheckBound, Completion, Purgatory, threads::Reaper};
use std::cell::Cell;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

/// A hasher that knows one integer gets nothing else, in checks that wait as well.
#[test]
fn g12_a_hasher_of_one_integer_is_given_no_more() {
    #[derive(Default)]
    struct Itself(Option<u64>);
    impl Hasher for Itself {
        fn write(&mut self, _: &[u8]) {
            panic!("only a u64 is hashed");
        }
        fn write_u64(&mut self, number: u64) {
            assert_eq!(self.0.replace(number), None, "one integer");
        }
        fn finish(&self) -> u64 {
            self.0.expect("one integer")
        }
    }
    let builder = Purgatory::<Op>::builder("g12").reaper(Reaper::Manual);
    let builder = builder.hasher(BuildHasherDefault::<Itself>::default());
    let purgatory = builder.build().expect("no threads to refuse");
    let (probe, weak) = (Probe::new(), purgatory.downgrade());
    let ready = probe.clone();
    let op = Op::new(SOON).when(move || {
        if let Some(purgatory) = weak.upgrade() {
            purgatory.check_and_complete(&1);
            purgatory.check_later(2);
        }
        ready.is_ready()
    });
    let parked = purgatory.try_complete_else_watch(op, [1, 2]);
    let handle = parked.expect("there is room").into_handle();
    purgatory.check_later(1);
    assert!(!handle.expect("it cannot complete yet").check());
    probe.satisfy();
    purgatory.advance();
    let stats = purgatory.stats();
    assert_eq!((stats.completed, stats.panicked), (1, 0));
}

/// A key panics while operations are taken off their lists, one alone or several together, be it once or each time: the
/// other keys of these operations keep no dead watch.
#[test]
fn g12_a_key_that_panics_while_operations_are_reclaimed_keeps_no_other() {
    /// What panics, whether it does for good, the other keys, and how many operations there are.
    type Row = (Hook, bool, &'static [u32], usize);
    const ROWS: [Row; 7] = [
        (Hook::Eq, false, &[OTHER], 3),
        (Hook::Hash, false, &[OTHER], 3),
        (Hook::Hash, true, &[OTHER], 1),
        (Hook::Hash, true, &[OTHER], 3),
        (Hook::Hash, true, &[3, OTHER], 3),
        (Hook::Hash, true, &[3, 4, OTHER], 1),
        (Hook::Hash, true, &[3, 4, OTHER], 3),
    ];
    let rows = ROWS.iter().flat_map(|row| [(row, true), (row, false)]);
    for (&(hook, for_good, others, operations), by_deadline) in rows {
        for calls in 0..8 {
            let (purgatory, clock) = manual::<Fragile>(|builder| builder);
            let parks = (0..operations).map(|_| {
                let keys = [&[FRAGILE], others].concat().into_iter().map(fragile);
                park(&purgatory, Op::new(SOON), keys)
            });
            let handles = parks.collect::<Vec<_>>();
            clock.advance(SOON);
            let cancels = || handles.iter().filter(|it| it.cancel().is_some()).count();
            let expire = || match by_deadline {
                true => purgatory.advance(),
                false => cancels(),
            };
            let expired = match for_good {
                true => Some(with_fuse_after(calls, FRAGILE, hook, expire)),
                false => with_one_panic_after(calls, FRAGILE, hook, expire),
            };
            let what = format!("{hook:?}, {calls} before, {others:?}");
            let all = |expired: thread::Result<usize>| expired.is_ok_and(|all| all == operations);
            assert!(expired.is_none_or(all), "{what}");
            let left = others.iter().map(|key| purgatory.watchers(&fragile(*key)));
            assert_eq!(left.max(), Some(0), "{what}");
        }
    }
}

/// A key whose destructor panics while `LIT` is set, even if the thread is unwinding already.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Bomb(u64);

thread_local!(static LIT: Cell<bool> = const { Cell::new(false) });

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!LIT.get(), "a key");
    }
}

/// Whether this call panics while every destructor of a key does.
fn panics_while_lit(call: impl FnOnce()) -> bool {
    LIT.set(true);
    let made = catch_unwind(AssertUnwindSafe(call));
    LIT.set(false);
    made.is_err()
}

/// The list of a resolved key goes, with two copies of the key: at the drop of the last `ResolvedKey`, whose panic is
/// its owner's, or at the end of the last operation.
#[test]
fn g12_a_key_that_panics_when_its_resolved_list_goes_aborts_nothing() {
    let (purgatory, _clock) = manual::<Bomb>(|builder| builder);
    let resolved = [(); 2].map(|()| purgatory.resolve(Bomb(1)));
    for key in resolved {
        panics_while_lit(|| drop(key));
    }
    assert_eq!(purgatory.watched_keys(), 0);
    let resolved = purgatory.resolve(Bomb(1));
    let handle = park(&purgatory, Op::new(SOON), [resolved.watch()]);
    drop(resolved);
    let cancels = || assert!(handle.cancel().is_some());
    assert!(!panics_while_lit(cancels), "it is counted");
    assert_eq!(purgatory.watched_keys(), 0);
}

/// A snapshot in a storm drops its copies of the keys, and those of each operation that has ended.
#[test]
fn g12_a_key_that_panics_in_a_snapshot_aborts_nothing() {
    const STORM: usize = 100;
    let (purgatory, clock) = manual::<Bomb>(|builder| builder);
    let (weak, (tell, found)) = (purgatory.downgrade(), channel());
    let mut snapshot = Some(move |_: Completion| {
        let all = weak.upgrade().expect("it drives the timer");
        assert!(!panics_while_lit(|| _ = tell.send(all.snapshot().len())));
    });
    for _ in 0..STORM {
        let op = match snapshot.take() {
            Some(snapshot) => Op::new(SOON).then(snapshot),
            None => Op::new(SOON),
        };
        park(&purgatory, op, [Bomb(2)]);
    }
    clock.advance(SOON);
    assert_eq!(purgatory.advance(), STORM);
    assert_eq!(found.try_recv(), Ok(0));
}

/// A completion panics, and so does the key of its operation, while that panic unwinds.
#[test]
fn g12_a_completion_and_a_key_of_its_operation_panic() {
    let (purgatory, _clock) = manual::<Bomb>(|builder| builder);
    let mut examinations = 0;
    let op = Op::new(SOON).when(move || {
        examinations += 1;
        examinations > 2
    });
    let op = op.then(|_| {
        LIT.set(true);
        resume_unwind(Box::new("a completion"));
    });
    park(&purgatory, op, [Bomb(3)]);
    let key = Bomb(3);
    let completed = catch_unwind(AssertUnwindSafe(|| purgatory.check_and_complete(&key)));
    LIT.set(false);
    assert_eq!(completed.ok(), Some(1));
    assert_eq!(purgatory.stats().panicked, 2);
}

/// One examination checks a key in two purgatories. Both nested checks are forgotten at the end of the call, and the
/// first panic goes to the caller.
#[test]
fn g12_a_key_of_nested_checks_in_two_purgatories_aborts_nothing() {
    let [(purgatory, _clock), (other, _)] = [(); 2].map(|()| manual::<Bomb>(|builder| builder));
    for all in [&purgatory, &other] {
        park(all, Op::new(SOON), [Bomb(4)]);
    }
    let (weak, all) = (purgatory.downgrade(), other.clone());
    let checks = once_checked(SOON, move || {
        let purgatory = weak.upgrade().expect("it is checked");
        purgatory.check_and_complete(&Bomb(4));
        all.check_and_complete(&Bomb(4));
        LIT.set(true);
    });
    park(&purgatory, checks, [Bomb(5)]);
    let key = Bomb(5);
    let checked = catch_unwind(AssertUnwindSafe(|| purgatory.check_and_complete(&key)));
    LIT.set(false);
    assert!(checked.is_err());
}

/// Of a purgatory that is shut down, checks wait whose keys defer more checks when they are dropped.
#[test]
fn g14_keys_that_defer_checks_when_they_are_dropped_at_the_shutdown_do_not_nest() {
    let (purgatory, _clock) = manual::<Acting>(|builder| builder);
    for number in 0..20_000 {
        let defer: Act = Arc::new(inside(&purgatory, |all| all.check_later(Acting(1, None))));
        purgatory.check_later(Acting(number, Some(defer)));
    }
    let shared = purgatory.clone();
    on_a_stack_of(256, move || shared.shutdown());
    assert_eq!(purgatory.stats().panicked, 0);
}

/// A key of the operation panics when its watch is removed. The completion counts for the bound all the same.
#[test]
fn g22_a_completion_whose_key_panics_uses_up_the_bound() {
    let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
    let probes = [(); 2].map(|()| Probe::new());
    for probe in &probes {
        park(&purgatory, probe.op(SOON), [OTHER, FRAGILE].map(fragile));
        probe.satisfy();
    }
    let (key, one) = (fragile(OTHER), CheckBound::at_most(1));
    let check = || purgatory.check_and_complete_with(&key, one);
    let checked = with_one_panic_after(0, FRAGILE, Hook::Hash, check);
    assert!(matches!(checked, Some(Ok(1))), "it is contained");
    assert!(probes[0].ending().is_some() && probes[1].ending().is_none());
}

/// What was examined before counts, in a check of several keys.
#[test]
fn g16_a_check_that_ends_in_a_panic_counts_what_it_examined() {
    let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
    for _ in 0..3 {
        drop(purgatory.try_complete_else_watch(Op::new(SOON), [fragile(OTHER)]));
    }
    let keys = [OTHER, FRAGILE].map(fragile);
    let check = || purgatory.check_and_complete_all(&keys);
    let checked = with_one_panic_after(0, FRAGILE, Hook::Hash, check);
    assert!(checked.is_some_and(|it| it.is_err()), "it unwinds");
    assert_eq!(purgatory.stats().checks, 3);
}

/// An iterator of the caller's that has ended is not asked again, whether it has named a key twice or not.
#[test]
fn g12_a_park_asks_an_iterator_no_more_that_has_ended() {
    let (purgatory, _clock) = manual::<u32>(|builder| builder);
    for (count, keys) in (1..7).flat_map(|count| [(count, 1), (count, 9)]) {
        let mut keys = (0..count).map(|number| Some(number % keys)).chain([None]);
        let keys = std::iter::from_fn(|| keys.next().expect("it has ended"));
        let parked = purgatory.try_complete_else_watch(Op::new(SOON), keys);
        assert_eq!(refusal(&parked), None, "{count} keys");
    }
}
