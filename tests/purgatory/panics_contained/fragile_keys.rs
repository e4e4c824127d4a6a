//! G12, G16: code of the caller's that a call takes along: a hasher, a key that panics in the middle of a check, an
//! iterator. `calls.rs` has a key that panics in any call.

use super::calls::{FRAGILE, OTHER, SOON};
use crate::chains::scene::park;
use crate::support::keys::{Fragile, Hook, fragile, with_fuse_after, with_one_panic_after};
use crate::support::{Op, Probe, manual, refusal};
use request_purgatory::{Purgatory, threads::Reaper};
use std::cell::{Cell, RefCell};
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// The library has two copies of the key, and drops both in one call.
#[test]
fn g12_one_key_that_panics_when_it_is_dropped_aborts_nothing() {
    let (purgatory, _clock) = manual::<Bomb>(|builder| builder);
    let lit = |call: &dyn Fn()| {
        LIT.set(true);
        let made = catch_unwind(AssertUnwindSafe(call));
        LIT.set(false);
        made.is_ok()
    };
    let resolved = purgatory.resolve(Bomb(1));
    let handle = park(&purgatory, Op::new(SOON), [resolved.watch()]);
    drop(resolved);
    // The list of the resolved key is retired, with its copy and that of the map.
    assert!(lit(&|| assert!(handle.cancel().is_some())), "it is counted");
    assert_eq!(purgatory.watched_keys(), 0);
    park(&purgatory, Op::new(SOON), [Bomb(2)]);
    let found = RefCell::default();
    lit(&|| found.replace(purgatory.snapshot()).clear());
    assert_eq!(found.take().len(), 1);
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
