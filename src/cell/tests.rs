//! Tests of the slab: reuse, growth, what happens after a slot's last generation, what is dropped when, and stale
//! addresses that other threads claim meanwhile.

use super::slab::{Fields, Held, Slab};
use super::state::Mark;
use crate::cell::address::Address;
use crate::sync::{LAST_GENERATION, RESIDENT_CHUNK};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

type Cells = Slab<Arc<u32>, ()>;

fn insert<P>(cells: &Slab<P, ()>, payload: P, limit: u32) -> Option<Address> {
    let mut guard = cells.lock();
    let vacant = guard.take_vacant(limit)?;
    let held = guard.fill(vacant, payload, Fields::default());
    drop(guard);
    let at = held.address();
    assert!(matches!(held.release(true), Ok(false)));
    Some(at)
}

fn hold<P>(cells: &Slab<P, ()>, at: Address) -> Option<Held<'_, P>> {
    cells.claim_or_mark(at, Mark::Cancel)
}

fn end<P>(cells: &Slab<P, ()>, at: Address) -> Option<P> {
    let (payload, ended) = hold(cells, at)?.end();
    let mut guard = cells.lock();
    guard.put_back_spent(ended);
    Some(payload)
}

/// The reading thread takes no lock, and learns only from the length of the storage which slots exist. For Miri, which
/// tries the reorderings of a weak memory model.
#[test]
fn a_thread_that_looks_at_all_slots_races_their_growth() {
    let cells = Arc::new(Cells::new(0, ()));
    let looker = {
        let cells = cells.clone();
        std::thread::spawn(move || {
            let mut seen = 0;
            while seen < RESIDENT_CHUNK + 1 {
                seen = cells.used();
                for index in 0..seen {
                    assert!(cells.occupant(index).is_none_or(|at| at.index() == index));
                }
                std::thread::yield_now();
            }
        })
    };
    for number in 0..=RESIDENT_CHUNK {
        assert!(insert(&cells, Arc::new(number), u32::MAX).is_some());
    }
    looker.join().expect("it looks without harm");
}

#[test]
fn slots_are_reused_and_chunks_added() {
    let cells = Cells::new(0, ());
    for round in 0..3 {
        let parked = (0..1_000_u32).map(|number| {
            let at = insert(&cells, Arc::new(number), u32::MAX).expect("no limit");
            assert_eq!(at.generation(), round);
            (number, at)
        });
        let parked = parked.collect::<Vec<_>>();
        for (number, at) in parked {
            assert_eq!(end(&cells, at).as_deref(), Some(&number));
            assert!(end(&cells, at).is_none(), "it has ended");
        }
        assert_eq!(cells.used(), 1_000);
    }
}

#[test]
fn a_full_slab_gives_the_payload_back() {
    let cells = Cells::new(0, ());
    let payload = Arc::new(7);
    let at = insert(&cells, payload.clone(), 1).expect("there is room for one");
    assert!(insert(&cells, payload.clone(), 1).is_none());
    assert_eq!(Arc::strong_count(&payload), 2);
    end(&cells, at);
    assert!(insert(&cells, payload, 1).is_some());
}

#[test]
fn a_slot_whose_generations_are_used_up_has_no_other_occupant() {
    let cells = Cells::new(0, ());
    let first = insert(&cells, Arc::new(0), u32::MAX).expect("no limit");
    end(&cells, first);
    cells.age(first.index(), LAST_GENERATION);
    let last = insert(&cells, Arc::new(1), u32::MAX).expect("no limit");
    assert_eq!(
        (last.index(), last.generation()),
        (first.index(), LAST_GENERATION)
    );
    end(&cells, last);
    let next = insert(&cells, Arc::new(2), u32::MAX).expect("no limit");
    assert_ne!(next.index(), first.index());
    assert!(hold(&cells, first).is_none() && hold(&cells, last).is_none());
}

#[test]
fn a_dropped_slab_drops_what_is_parked() {
    let cells = Cells::new(0, ());
    let payloads = [(); 100].map(|()| Arc::new(0));
    for payload in &payloads {
        insert(&cells, payload.clone(), u32::MAX);
    }
    drop(cells);
    assert!(
        payloads
            .iter()
            .all(|payload| Arc::strong_count(payload) == 1)
    );
}

/// A slot has the alignment that its payload needs, even if that is more than a cache line.
#[test]
fn g12_a_slot_is_aligned_as_its_payload_has_to_be() {
    type Payload = crate::sync::CachePadded<u64>;
    let align = Slab::<Payload, ()>::layout().align();
    assert!(align >= align_of::<Payload>(), "{align}");
}

#[test]
fn a_slot_with_half_a_line_of_payload_is_one_line() {
    let layout = Slab::<[u64; 4], ()>::layout();
    assert_eq!(layout.align(), 64);
    assert_eq!(layout.size(), 64 * crate::sync::RESIDENT_CHUNK as usize);
}

/// A payload so large that its slots lie in blocks, whose memory is freed. The number in the `Arc` tells payloads
/// apart.
type Large<const BYTES: usize> = (Arc<u32>, [u8; BYTES]);

/// Takes and vacates slots at random, and frees memory meanwhile. No payload is lost, and no stale address finds a
/// payload.
fn comes_and_goes<const BYTES: usize>(rounds: u32) {
    let cells = Slab::<Large<BYTES>, ()>::new(0, ());
    let mut parked = Vec::new();
    let mut ended = Vec::new();
    let mut lot = 1_u32;
    for number in 0..rounds {
        lot = lot.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // The slab grows in the first half of the rounds, and then shrinks to nothing.
        let grows = if number < rounds / 2 { 3 } else { 1 };
        if lot >> 30 < grows {
            let at = insert(&cells, (Arc::new(number), [7; BYTES]), u32::MAX);
            parked.push((at.expect("no limit"), number));
        } else if !parked.is_empty() {
            let (at, number) = parked.swap_remove(lot as usize % parked.len());
            assert_eq!(end(&cells, at).map(|(payload, _)| *payload), Some(number));
            ended.push(at);
        }
        if number % 16 == 0 {
            cells.lock().free_spare();
        }
    }
    for at in ended {
        assert!(!cells.is_parked(at) && hold(&cells, at).is_none());
    }
    let left = parked.iter().map(|(at, _)| *at).collect::<HashSet<_>>();
    assert_eq!(cells.occupants().collect::<HashSet<_>>(), left);
    for (at, number) in parked {
        assert_eq!(end(&cells, at).map(|(payload, _)| *payload), Some(number));
    }
}

#[test]
fn g28_slots_of_any_size_come_and_go_with_their_memory() {
    let rounds = if cfg!(miri) { 200 } else { 20_000 };
    comes_and_goes::<1_024>(rounds);
    comes_and_goes::<2_000>(rounds);
    comes_and_goes::<5_000>(rounds);
}

/// The memory of a slot in a block is freed and allocated again, while other threads claim old addresses of the slot.
/// For Miri and the sanitizers.
#[test]
fn g18_stale_addresses_meet_memory_that_goes_and_comes_back() {
    // With 5,000 bytes, a block has one slot. With 1,024 bytes, it has two.
    meet_memory_that_goes::<5_000>();
    meet_memory_that_goes::<1_024>();
}

fn meet_memory_that_goes<const BYTES: usize>() {
    const ROUNDS: u32 = if cfg!(miri) { 10 } else { 2_000 };
    const SLOTS: usize = 4;
    let cells = Slab::<Large<BYTES>, ()>::new(0, ());
    let latest = [const { AtomicU64::new(u64::MAX) }; SLOTS];
    let ended = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let _enders = [(); 2].map(|()| {
            scope.spawn(|| {
                let all = ROUNDS * SLOTS as u32;
                // ORDERING: Relaxed: nothing but the count itself is read.
                while ended.load(Ordering::Relaxed) < all {
                    for latest in &latest {
                        // ORDERING: Acquire pairs with the Release by which the main thread stores this address.
                        let at = latest.load(Ordering::Acquire);
                        // Also claim the address of the slot's previous occupant, which ended long ago.
                        for at in [at.wrapping_sub(1 << 32), at].map(Address) {
                            if let Some(held) = hold(&cells, at) {
                                let ((number, bytes), spent) = held.end();
                                assert_eq!(bytes[BYTES - 1], *number as u8);
                                let slot = spent.detach();
                                cells.prefetch(std::slice::from_ref(&slot));
                                assert_eq!(cells.push_remote(slot).min(1), 1);
                                // ORDERING: Release pairs with the Acquire of the main thread: once all endings are
                                // counted, all slots are on the remote free list.
                                ended.fetch_add(1, Ordering::Release);
                            }
                        }
                    }
                    std::thread::yield_now();
                }
            })
        });
        for number in 0..ROUNDS {
            for latest in &latest {
                let payload = (Arc::new(number), [number as u8; BYTES]);
                let at = insert(&cells, payload, u32::MAX).expect("no limit");
                // ORDERING: Release pairs with the Acquire of the other threads, which read this address.
                latest.store(at.0, Ordering::Release);
            }
            // ORDERING: Acquire pairs with the Release of the other threads, which count the operations that they have
            // ended.
            while ended.load(Ordering::Acquire) < (number + 1) * SLOTS as u32 {
                std::thread::yield_now();
            }
            let mut guard = cells.lock();
            while let Some(slot) = guard.next_remote() {
                guard.put_back_ended(slot);
            }
            guard.free_spare();
        }
    });
    assert_eq!(cells.used(), SLOTS as u32);
}

/// After its last generation, a slot is not used again, not even after the other slots of its block are vacant.
#[test]
fn a_slot_in_a_block_whose_generations_are_used_up_has_no_other_occupant() {
    let cells = Slab::<Large<1_024>, ()>::new(0, ());
    let payload = || (Arc::new(0), [0; 1_024]);
    let first = insert(&cells, payload(), u32::MAX).expect("no limit");
    end(&cells, first);
    cells.age(first.index(), LAST_GENERATION);
    let last = insert(&cells, payload(), u32::MAX).expect("no limit");
    assert_eq!(
        (last.index(), last.generation()),
        (first.index(), LAST_GENERATION)
    );
    end(&cells, last);
    for _ in 0..3 {
        let next = [(); 20].map(|()| insert(&cells, payload(), u32::MAX).expect("no limit"));
        assert!(next.iter().all(|at| at.index() != first.index()));
        for at in next {
            assert!(end(&cells, at).is_some());
        }
        cells.lock().free_spare();
    }
    assert!(hold(&cells, first).is_none() && hold(&cells, last).is_none());
}

/// After its last generation (the last number of an occupant that fits into 32 bits), a slot is not used again. Here
/// the slot comes back by the remote free list, on which threads without the lock put the slots that they free.
fn retires_by_the_remote_list<P>(payload: impl Fn() -> P) {
    let cells = Slab::<P, ()>::new(0, ());
    let first = insert(&cells, payload(), u32::MAX).expect("no limit");
    end(&cells, first);
    cells.age(first.index(), LAST_GENERATION);
    let last = insert(&cells, payload(), u32::MAX).expect("no limit");
    assert_eq!(last.generation(), LAST_GENERATION);
    let (_, spent) = hold(&cells, last).expect("it is parked").end();
    cells.push_remote(spent.detach());
    let mut guard = cells.lock();
    let ended = guard.next_remote().expect("it is on the list");
    assert_eq!(ended.address(), last);
    guard.put_back_ended(ended);
    drop(guard);
    let next = [(); 20].map(|()| insert(&cells, payload(), u32::MAX).expect("no limit"));
    assert!(next.iter().all(|at| at.index() != first.index()));
    assert!(hold(&cells, first).is_none() && hold(&cells, last).is_none());
}

#[test]
fn g18_a_slot_that_is_used_up_does_not_come_back_by_the_remote_list() {
    retires_by_the_remote_list(|| Arc::new(0));
    retires_by_the_remote_list(|| [0_u8; 1_024]);
    retires_by_the_remote_list(|| [0_u8; 5_000]);
}

/// As many operations fit as the limit says, rounded down to whole blocks.
fn fill<const BYTES: usize>(slots_in_block: u32) {
    for limit in 1..=3 * slots_in_block {
        let cells = Slab::<[u8; BYTES], ()>::new(0, ());
        let park = || insert(&cells, [0; BYTES], limit);
        let room = limit / slots_in_block * slots_in_block;
        let parked = (0..room).map(|_| park().expect("it is below the limit"));
        let parked = parked.collect::<Vec<_>>();
        assert_eq!((park(), cells.lock().is_full(limit)), (None, true));
        for at in parked {
            end(&cells, at);
            assert!(park().is_some() && park().is_none());
        }
    }
}

#[test]
fn a_limit_counts_whole_blocks() {
    fill::<5_000>(1);
    fill::<1_024>(2);
}

/// Parks more small operations than there are resident slots: the first slots of a slab, whose memory is never freed.
/// The other operations lie in blocks of 64 slots, whose memory is allocated when it is needed, and freed later.
#[test]
fn g28_slots_behind_those_that_stay_come_and_go() {
    if cfg!(miri) {
        return;
    }
    let cells = Slab::<u32, ()>::new(0, ());
    let mut lot = fastrand::Rng::with_seed(1);
    for _ in 0..2 {
        let insert = |number| (number, insert(&cells, number, u32::MAX).expect("no limit"));
        let mut parked = (0..20_000).map(insert).collect::<Vec<_>>();
        assert_eq!(cells.occupants().count(), parked.len());
        lot.shuffle(&mut parked);
        for (number, at) in parked {
            assert_eq!(end(&cells, at), Some(number));
        }
        cells.lock().free_spare();
    }
    assert_eq!(cells.used().div_ceil(64), 20_000_u32.div_ceil(64));
}
