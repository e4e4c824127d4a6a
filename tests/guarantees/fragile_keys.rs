//! G12 for keys: a hook of a key that panics in the middle of a resolution, a park, a check or an end leaves no lock
//! taken, loses no watcher, and costs at most what the caller is told.

use crate::support::keys::{Fragile, Hook, with_fuse, with_fuse_after};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, manual, within};
use request_purgatory::{Completion, Handle, Purgatory, RejectReason, Rejected};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

type Watch<'a> = request_purgatory::Watch<'a, Op<Fragile>>;

const HOOKS: [Hook; 4] = [Hook::Clone, Hook::Hash, Hook::Eq, Hook::Drop];

fn park<'a>(
    purgatory: &Purgatory<Op<Fragile>>,
    probe: &Arc<Probe>,
    watches: impl IntoIterator<Item = Watch<'a>>,
) -> Handle<Op<Fragile>> {
    purgatory
        .try_complete_else_watch_on(probe.op(NEVER_IN_A_TEST), watches)
        .expect("there is room")
        .into_handle()
        .expect("it cannot complete yet")
}

/// Everything works on the key as if nothing had happened.
fn assert_works(purgatory: &Purgatory<Op<Fragile>>, number: u32) {
    let key = purgatory.resolve(Fragile(number));
    let probes = [(); 3].map(|()| Probe::new());
    park(purgatory, &probes[0], [Watch::from(&key)]);
    park(purgatory, &probes[1], [Watch::from(&key).at_rank(1)]);
    park(purgatory, &probes[2], [Watch::key(Fragile(number))]);
    probes.iter().for_each(|probe| probe.satisfy());
    assert_eq!(key.check_and_complete_up_to(0), 2);
    assert_eq!(purgatory.check_and_complete(&Fragile(number)), 1);
    let satisfied = Some(Completion::Satisfied);
    assert!(probes.iter().all(|probe| probe.ending() == satisfied));
}

#[test]
fn g12_a_key_that_panics_while_it_is_resolved_or_released() {
    within(PATIENCE, || {
        for hook in HOOKS {
            for watchers in 0..4 {
                let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
                let (kept, other) = (purgatory.resolve(Fragile(2)), Probe::new());
                park(&purgatory, &other, [Watch::from(&kept)]);
                let probes = (0..watchers).map(|rank| {
                    let probe = Probe::new();
                    let watch = Watch::key(Fragile(1));
                    let watch = if rank % 2 == 0 {
                        watch
                    } else {
                        watch.at_rank(rank)
                    };
                    park(&purgatory, &probe, [watch]);
                    probe
                });
                let probes = probes.collect::<Vec<_>>();
                // The key is new, and then resolved already.
                for _ in 0..3 {
                    let key = with_fuse(1, hook, || purgatory.resolve(Fragile(1)));
                    drop(with_fuse(1, hook, || {
                        drop(key.inspect(|key| drop(key.clone())))
                    }));
                    let key = purgatory.resolve(Fragile(1));
                    drop(with_fuse(1, hook, || drop(key.clone())));
                    let released = with_fuse(1, hook, || drop(key));
                    // (The destructor of the key itself is its owner's affair.)
                    assert!(released.is_ok() || hook == Hook::Drop, "{hook:?}");
                }
                assert_eq!(purgatory.watched(), 1 + probes.len());
                probes.iter().for_each(|probe| probe.satisfy());
                assert_eq!(purgatory.check_and_complete(&Fragile(1)), probes.len());
                other.satisfy();
                assert_eq!(kept.check_and_complete(), 1);
                assert_works(&purgatory, 1);
                assert_eq!((purgatory.watched(), purgatory.watched_keys()), (0, 0));
            }
        }
    });
}

#[test]
fn g12_a_key_that_panics_while_an_operation_is_parked() {
    within(PATIENCE, || {
        for hook in HOOKS {
            let (purgatory, _clock) = manual::<Fragile>(|builder| builder.max_parked(2));
            let (one, two) = (purgatory.resolve(Fragile(1)), purgatory.resolve(Fragile(2)));
            let sibling = Probe::new();
            let (stranger, _clock) = manual::<Fragile>(|builder| builder);
            let strange = stranger.resolve(Fragile(1));
            park(&purgatory, &sibling, [&one, &two].map(Watch::from));
            let all = |turn: usize| {
                let mut watches = vec![
                    Watch::from(&two),
                    Watch::key(Fragile(3)),
                    Watch::from(&strange).at_rank(4),
                    Watch::key(Fragile(1)),
                ];
                watches.rotate_left(turn);
                watches
            };
            for turn in 0..4 {
                let result = with_fuse(1, hook, || {
                    let op = Op::new(NEVER_IN_A_TEST);
                    let result = purgatory.try_complete_else_watch_on(op, all(turn));
                    result.map_err(|rejected| assert!(rejected.reason() == RejectReason::Panicked))
                });
                let parked = matches!(result, Ok(Ok(_)));
                assert_eq!(purgatory.len(), 1 + usize::from(parked), "{hook:?}");
                assert_eq!(purgatory.watched(), 2 + 3 * usize::from(parked));
                assert_eq!(
                    purgatory.cancel_for_key(&Fragile(3)).len(),
                    usize::from(parked)
                );
                assert_eq!((purgatory.len(), purgatory.watched_keys()), (1, 2));
            }
            sibling.satisfy();
            assert_eq!(two.check_and_complete(), 1);
            let left = (purgatory.watched(), purgatory.watched_keys());
            assert_eq!(left, (0, 0), "{hook:?}");
            for number in 1..4 {
                assert_works(&purgatory_without_limit(), number);
            }
        }
    });
}

fn purgatory_without_limit() -> Purgatory<Op<Fragile>> {
    manual::<Fragile>(|builder| builder).0
}

/// The keys of a resolved watch run no code of theirs at the end, unless the place is retired then.
#[test]
fn g12_a_key_that_panics_at_the_end_of_an_operation() {
    within(PATIENCE, || {
        for hook in HOOKS {
            for released_before in [false, true] {
                let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
                let (one, two) = (purgatory.resolve(Fragile(1)), purgatory.resolve(Fragile(2)));
                let probes = [(); 6].map(|()| Probe::new());
                for (rank, probe) in probes.iter().enumerate() {
                    let own = Watch::from(&one);
                    let own = if rank < 3 {
                        own
                    } else {
                        own.at_rank(rank as u64)
                    };
                    park(&purgatory, probe, [own, Watch::from(&two)]);
                    probe.satisfy();
                }
                let one = Some(one).filter(|_| !released_before);
                let found = with_fuse(1, hook, || two.check_and_complete());
                assert_eq!(found.ok(), Some(6), "{hook:?}");
                for probe in &probes {
                    assert_eq!(probe.ending(), Some(Completion::Satisfied));
                }
                assert_eq!((purgatory.watched(), purgatory.len()), (0, 0));
                assert_eq!(purgatory.watched_keys(), 0);
                drop(one);
                assert_works(&purgatory, 1);
                assert_eq!(purgatory.watched_keys(), 0);
            }
        }
    });
}

/// A storm takes the entries of many keys out of the map together. One that is not to be had (its key panics) costs the
/// others nothing: neither their entries nor the places of those that were resolved once.
#[test]
fn g06_a_key_that_panics_in_a_storm_leaves_no_entry_but_its_own() {
    use request_purgatory::{threads::Reaper, time::ManualClock};
    use std::cell::Cell;
    use std::hash::{BuildHasherDefault, Hash, Hasher};

    const ROTTEN: u64 = 40;

    thread_local!(static LIT: Cell<bool> = const { Cell::new(false) });

    /// All keys are in one shard.
    #[derive(Default)]
    struct Same;

    impl Hasher for Same {
        fn finish(&self) -> u64 {
            0
        }

        fn write(&mut self, _: &[u8]) {}
    }

    #[derive(Debug, Clone)]
    struct Rotten(
        u64,
        #[expect(dead_code, reason = "it is there to be counted")] Arc<()>,
    );

    impl PartialEq for Rotten {
        fn eq(&self, other: &Self) -> bool {
            let same = self.0 == other.0;
            assert!(!(LIT.get() && same && self.0 == ROTTEN), "the rotten key");
            same
        }
    }

    impl Eq for Rotten {}

    impl Hash for Rotten {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    within(PATIENCE, || {
        let clock = ManualClock::new();
        let purgatory = Purgatory::<Op<Rotten>>::builder("g06-rotten")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .hasher(BuildHasherDefault::<Same>::default())
            .build()
            .expect("no threads to refuse");
        let census = Arc::new(());
        for number in 0..100 {
            let key = || Rotten(number, census.clone());
            let resolved = (number != ROTTEN).then(|| purgatory.resolve(key()));
            let op = Op::new(Duration::from_millis(1));
            purgatory
                .try_complete_else_watch(op, [key()])
                .expect("there is room");
            drop(resolved);
        }
        clock.advance(Duration::from_millis(2));
        LIT.set(true);
        let expired = purgatory.advance();
        LIT.set(false);
        assert_eq!(expired, 100);
        assert_eq!(purgatory.stats().panicked, 1);
        assert_eq!((purgatory.len(), purgatory.watched()), (0, 0));
        assert_eq!(Arc::strong_count(&census), 2, "the one that panicked");
    });
}

/// Of two panics at once, the process would die.
#[test]
fn g12_keys_whose_destructors_panic_are_dropped_one_by_one_after_a_storm() {
    use std::cell::Cell;

    thread_local!(static LIT: Cell<bool> = const { Cell::new(false) });

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Bomb(u64);

    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!LIT.get(), "a key");
        }
    }

    within(PATIENCE, || {
        let (purgatory, clock) = manual::<Bomb>(|builder| builder);
        let probes = [(); 300].map(|()| Probe::new());
        for (number, probe) in (0..).zip(&probes) {
            purgatory
                .try_complete_else_watch(probe.op(Duration::from_millis(1)), [Bomb(number)])
                .expect("there is room");
        }
        clock.advance(Duration::from_millis(2));
        LIT.set(true);
        let expired = purgatory.advance();
        LIT.set(false);
        assert_eq!(expired, probes.len());
        let all = Some(Completion::Expired);
        assert!(probes.iter().all(|probe| probe.ending() == all));
        assert_eq!(purgatory.watched_keys(), 0);
        // The one in the list and the one of the operation.
        assert_eq!(purgatory.stats().panicked, 2 * probes.len() as u64);
    });
}

/// Destructors of keys run under no lock: a key may use the purgatory in its own.
#[test]
fn g03_no_lock_is_held_while_a_key_is_dropped() {
    use std::hash::{Hash, Hasher};
    use std::sync::Mutex;

    static PURGATORY: Mutex<Option<Purgatory<Op<Busy>>>> = Mutex::new(None);

    /// Checks its key once more whenever a copy of it is dropped.
    #[derive(Clone)]
    struct Busy(u64, bool);

    impl PartialEq for Busy {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    impl Eq for Busy {}

    impl Hash for Busy {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            let purgatory = PURGATORY
                .lock()
                .ok()
                .and_then(|purgatory| purgatory.clone());
            if let (true, Some(purgatory)) = (self.1, purgatory) {
                purgatory.check_and_complete(&Self(self.0, false));
                drop(purgatory.resolve(Self(self.0, false)));
                purgatory.watched_keys();
            }
        }
    }

    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Busy>(|builder| builder);
        *PURGATORY.lock().expect("no test panics") = Some(purgatory.clone());
        for number in 0..3 {
            let key = purgatory.resolve(Busy(number, true));
            let again = purgatory.resolve(Busy(number, true));
            let park = |watch| {
                let op = Op::new(NEVER_IN_A_TEST);
                let parked = purgatory.try_complete_else_watch_on(op, [watch]);
                parked.ok().and_then(|watch| watch.into_handle())
            };
            let first = park(request_purgatory::Watch::from(&key));
            let second = park(request_purgatory::Watch::key(Busy(number, true)).at_rank(1));
            drop((key, again));
            assert!(first.is_some_and(|handle| handle.force_complete()));
            assert!(second.is_some_and(|handle| handle.cancel().is_some()));
            assert_eq!((purgatory.watched(), purgatory.watched_keys()), (0, 0));
        }
        *PURGATORY.lock().expect("no test panics") = None;
    });
}

/// A long list is looked up for each slice of it. What was ended before the key panicked is told, or given back.
#[test]
fn g12_a_key_that_panics_in_the_middle_of_a_visit_loses_no_ending() {
    const WATCHERS: usize = 200;
    type Call = fn(&Purgatory<Op<Fragile>>) -> usize;
    let check: Call = |purgatory| {
        purgatory.check_and_complete(&Fragile(1));
        0
    };
    let check_later: Call = |purgatory| {
        purgatory.check_later(Fragile(1));
        purgatory.advance();
        0
    };
    let force: Call = |purgatory| {
        purgatory.force_complete_for_key(&Fragile(1));
        0
    };
    let cancel: Call = |purgatory| purgatory.cancel_for_key(&Fragile(1)).len();
    within(PATIENCE, move || {
        let satisfied = Completion::Satisfied;
        for (call, told) in [
            (check, satisfied),
            (check_later, satisfied),
            (force, satisfied),
            (cancel, Completion::Cancelled),
        ] {
            for (hook, calls) in [Hook::Hash, Hook::Eq]
                .into_iter()
                .flat_map(|hook| [0, 1, 2, 5, 70, 150, 1_000].map(|calls| (hook, calls)))
            {
                let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
                let probes = (0..WATCHERS).map(|_| Probe::new()).collect::<Vec<_>>();
                for probe in &probes {
                    park(&purgatory, probe, [Watch::key(Fragile(1))]);
                    probe.satisfy();
                }
                let returned = with_fuse_after(calls, 1, hook, || call(&purgatory));
                let returned = returned.unwrap_or(0);
                let heard = probes.iter().filter_map(|probe| probe.ending());
                let heard = heard.inspect(|ending| assert_eq!(*ending, told)).count();
                let parked = purgatory.len();
                assert_eq!(heard + returned + parked, WATCHERS, "{hook:?} {calls}");
                assert_eq!(purgatory.check_and_complete(&Fragile(1)), parked);
                assert_eq!(purgatory.len(), 0);
            }
        }
    });
}

/// Hashes a key to its number, and all keys to one shard.
#[derive(Debug, Clone, Copy, Default)]
struct Plainly(u64);

impl BuildHasher for Plainly {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for Plainly {
    fn finish(&self) -> u64 {
        // (The shard is named by the bits below the seven highest.)
        self.0 | (self.0 & 0x7f) << 57
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the key is a number");
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = number.into();
    }
}

/// When much was removed, a map wants to rehash what it has. A key that panics then must not take others with it.
#[test]
fn g12_a_key_that_panics_while_the_map_is_tidied_loses_no_watch() {
    within(PATIENCE, || {
        let builder = Purgatory::<Op<Fragile>>::builder("tidied").hasher(Plainly::default());
        let purgatory = builder.build().expect("threads are to be had");
        let park = |number| {
            let op = Op::new(NEVER_IN_A_TEST);
            let parked = purgatory.try_complete_else_watch(op, [Fragile(number)]);
            parked.is_ok()
        };
        let mut live = (0..440).collect::<VecDeque<u32>>();
        assert!(live.iter().all(|number| park(*number)));
        let mut refused = 0;
        for number in 440..10_000 {
            while live.len() > 200 {
                let oldest = live.pop_front().expect("there are many");
                assert_eq!(purgatory.cancel_for_key(&Fragile(oldest)).len(), 1);
            }
            if with_fuse(live[100], Hook::Hash, || park(number)).ok() != Some(true) {
                refused += 1;
                for number in &live {
                    let found = purgatory.reschedule_for_key(&Fragile(*number), Duration::MAX);
                    assert_eq!(found, 1, "the watch on {number} is lost");
                }
                assert!(park(number), "with keys that do not panic");
            }
            live.push_back(number);
        }
        assert!(refused > 10, "the map was tidied {refused} times");
        assert_eq!(purgatory.watched_keys(), live.len());
    });
}

/// However an operation ends, and at the shutdown for a check that was put off.
#[test]
fn g12_a_plain_key_whose_destructor_panics_is_counted_at_every_end() {
    within(PATIENCE, || {
        type End = fn(&Purgatory<Op<Fragile>>, &Handle<Op<Fragile>>) -> bool;
        let ends: [End; 3] = [
            |_, handle| handle.force_complete(),
            |_, handle| handle.cancel().is_some(),
            |purgatory, _| {
                purgatory.shutdown();
                true
            },
        ];
        for end in ends {
            let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
            let handle = park(&purgatory, &Probe::new(), [Watch::key(Fragile(1))]);
            let ended = with_fuse(1, Hook::Drop, || end(&purgatory, &handle));
            assert_eq!(ended.ok(), Some(true));
            assert_eq!((purgatory.len(), purgatory.watched_keys()), (0, 0));
            // The one in the list and the one of the operation.
            assert_eq!(purgatory.stats().panicked, 2);
        }
        let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
        purgatory.check_later(Fragile(1));
        let ended = with_fuse(1, Hook::Drop, || purgatory.shutdown());
        assert!(ended.is_ok());
        assert_eq!(purgatory.stats().panicked, 1);
    });
}

/// The checks behind it are made all the same.
#[test]
fn g12_a_key_that_panics_in_a_check_put_off_costs_only_that_check() {
    within(PATIENCE, || {
        for hook in [Hook::Hash, Hook::Eq, Hook::Drop] {
            let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
            let probes = [1, 2].map(|number| {
                let probe = Probe::new();
                park(&purgatory, &probe, [Watch::key(Fragile(number))]);
                probe.satisfy();
                purgatory.check_later(Fragile(number));
                probe
            });
            let advanced = with_fuse(1, hook, || purgatory.advance());
            assert_eq!(advanced.ok(), Some(0), "{hook:?}");
            assert_eq!(probes[1].ending(), Some(Completion::Satisfied));
            assert!(purgatory.stats().panicked > 0);
        }
    });
}
