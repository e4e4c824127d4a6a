//! Numbers of threads: what a thread writes under its number without a locked instruction, the next one sees.

use loom::cell::UnsafeCell;
use loom::thread;
use loom_tests::bounded;
use request_purgatory::model::Numbers;
use std::sync::Arc;

/// Counters that only the thread with their number writes, with plain loads and stores.
#[derive(Default)]
struct Counters([UnsafeCell<u32>; 3]);

// SAFETY: what the model is to show: no two threads have one number at the same time.
unsafe impl Sync for Counters {}

/// Catches: a number that two threads have at the same time, or that a thread gives back before it has done its work.
#[test]
fn g16_counters_go_from_thread_to_thread_with_their_number() {
    bounded(|| {
        let numbers = Arc::new(Numbers::default());
        let counters = Arc::new(Counters::default());
        let threads = [(); 2].map(|()| {
            let (numbers, counters) = (numbers.clone(), counters.clone());
            thread::spawn(move || {
                let number = numbers.take();
                // SAFETY: as above; loom complains if it is not so.
                counters.0[number as usize].with_mut(|counter| unsafe { *counter += 1 });
                numbers.put_back(number);
            })
        });
        let number = numbers.take();
        // SAFETY: as above.
        counters.0[number as usize].with_mut(|counter| unsafe { *counter += 1 });
        numbers.put_back(number);
        for thread in threads {
            thread.join().unwrap();
        }
        // SAFETY: the threads have ended.
        let count = |counter: &UnsafeCell<u32>| counter.with(|counter| unsafe { *counter });
        assert_eq!(counters.0.iter().map(count).sum::<u32>(), 3);
    });
}
