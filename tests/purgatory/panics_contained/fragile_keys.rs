//! G12 for keys: what a panic of `Hash`, `Eq`, `Clone` or `Drop` of a key may cost besides. (In any call: `calls.rs`.)

use super::calls::{FRAGILE, OTHER, SOON};
use crate::support::keys::{
    Fragile, Hook, fragile, fragile_keys, with_fuse_after, with_one_panic_after,
};
use crate::support::{Op, Probe, manual, refusal};
use request_purgatory::{Purgatory, threads::Reaper};
use std::hash::{BuildHasherDefault, Hasher};
use std::thread;

/// The places of several keys are retired after one pass. A panic on the way costs one key its place, and no other.
#[test]
fn g12_a_key_that_panics_while_it_is_retired_keeps_no_other() {
    for (hook, number) in (0..5).flat_map(|number| [(Hook::Hash, number), (Hook::Eq, number)]) {
        let (purgatory, clock) = manual::<Fragile>(|builder| builder);
        for number in 0..5 {
            let key = purgatory.resolve(fragile(number));
            let parked = purgatory.try_complete_else_watch(Op::new(SOON), [key.watch()]);
            assert!(parked.is_ok(), "there is room");
        }
        assert_eq!(purgatory.watched_keys(), 5);
        clock.advance(SOON);
        let advanced = with_one_panic_after(0, number, hook, || purgatory.advance());
        let panicked = advanced.is_some_and(|advanced| matches!(advanced, Ok(5)));
        let what = format!("{hook:?} of {number}");
        assert_eq!(panicked, purgatory.stats().panicked == 1, "{what}");
        // One is in the map, one in the place.
        assert_eq!(fragile_keys(), 2 * usize::from(panicked), "{what}");
    }
}

/// Nor does one while operations are taken off their lists, one alone or several together, be it once or each time:
/// what an operation watches beside it is left, however many keys these are.
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
    for (hook, for_good, others, operations) in ROWS {
        for calls in 0..8 {
            let (purgatory, clock) = manual::<Fragile>(|builder| builder);
            for _ in 0..operations {
                let keys = [&[FRAGILE], others].concat().into_iter().map(fragile);
                let parked = purgatory.try_complete_else_watch(Op::new(SOON), keys);
                assert!(parked.is_ok(), "there is room");
            }
            clock.advance(SOON);
            let expire = || purgatory.advance();
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

/// The key of a deferred check panics once, wherever: it is counted. Where the check was found, it is made nevertheless.
#[test]
fn g12_a_key_that_panics_in_a_deferred_check_is_counted() {
    let mut panics = 0;
    for calls in 0..8 {
        let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
        let parked = purgatory.try_complete_else_watch(Op::new(SOON), [fragile(FRAGILE)]);
        assert!(parked.is_ok(), "there is room");
        purgatory.check_later(fragile(FRAGILE));
        let advanced = with_one_panic_after(calls, FRAGILE, Hook::Hash, || purgatory.advance());
        let panicked = advanced.is_some();
        assert_eq!(purgatory.stats().panicked, u64::from(panicked), "{calls}");
        panics += usize::from(panicked);
    }
    assert!(panics > 1, "in more places than one");
}

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
    let op = op.then(move |_| ());
    let parked = purgatory.try_complete_else_watch(op, [1, 2]);
    let handle = parked.expect("there is room").into_handle();
    purgatory.check_later(1);
    assert!(!handle.expect("it cannot complete yet").check());
    probe.satisfy();
    purgatory.advance();
    let stats = purgatory.stats();
    assert_eq!((stats.completed, stats.panicked), (1, 0));
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
    assert!(
        checked.is_some_and(|checked| checked.is_err()),
        "it unwinds"
    );
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
