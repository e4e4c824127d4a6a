//! The operation's slot: holding, letting go, ending and reuse, through the slab. (`word.rs` models the state word
//! alone, with every execution of three threads.)

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use loom_tests::{bounded, exhaustive};
use request_purgatory::model::{Address, FreedBy, Held, Mark, Shard, Unreleased};
use std::sync::Arc;

/// Which events the operation has seen when it was examined.
type Seen = [bool; 2];

struct World {
    shard: Shard<Seen>,
    events: [AtomicBool; 2],
    ended: AtomicUsize,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            shard: Shard::new(),
            events: [AtomicBool::new(false), AtomicBool::new(false)],
            ended: AtomicUsize::new(0),
        })
    }

    fn examine(&self, held: &mut Held<'_, Seen>) {
        held.with(|seen| {
            for (seen, event) in seen.iter_mut().zip(&self.events) {
                *seen |= event.load(Ordering::Relaxed);
            }
        });
    }

    /// What a held does: examine, let go, and obey the marks.
    fn hold(&self, mut held: Held<'_, Seen>) {
        loop {
            self.examine(&mut held);
            match held.release(true) {
                Ok(_) => return,
                Err((again, Unreleased { ending: None, .. })) => held = again,
                Err((held, _)) => return self.end(held),
            }
        }
    }

    fn end(&self, held: Held<'_, Seen>) {
        self.shard.end(held, FreedBy::SameShard);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn check(&self, at: Address) {
        if let Some(held) = self.shard.claim_or_mark(at, Mark::Examine) {
            self.hold(held);
        }
    }

    fn end_having_seen_both(&self, at: Address) {
        let held = self.shard.claim_or_mark(at, Mark::Examine);
        let mut held = held.expect("no other thread ended it");
        assert_eq!(held.with(|seen| *seen), [true; 2]);
        self.end(held);
    }

    fn event(&self, number: usize, at: Address) {
        self.events[number].store(true, Ordering::Relaxed);
        self.check(at);
    }
}

/// Catches: a recheck that is not written when it stands there already; a release past a mark; a mark or a release
/// without its ordering.
#[test]
fn g01_parker_and_two_checkers_see_both_events() {
    bounded(|| {
        let world = World::new();
        let (at, held) = world.shard.insert([false; 2]);
        let checkers = [0, 1].map(|number| {
            let world = world.clone();
            thread::spawn(move || world.event(number, at))
        });
        world.hold(held);
        for checker in checkers {
            checker.join().unwrap();
        }
        world.end_having_seen_both(at);
    });
}

/// Catches: an acquire without its ordering (loom then sees two examinations at once), a lost recheck.
#[test]
fn g04_examinations_never_overlap() {
    exhaustive(|| {
        let world = World::new();
        let (at, held) = world.shard.insert([false; 2]);
        world.hold(held);
        let other = {
            let world = world.clone();
            thread::spawn(move || world.event(0, at))
        };
        world.event(1, at);
        other.join().unwrap();
        world.end_having_seen_both(at);
    });
}

/// Catches: an ending that two threads win, or that none wins because each left it to the other.
#[test]
fn g05_checker_reaper_and_canceller_end_it_once() {
    bounded(|| {
        let world = World::new();
        let (at, held) = world.shard.insert([false; 2]);
        world.hold(held);
        let enders = [Mark::Expire, Mark::Cancel].map(|order| {
            let world = world.clone();
            thread::spawn(move || {
                if let Some(held) = world.shard.claim_or_mark(at, order) {
                    world.end(held);
                }
            })
        });
        world.check(at);
        for ender in enders {
            ender.join().unwrap();
        }
        assert_eq!(world.ended.load(Ordering::Relaxed), 1);
        assert!(!world.shard.is_parked(at));
    });
}

/// Catches: an ending mark that meets the parker and is lost.
#[test]
fn g05_an_ending_mark_left_during_the_park_is_obeyed() {
    exhaustive(|| {
        let world = World::new();
        let (at, held) = world.shard.insert([false; 2]);
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                if let Some(held) = world.shard.claim_or_mark(at, Mark::Expire) {
                    world.end(held);
                }
            })
        };
        world.hold(held);
        other.join().unwrap();
        assert_eq!(world.ended.load(Ordering::Relaxed), 1);
    });
}

/// Catches: a second examination that takes an ending mark away together with the recheck.
#[test]
fn g05_an_ending_mark_beside_a_recheck_is_obeyed() {
    bounded(|| {
        let world = World::new();
        let (at, held) = world.shard.insert([false; 2]);
        let checker = {
            let world = world.clone();
            thread::spawn(move || world.event(0, at))
        };
        let ender = {
            let world = world.clone();
            thread::spawn(move || {
                if let Some(held) = world.shard.claim_or_mark(at, Mark::Expire) {
                    world.end(held);
                }
            })
        };
        world.hold(held);
        checker.join().unwrap();
        ender.join().unwrap();
        assert_eq!(world.ended.load(Ordering::Relaxed), 1);
    });
}

/// Catches: a generation that is not compared, or not raised at the end; a retired slot that is used again.
#[test]
fn g18_a_stale_reference_never_meets_a_later_occupant() {
    bounded(|| {
        let shard = Arc::new(Shard::<u32>::new());
        let (at, held) = shard.insert(0);
        assert!(held.release(true).is_ok());
        let stale = {
            let shard = shard.clone();
            thread::spawn(move || {
                if let Some(mut held) = shard.claim_or_mark(at, Mark::Cancel) {
                    assert_eq!(held.with(|occupant| *occupant), 0);
                    shard.end(held, FreedBy::SameShard);
                }
            })
        };
        if let Some(held) = shard.claim_or_mark(at, Mark::Cancel) {
            shard.end(held, FreedBy::SameShard);
        }
        for occupant in 1..4 {
            let (next, held) = shard.insert(occupant);
            assert!(held.release(true).is_ok());
            let mut held = shard
                .claim_or_mark(next, Mark::Cancel)
                .expect("no other thread knows it");
            assert_eq!(held.with(|occupant| *occupant), occupant);
            shard.end(held, FreedBy::SameShard);
        }
        stale.join().unwrap();
        assert!(!shard.is_parked(at));
    });
}

/// An operation that has ended is read in its slot when the generation in the state word is already that of the next
/// occupant. Meanwhile another thread parks, and has the slot as soon as that is freed, in whatever way. (loom sees two
/// threads that use the payload at once.)
///
/// Catches: a slot that is handed on without its ordering.
fn reads_what_has_ended(freed_by: FreedBy) {
    bounded(move || {
        let shard = Arc::new(Shard::<u32>::new());
        let (at, held) = shard.insert(7);
        assert!(held.release(true).is_ok());
        let ender = {
            let shard = shard.clone();
            thread::spawn(move || {
                let held = shard.claim_or_mark(at, Mark::Cancel);
                let held = held.expect("no other thread does");
                let stays = |payload: &u32| {
                    assert_eq!(*payload, 7);
                    assert!(!shard.is_parked(at), "its address is stale");
                };
                assert_eq!(shard.end_and_read(held, freed_by, stays), 7);
            })
        };
        for newcomer in [8, 9] {
            let (at, held) = shard.insert(newcomer);
            assert!(held.release(true).is_ok());
            let held = shard.claim_or_mark(at, Mark::Cancel);
            let mut held = held.expect("no other thread knows it");
            assert_eq!(held.with(|occupant| *occupant), newcomer);
            shard.end(held, FreedBy::SameShard);
        }
        ender.join().unwrap();
    });
}

#[test]
fn g18_what_has_ended_is_read_in_its_slot_until_its_own_thread_frees_that() {
    reads_what_has_ended(FreedBy::SameShard);
}

#[test]
fn g18_what_has_ended_is_read_in_its_slot_until_another_shards_thread_frees_that() {
    reads_what_has_ended(FreedBy::OtherShard);
}

#[test]
fn g18_what_has_ended_is_read_in_its_slot_until_a_batch_frees_that() {
    reads_what_has_ended(FreedBy::Batch);
}

/// Catches: a slot that is freed remotely and lost, or handed on without its ordering.
#[test]
fn g16_slots_that_are_ended_while_the_lock_is_taken_come_back() {
    bounded(|| {
        let shard = Arc::new(Shard::<u32>::new());
        let parked = [0, 1, 2].map(|number| {
            let (at, held) = shard.insert(number);
            assert!(held.release(true).is_ok());
            at
        });
        let end = |shard: &Shard<u32>, at| {
            let held = shard
                .claim_or_mark(at, Mark::Cancel)
                .expect("no other thread does");
            shard.end(held, FreedBy::SameShard);
        };
        let enders = [parked[0], parked[1]].map(|at| {
            let shard = shard.clone();
            thread::spawn(move || end(&shard, at))
        });
        end(&shard, parked[2]);
        // Meets the others' slots half way.
        let (_, meanwhile) = shard.insert(3);
        for ender in enders {
            ender.join().unwrap();
        }
        let slots = shard.slots();
        let rest = (1..slots).map(|number| shard.insert(number).1);
        let rest = rest.collect::<Vec<_>>();
        assert_eq!(shard.slots(), slots, "a slot was lost");
        for held in rest {
            shard.end(held, FreedBy::SameShard);
        }
        shard.end(meanwhile, FreedBy::SameShard);
    });
}

/// A thread finds the lock taken when it frees a slot, and the lock is released before it is done. No thread comes
/// after these two: in some execution the slot must be back all the same. (In others it waits for the next thread that
/// parks in this shard or drives the timer: the lock was still taken at the second try.)
fn comes_back_by_the_second_try(freed_by: FreedBy) {
    let came_back = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = came_back.clone();
    bounded(move || {
        let shard = Arc::new(Shard::<u32>::new());
        let (at, held) = shard.insert(0);
        assert!(held.release(true).is_ok());
        let ender = {
            let shard = shard.clone();
            thread::spawn(move || {
                let held = shard.claim_or_mark(at, Mark::Cancel);
                shard.end(held.expect("no other thread does"), freed_by);
            })
        };
        let mut waiting = 0;
        shard.hold_lock(|| waiting = shard.waiting());
        ender.join().unwrap();
        if waiting == 1 && shard.waiting() == 0 {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        // The next one that parks has the slot in any case.
        shard.end(shard.insert(1).1, FreedBy::SameShard);
        assert_eq!((shard.slots(), shard.waiting()), (1, 0));
    });
    let came_back = came_back.load(std::sync::atomic::Ordering::Relaxed);
    assert_ne!(came_back, 0, "every slot waits for the next thread");
}

/// Catches: a slot that is freed remotely without a second try for the lock.
#[test]
fn g06_a_slot_freed_while_the_lock_is_taken_comes_back() {
    comes_back_by_the_second_try(FreedBy::SameShard);
}

/// Catches: the same for a thread of another shard, which tries once for every slice of slots.
#[test]
fn g06_a_slot_freed_by_a_thread_of_another_shard_comes_back() {
    comes_back_by_the_second_try(FreedBy::OtherShard);
}

/// Catches: the same for slots that are freed together after a storm.
#[test]
fn g06_slots_freed_together_while_the_lock_is_taken_come_back() {
    comes_back_by_the_second_try(FreedBy::Batch);
}

/// Two chunks of the storage come while another thread goes through it. Catches: a length that is published before the
/// item below it and its chunk are.
#[test]
fn g18_a_look_at_all_slots_races_their_growth() {
    exhaustive(|| {
        let shard = Arc::new(Shard::<u32>::new());
        let looker = {
            let shard = shard.clone();
            thread::spawn(move || [1, 0].map(|slot| shard.is_occupied(slot)))
        };
        let parked = [0, 1].map(|number| {
            let (at, held) = shard.insert(number);
            assert!(held.release(true).is_ok());
            at
        });
        looker.join().unwrap();
        assert!(parked.iter().all(|at| shard.is_parked(*at)));
    });
}

/// So large that each has a block of its own.
type Large = [u64; 400];
/// Two of them are in one block.
type Medium = [u64; 150];

/// A thread has the address of an operation that is ended meanwhile. The memory of its slot goes and is made again, for
/// another operation.
///
/// Catches: an address that is followed to the slot before the word says that the operation is still there; a generation
/// that goes with the memory; memory that goes while the slot is used, or comes back without its ordering.
fn meets_memory_that_goes<const N: usize>(freed_by: FreedBy) {
    bounded(move || {
        let shard = Arc::new(Shard::<[u64; N]>::new());
        let [at, other] = [0, 1].map(|number| {
            let (at, held) = shard.insert([number; N]);
            assert!(held.release(true).is_ok());
            at
        });
        let stale = {
            let shard = shard.clone();
            thread::spawn(move || {
                if let Some(mut held) = shard.claim_or_mark(at, Mark::Cancel) {
                    assert_eq!(held.with(|payload| payload[N - 1]), 0);
                    assert_eq!(shard.end(held, freed_by)[N - 1], 0);
                }
            })
        };
        for at in [at, other] {
            if let Some(held) = shard.claim_or_mark(at, Mark::Cancel) {
                shard.end(held, FreedBy::SameShard);
            }
        }
        shard.shrink();
        let again = [2, 3].map(|number| {
            let (at, mut held) = shard.insert([number; N]);
            assert_eq!(held.with(|payload| payload[N - 1]), number);
            assert!(held.release(true).is_ok());
            at
        });
        stale.join().unwrap();
        assert!(!shard.is_parked(at));
        assert!(again.iter().all(|at| shard.is_parked(*at)));
    });
}

#[test]
fn g18_a_stale_address_meets_the_memory_of_its_slot_as_that_goes_and_comes_back() {
    meets_memory_that_goes::<{ size_of::<Large>() / 8 }>(FreedBy::SameShard);
}

#[test]
fn g18_a_slot_that_another_shards_thread_frees_meets_the_end_of_its_memory() {
    meets_memory_that_goes::<{ size_of::<Large>() / 8 }>(FreedBy::OtherShard);
}

#[test]
fn g18_the_memory_of_two_slots_stays_for_the_one_that_is_used() {
    meets_memory_that_goes::<{ size_of::<Medium>() / 8 }>(FreedBy::OtherShard);
}

/// One thread parks and ends, another gives memory back. Catches: a block that is given back and still counts as there,
/// or is counted twice.
#[test]
fn g18_parks_race_a_shrink() {
    bounded(|| {
        let shard = Arc::new(Shard::<Large>::new());
        let (_, held) = shard.insert([7; 400]);
        shard.end(held, FreedBy::SameShard);
        let other = {
            let shard = shard.clone();
            thread::spawn(move || shard.shrink())
        };
        let held = [8, 9].map(|number| shard.insert([number; 400]).1);
        for (mut held, number) in held.into_iter().zip(8..) {
            assert_eq!(held.with(|payload| payload[399]), number);
            shard.end(held, FreedBy::SameShard);
        }
        other.join().unwrap();
        assert_eq!(shard.slots(), 2);
    });
}
