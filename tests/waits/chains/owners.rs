//! G14: futures that own one another end without a stack as deep as the chain is long.

use crate::support::{NEVER_IN_A_TEST, PATIENCE, on_a_stack_of, within};
use request_purgatory::future::{Awaited, WaitFuture, WaitOperation};
use request_purgatory::{Completion, DelayedOperation, Purgatory, Waits, threads::Reaper};
use std::cell::RefCell;
use std::thread;
use std::time::Duration;

const LINKS: u32 = 20_000;

/// Runs `test` on a small stack.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    within(PATIENCE, || on_a_stack_of(256, test));
}

/// The predicate of each of so many waits owns the future of the one before. Returns the last.
fn chain(waits: &Waits<u32>, links: u32) -> WaitFuture<WaitOperation<u32>, ()> {
    let wait = |key, owned: Option<WaitFuture<WaitOperation<u32>, ()>>| {
        waits.wait([key], NEVER_IN_A_TEST, move || {
            let _ = &owned;
            None
        })
    };
    (1..links).fold(wait(0, None), |last, key| wait(key, Some(last)))
}

#[test]
fn g14_a_chain_of_waits_that_own_one_another_needs_no_stack() {
    type End = fn(&Waits<u32>, WaitFuture<WaitOperation<u32>, ()>);
    const ENDS: [(&str, End); 5] = [
        ("drop", |_, last| drop(last)),
        ("cancel by key", |waits, last| {
            drop(waits.cancel_for_key(&(LINKS - 1)));
            drop(last);
        }),
        ("cancel by handle", |_, last| {
            drop(last.handle().and_then(|handle| handle.cancel()));
        }),
        ("force", |waits, last| {
            assert_eq!(waits.force_complete_for_key(&(LINKS - 1)), 1);
            drop(last);
        }),
        ("shutdown", |waits, last| {
            waits.shutdown();
            drop(last);
        }),
    ];
    for (name, end) in ENDS {
        on_a_small_stack(move || {
            let waits = Waits::builder("g14").reaper(Reaper::Manual).build();
            let waits = waits.expect("no threads to refuse");
            end(&waits, chain(&waits, LINKS));
            assert_eq!(waits.stats().parked, 0, "{name}");
        });
    }
}

thread_local! {
    static LAST: RefCell<Option<WaitFuture<WaitOperation<u32>, ()>>> = const { RefCell::new(None) };
}

/// What is to be dropped later waits in a local of the thread, which is gone when a local that is older is destroyed.
#[test]
fn g14_a_chain_in_a_local_of_a_thread_ends_with_the_thread() {
    within(PATIENCE, || {
        let waits = Waits::builder("g14").reaper(Reaper::Manual).build();
        let waits = waits.expect("no threads to refuse");
        let ending = waits.clone();
        let ended = thread::spawn(move || {
            // Touched first, it is destroyed last.
            LAST.set(None);
            LAST.set(Some(chain(&ending, 3)));
            // (This uses the library's queue.)
            drop(chain(&ending, 3));
        });
        ended.join().expect("it does not panic");
        assert_eq!((waits.stats().parked, waits.stats().cancelled), (0, 6));
    });
}

/// An operation that owns the future of another.
struct Link(
    #[expect(dead_code, reason = "it is there to be dropped")]
    Option<WaitFuture<Awaited<Link>, (Link, Completion)>>,
);

impl DelayedOperation for Link {
    type Key = u32;

    fn timeout(&self) -> Duration {
        NEVER_IN_A_TEST
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(self, _: Completion) {}
}

#[test]
fn g14_a_chain_of_operations_that_own_the_futures_of_others_needs_no_stack() {
    on_a_small_stack(|| {
        let purgatory = Purgatory::<Awaited<Link>>::builder("g14").reaper(Reaper::Manual);
        let purgatory = purgatory.build().expect("no threads to refuse");
        let mut last = None;
        for key in 0..LINKS {
            let next = purgatory.completion(Link(last.take()), [key]);
            last = Some(next.expect("there is room"));
        }
        drop(last);
        assert_eq!(purgatory.stats().parked, 0);
    });
}
