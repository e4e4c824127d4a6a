//! The slab on one thread: reuse, growth, the end of a slot's generations, and what is dropped when.

use super::slab::{Fields, Held, Slab};
use super::state::Mark;
use crate::cell::address::Address;
use crate::sync::{FIRST_CHUNK, LAST_GENERATION};
use std::sync::Arc;

type Cells = Slab<Arc<u32>, ()>;

fn insert(cells: &Cells, payload: Arc<u32>, limit: u32) -> Option<Address> {
    let mut guard = cells.lock();
    let vacant = guard.take_vacant(limit)?;
    let held = guard.fill(vacant, payload, Fields::default());
    drop(guard);
    let at = held.address();
    assert!(matches!(held.release(true), Ok(false)));
    Some(at)
}

fn hold(cells: &Cells, at: Address) -> Option<Held<'_, Arc<u32>>> {
    cells.claim_or_mark(at, Mark::Cancel)
}

fn end(cells: &Cells, at: Address) -> Option<Arc<u32>> {
    let (payload, ended) = hold(cells, at)?.end();
    let mut guard = cells.lock();
    guard.put_back_spent(ended);
    Some(payload)
}

/// The reading thread takes no lock: it learns of the slots only from the length of the storage. For Miri, which tries
/// the reorderings of a weak memory model.
#[test]
fn a_thread_that_looks_at_all_slots_races_their_growth() {
    let cells = Arc::new(Cells::new(0, ()));
    let looker = {
        let cells = cells.clone();
        std::thread::spawn(move || {
            let mut seen = 0;
            while seen < FIRST_CHUNK + 1 {
                seen = cells.used();
                for index in 0..seen {
                    assert!(cells.occupant(index).is_none_or(|at| at.index() == index));
                }
                std::thread::yield_now();
            }
        })
    };
    for number in 0..=FIRST_CHUNK {
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

/// A slot is aligned as its payload demands, even to more than a cache line.
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
    assert_eq!(layout.size(), 64 * crate::sync::FIRST_CHUNK as usize);
}
