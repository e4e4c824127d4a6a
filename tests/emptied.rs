//! G28: what a purgatory keeps that was full. A target of its own with one test, because it counts the memory of the
//! whole process.

#[path = "support/allocated.rs"]
mod allocated;
#[path = "support/patient.rs"]
mod patient;

use allocated::allocated;
use patient::Op;
use request_purgatory::Purgatory;
use request_purgatory::threads::Reaper;
use request_purgatory::time::ManualClock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A reaper may take this long, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(3_600);

/// Fills a purgatory with operations on three of `keys` keys each, and empties it, three times. Returns the bytes for
/// each operation when it was full and when it was empty again, by round. A reaper of its own, on a thread of its own,
/// is waited for until no more is kept than `allowed`.
fn filled_and_emptied(keys: u64, by_expiry: bool, reaper: Reaper, allowed: f64) -> [(f64, f64); 3] {
    const PARKED: u64 = 100_000;
    let clock = ManualClock::new();
    let purgatory = Purgatory::<Op>::builder("g28").clock(clock.clone());
    // Without this, their number follows the processors, and the room that is left in their tables follows their number.
    // The tables of 8,192 shards are small.
    let purgatory = purgatory.map_shards(8_192);
    let is_manual = matches!(reaper, Reaper::Manual);
    let purgatory = purgatory.reaper(reaper).build();
    let purgatory = purgatory.expect("the settings are sound");
    let before = allocated();
    let each = || (allocated() - before) as f64 / PARKED as f64;
    let rounds = std::array::from_fn(|_| {
        for number in 0..PARKED {
            let watched = [0, 1, 2].map(|key| (3 * number + key) % keys);
            let parked = purgatory.try_complete_else_watch(Op(LONG), watched);
            assert!(parked.is_ok_and(|admission| admission.is_parked()));
        }
        let full = each();
        if !by_expiry {
            let all = (0..keys).map(|key| purgatory.cancel_for_key(&key).len());
            assert_eq!(all.sum::<usize>(), PARKED as usize);
        }
        clock.advance(2 * LONG);
        if is_manual {
            let expired = if by_expiry { PARKED as usize } else { 0 };
            assert_eq!(purgatory.advance(), expired);
        }
        let begun = Instant::now();
        while !is_manual && each() > allowed {
            assert!(begun.elapsed() < PATIENCE, "{} is kept", each());
            sleep(Duration::from_millis(1));
        }
        (full, each())
    });
    drop(purgatory);
    // (Threads of its own may end a moment later.)
    let left = allocated().saturating_sub(before);
    assert!(!is_manual || left < 1 << 16, "{left} bytes outlive it");
    rounds
}

/// What was full and is empty keeps the slots, for the operations to come, and gives all else back when the timer is
/// driven and has no deadline left: of many keys it keeps no more than of three. When it is dropped it keeps nothing.
#[test]
fn g28_what_was_full_and_is_empty_gives_memory_back() {
    for by_expiry in [false, true] {
        let few = filled_and_emptied(3, by_expiry, Reaper::Manual, 0.0);
        let many = filled_and_emptied(300_000, by_expiry, Reaper::Manual, 0.0);
        for (few, many) in few.iter().zip(&many) {
            assert!(
                many.0 > few.0 + 50.0,
                "what the keys take: {few:?} {many:?}"
            );
            assert!(many.1 < few.1 + 10.0, "what is kept: {few:?} {many:?}");
        }
        assert!(many[2].1 < many[0].1 + 1.0, "it grows: {many:?}");
        if by_expiry {
            filled_and_emptied(300_000, by_expiry, Reaper::Own, few[0].1 + 10.0);
        }
    }
}
