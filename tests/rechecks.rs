//! What rechecks cost: a target of its own with one test, because it counts the processor time of the whole process.
//! `.ci/release rechecks` prints it.

use request_purgatory::Waits;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testing::process::Process;

static RECHECKS: AtomicU64 = AtomicU64::new(0);

const LISTENERS: u64 = 10_000;
const INTERVAL: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(3);
/// Of one core: what the promise allows, and what a build without optimization may take.
const SHARE: f64 = if cfg!(debug_assertions) { 0.5 } else { 0.05 };

/// The processor time of this process so far, and how often its threads were woken from sleep.
fn spent() -> (Duration, u64) {
    let this = Process::this();
    let time = this.processor_time().expect("this is Linux");
    // One that ends meanwhile cannot be read.
    let sleeps = this.threads().filter_map(|thread| thread.sleeps());
    (time, sleeps.sum())
}

#[test]
fn g19_ten_thousand_rechecks_a_second_take_a_twentieth_of_a_core() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().expect("what tokio needs");
    runtime.block_on(async {
        let waits = Waits::<u64>::new("rechecks");
        let tasks = (0..LISTENERS).map(|key| {
            let mut listener = waits.listen([key], None).recheck_every(INTERVAL);
            tokio::spawn(async move {
                while listener.checked().await.is_ok() {
                    RECHECKS.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let tasks = tasks.collect::<Vec<_>>();
        // All have begun and have been woken once, and what is measured begins and ends between two wake-ups, which they
        // share.
        tokio::time::sleep(INTERVAL * 2 + INTERVAL / 2).await;
        let (before, count) = (spent(), RECHECKS.load(Ordering::Relaxed));
        tokio::time::sleep(MEASURED).await;
        let (after, count) = (spent(), RECHECKS.load(Ordering::Relaxed) - count);
        let share = (after.0 - before.0).as_secs_f64() / MEASURED.as_secs_f64();
        let woken = (after.1 - before.1) as f64 / MEASURED.as_secs_f64();
        println!(
            "{count} rechecks in {MEASURED:?}: {:.1} % of a core, {woken:.0} sleeps a second",
            share * 100.0
        );
        let is_enough = count > LISTENERS * 2;
        assert!(
            is_enough,
            "{count} rechecks: the machine is too slow to measure"
        );
        assert!(share < SHARE, "{share}");
        tasks.iter().for_each(|task| task.abort());
    });
}
