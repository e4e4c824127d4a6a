//! Waits with a callback.

use crate::chains::drops::Bomb;
use crate::support::{NEVER_IN_A_TEST, lock};
use crate::{Slot, assert_empty, by_hand, put, take};
use request_purgatory::future::{WaitError, WaitOperation};
use request_purgatory::{Handle, Waits, threads::Reaper};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

type Told = Arc<Mutex<Vec<Result<u8, WaitError>>>>;

/// Waits for what lies in `slot`, and notes what it is told.
fn wait(waits: &Waits<u64>, slot: &Slot<u8>) -> (Option<Handle<WaitOperation<u64>>>, Told) {
    let told = Told::default();
    let tells = told.clone();
    let then = move |result| lock(&tells).push(result);
    (waits.wait_then([1], SECOND, take(slot), then), told)
}

fn told(told: &Told) -> Vec<Result<u8, WaitError>> {
    lock(told).clone()
}

#[test]
fn g05_a_callback_is_told_its_end_once() {
    let (waits, clock) = by_hand();
    let slot = Slot::default();
    put(&slot, 1);
    let (handle, at_once) = wait(&waits, &slot);
    assert!(handle.is_none());
    assert_eq!(told(&at_once), [Ok(1)]);

    let (handle, by_a_check) = wait(&waits, &slot);
    let _ = handle;
    assert_eq!(waits.check_and_complete(&1), 0);
    assert_eq!(told(&by_a_check), []);
    put(&slot, 2);
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!(told(&by_a_check), [Ok(2)]);

    let (_, expired) = wait(&waits, &slot);
    clock.advance(SECOND);
    assert_eq!(waits.advance(), 1);
    assert_eq!(told(&expired), [Err(WaitError::Expired)]);

    let (_, found_at_the_deadline) = wait(&waits, &slot);
    put(&slot, 3);
    clock.advance(SECOND);
    assert_eq!(waits.advance(), 1);
    assert_eq!(told(&found_at_the_deadline), [Ok(3)]);

    let (handle, cancelled) = wait(&waits, &slot);
    let operation = handle.expect("it parks").cancel();
    assert_eq!(told(&cancelled), []);
    drop(operation);
    assert_eq!(told(&cancelled), [Err(WaitError::Cancelled)]);

    let (_, forced) = wait(&waits, &slot);
    waits.force_complete_for_key(&1);
    assert_eq!(told(&forced), [Err(WaitError::Forced)]);

    let (_, shut_down) = wait(&waits, &slot);
    waits.shutdown();
    assert_eq!(told(&shut_down), [Err(WaitError::ShutDown)]);
    let (_, too_late) = wait(&waits, &slot);
    assert_eq!(told(&too_late), [Err(WaitError::ShutDown)]);
    assert_empty(&waits);
}

#[test]
fn g12_a_callback_is_told_of_a_rejection_and_of_a_panic() {
    let builder = Waits::<u64>::builder("full").reaper(Reaper::Manual);
    let waits = builder.max_parked(1).build().expect("no thread to refuse");
    let slot = Slot::default();
    let (_, parked) = wait(&waits, &slot);
    let (_, full) = wait(&waits, &slot);
    assert_eq!(told(&full), [Err(WaitError::Full)]);
    drop(waits);
    assert_eq!(told(&parked), [Err(WaitError::ShutDown)]);

    let (waits, _clock) = by_hand();
    let (told, mut examinations) = (Told::default(), 0);
    let tells = told.clone();
    let predicate = move || -> Option<u8> {
        examinations += 1;
        assert!(examinations <= 2, "on purpose");
        None
    };
    waits.wait_then([1], None, predicate, move |result| {
        lock(&tells).push(result)
    });
    waits.check_and_complete(&1);
    assert_eq!(*lock(&told), [Err(WaitError::Panicked)]);
    assert_eq!(waits.stats().panicked, 1);
    assert_empty(&waits);
}

/// The predicate is dropped first. Where its destructor and the callback panic, both run, and the process lives.
#[test]
fn g12_a_callback_is_told_although_the_destructor_of_its_predicate_panics() {
    let (waits, _clock) = by_hand();
    let (slot, told) = (Slot::default(), Told::default());
    let (tells, mut finds, bomb) = (told.clone(), take(&slot), Bomb);
    let predicate = move || {
        let _ = &bomb;
        finds()
    };
    waits.wait_then([1], None, predicate, move |result| {
        lock(&tells).push(result);
        resume_unwind(Box::new("intended"));
    });
    put(&slot, 7);
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!(*lock(&told), [Ok(7)]);
    assert_empty(&waits);

    // In the call itself, the panic is the caller's.
    put(&slot, 8);
    let at_once = || waits.wait_then([1], None, take(&slot), |_| resume_unwind(Box::new("own")));
    let panicked = waits.stats().panicked;
    let own = catch_unwind(AssertUnwindSafe(at_once));
    assert_eq!(
        (own.is_err(), waits.stats().panicked - panicked),
        (false, 1)
    );
}

/// Waits that begin in callbacks do not nest: a chain of them needs no stack.
#[test]
fn g14_a_chain_of_callbacks_that_wait_needs_no_stack() {
    fn next(waits: &Waits<u64>, left: u32) {
        let again = waits.clone();
        waits.wait_then(
            [1],
            NEVER_IN_A_TEST,
            || Some(()),
            move |_| {
                if left > 0 {
                    next(&again, left - 1);
                }
            },
        );
    }
    let (waits, _clock) = by_hand();
    crate::support::on_a_stack_of(256, move || next(&waits, 100_000));
}
