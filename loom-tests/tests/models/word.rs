//! The state word: every execution of the handoff between three threads.
#![allow(
    clippy::arc_with_non_send_sync,
    reason = "loom's threads are coroutines of one thread, and loom itself looks for races"
)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use loom_tests::exhaustive;
use request_purgatory::model::{Claim, Mark, State, Unreleased};
use std::sync::Arc;

/// A word, the operation that it guards (loom complains if two threads touch it at once), and what happens around it.
struct World {
    word: State,
    /// Whether the event was seen when the operation was examined.
    seen: UnsafeCell<bool>,
    /// Written by one thread and read by holders, with no ordering but the word's.
    event: AtomicBool,
    ended: AtomicUsize,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: {
                let word = State::vacant();
                assert_eq!(word.occupy(), 0);
                word
            },
            seen: UnsafeCell::new(false),
            event: AtomicBool::new(false),
            ended: AtomicUsize::new(0),
        })
    }

    fn examine(&self) {
        loop {
            self.seen.with_mut(|seen| {
                let happened = self.event.load(Ordering::Relaxed);
                // SAFETY: the caller holds the word; that this excludes others is what the model checks.
                unsafe { *seen |= happened };
            });
            match self.word.release(0, true) {
                Ok(_) => return,
                Err(Unreleased { ending: None, .. }) => {}
                Err(_) => return self.end(),
            }
        }
    }

    fn end(&self) {
        self.seen.with_mut(|_| {});
        self.word.end(0);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Catches: a mark that is not written because it stands there already; a release past a mark; a mark or a release
/// without its ordering.
#[test]
fn g01_holder_sees_the_event_behind_every_mark() {
    exhaustive(|| {
        let world = World::new();
        let checkers = [false, true].map(|happens| {
            let world = world.clone();
            thread::spawn(move || {
                if happens {
                    world.event.store(true, Ordering::Relaxed);
                }
                if world.word.claim_or_mark(0, Mark::Examine) == Claim::Held {
                    world.examine();
                }
            })
        });
        world.examine();
        for checker in checkers {
            checker.join().unwrap();
        }
        assert_eq!(world.word.claim_or_mark(0, Mark::Examine), Claim::Held);
        // SAFETY: held, and the other threads have ended.
        assert!(world.seen.with(|seen| unsafe { *seen }));
    });
}

/// Catches: an ending that two threads win, or that each leaves to the other.
#[test]
fn g05_checker_reaper_and_canceller_end_it_once() {
    exhaustive(|| {
        let world = World::new();
        let enders = [Mark::Expire, Mark::Cancel].map(|order| {
            let world = world.clone();
            thread::spawn(move || {
                if world.word.claim_or_mark(0, order) == Claim::Held {
                    world.end();
                }
            })
        });
        world.examine();
        for ender in enders {
            ender.join().unwrap();
        }
        assert_eq!(world.ended.load(Ordering::Relaxed), 1);
        assert_eq!(world.word.claim_or_mark(0, Mark::Examine), Claim::Stale);
    });
}

/// Catches: a mark left by a second canceller that undoes or repeats the first.
#[test]
fn g05_two_cancellers_and_the_parker() {
    exhaustive(|| {
        let world = World::new();
        let cancellers = [(); 2].map(|()| {
            let world = world.clone();
            thread::spawn(move || {
                if world.word.claim_or_mark(0, Mark::Cancel) == Claim::Held {
                    world.end();
                }
            })
        });
        world.examine();
        for canceller in cancellers {
            canceller.join().unwrap();
        }
        assert_eq!(world.ended.load(Ordering::Relaxed), 1);
    });
}

/// This thread ends the operation, and another one meets it in whatever state. `meets` tells whether it found that the
/// operation has ended: then it must see what the holder did to the operation. (That one is the spawned thread: of a
/// first thread that only loads, loom tries one execution.)
fn the_end_shows_what_came_before(meets: impl Fn(&State) -> bool + Copy + Send + Sync + 'static) {
    exhaustive(move || {
        let world = World::new();
        let late = {
            let world = world.clone();
            thread::spawn(move || {
                if meets(&world.word) {
                    // SAFETY: the holder wrote it before the end, and no thread writes it after.
                    assert!(world.seen.with(|seen| unsafe { *seen }));
                }
            })
        };
        // The event is there: what the holder writes is that it has seen it.
        world.event.store(true, Ordering::Relaxed);
        world.examine();
        if world.word.claim_or_mark(0, Mark::Cancel) == Claim::Held {
            world.end();
        }
        late.join().unwrap();
    });
}

/// Catches: an end without Release; a transition whose load is Relaxed, or whose failed exchange is.
#[test]
fn g05_a_canceller_that_comes_too_late_sees_what_the_ender_did() {
    the_end_shows_what_came_before(|word| match word.claim_or_mark(0, Mark::Cancel) {
        Claim::Stale => true,
        Claim::Marked => false,
        Claim::Held => {
            word.end(0);
            false
        }
    });
}

/// Catches: an end without Release; an `is_parked` without Acquire.
#[test]
fn g05_a_thread_that_finds_it_ended_sees_what_the_ender_did() {
    the_end_shows_what_came_before(|word| !word.is_parked(0));
}
