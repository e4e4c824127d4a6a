//! G1 to G6, G12, G14 to G16 on random schedules: several keys and ranks, several threads, hooks that panic and hooks
//! that call back.

use request_purgatory::{CheckBound, Handle, Purgatory, Watch, threads::Reaper, time::ManualClock};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;
use shuttle_tests::ledger::Page;
use shuttle_tests::operation::{Deed, Hasher, Operation, Place};
use shuttle_tests::{explore, lock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

const KEYS: u64 = 3;
/// Operations of each parking thread.
const EACH: usize = 4;
const RANKS: u64 = 3;

/// An operation, as others know it: before it parks, since an event may come while it does.
#[derive(Clone)]
struct Known {
    page: Arc<Page>,
    key: u64,
    rank: Option<u64>,
    /// Once it is parked.
    handle: Arc<std::sync::OnceLock<Handle<Operation, Hasher>>>,
}

#[derive(Clone)]
struct Stage {
    purgatory: Place,
    clock: ManualClock,
    pages: Arc<Mutex<Vec<Arc<Page>>>>,
    known: Arc<Mutex<Vec<Known>>>,
    more: Arc<std::sync::Mutex<Vec<Arc<Page>>>>,
    /// What hooks may do.
    deeds: fn() -> (Deed, Deed),
}

impl Stage {
    fn new(deeds: fn() -> (Deed, Deed)) -> Self {
        let clock = ManualClock::new();
        let purgatory = Purgatory::builder("shuttle")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .hasher(Hasher::default())
            .build()
            .expect("the settings are sound");
        Self {
            purgatory,
            clock,
            pages: Arc::default(),
            known: Arc::default(),
            more: Arc::default(),
            deeds,
        }
    }

    /// Parks a few, on some of the keys, in all ways.
    fn park(&self) {
        for _ in 0..EACH {
            let page = Page::new();
            lock(&self.pages).push(page.clone());
            let (on_examination, on_end) = (self.deeds)();
            let mut random = thread_rng();
            let op = Operation {
                page: page.clone(),
                timeout: Duration::from_millis(random.gen_range(0..4)),
                on_examination,
                on_end,
                purgatory: self.purgatory.downgrade(),
                more: self.more.clone(),
            };
            let first = random.gen_range(0..KEYS);
            let rank = random.gen_bool(0.5).then(|| random.gen_range(0..RANKS));
            let resolved = random.gen_bool(0.3).then(|| self.purgatory.resolve(first));
            let count = random.gen_range(1..=KEYS);
            let watches = (0..count).map(|step| {
                let watch = match &resolved {
                    Some(key) if step == 0 => key.watch(),
                    _ => Watch::from((first + step) % KEYS),
                };
                rank.into_iter().fold(watch, Watch::at_rank)
            });
            let handle = Arc::<std::sync::OnceLock<_>>::default();
            lock(&self.known).push(Known {
                page,
                key: first,
                rank,
                handle: handle.clone(),
            });
            let park = || self.purgatory.try_complete_else_watch(op, watches);
            match catch_unwind(AssertUnwindSafe(park)) {
                // A hook that panics in its own park unwinds to the caller.
                Err(payload) => assert_eq!(payload.downcast_ref(), Some(&"intended")),
                Ok(Err(rejected)) => rejected.into_inner().out(),
                Ok(Ok(watch)) => watch.into_handle().into_iter().for_each(|parked| {
                    let _ = handle.set(parked);
                }),
            }
        }
    }

    /// Lets the events of some happen, and checks.
    fn check(&self) {
        let resolved = self.purgatory.resolve(0);
        for _ in 0..2 * EACH {
            let Some(known) = self.pick() else {
                thread::yield_now();
                continue;
            };
            known.page.happen();
            let mut random = thread_rng();
            let up_to = random.gen_range(0..RANKS);
            match random.gen_range(0..5) {
                0 if known.rank.is_some_and(|rank| rank <= up_to) => {
                    self.purgatory
                        .check_and_complete_with(&known.key, CheckBound::all().up_to(up_to));
                }
                1 if known.handle.get().is_some() => {
                    known.handle.get().into_iter().for_each(|handle| {
                        handle.check();
                    });
                }
                2 => self.purgatory.check_later(known.key),
                3 if known.key == 0 => {
                    resolved.check_and_complete();
                }
                _ => {
                    self.purgatory.check_and_complete(&known.key);
                }
            }
            known.page.checked();
        }
    }

    /// Does all else that can be done to operations, and lets time pass.
    fn meddle(&self) {
        for _ in 0..2 * EACH {
            let handle = self.pick().and_then(|known| known.handle.get().cloned());
            let timeout = Duration::from_millis(thread_rng().gen_range(0..4));
            match (thread_rng().gen_range(0..9), handle) {
                (0, Some(handle)) => handle.cancel().into_iter().for_each(Operation::out),
                (1, Some(handle)) => drop(handle.force_complete()),
                (2 | 3, Some(handle)) => drop(handle.reschedule(timeout)),
                (4 | 5, _) => drop(self.purgatory.snapshot()),
                _ => {
                    self.clock.advance(Duration::from_millis(1));
                    self.purgatory.advance();
                }
            }
        }
    }

    fn pick(&self) -> Option<Known> {
        let known = lock(&self.known);
        let number = thread_rng().gen_range(0..known.len().max(1));
        known.get(number).cloned()
    }

    /// Two threads that park, two that check, one that meddles; then the counts are closed.
    fn play(self) {
        let parts: [fn(&Self); 5] = [
            Self::park,
            Self::check,
            Self::park,
            Self::check,
            Self::meddle,
        ];
        let threads = parts.map(|part| {
            let stage = self.clone();
            thread::spawn(move || part(&stage))
        });
        for thread in threads {
            thread.join().expect("no call panics");
        }
        self.conclude();
    }

    fn conclude(self) {
        // Deferred checks are made now.
        self.purgatory.advance();
        self.purgatory.advance();
        let mut pages = lock(&self.pages).clone();
        pages.iter().for_each(|page| page.assert_no_event_is_lost());
        let stats = self.purgatory.stats();
        self.purgatory.shutdown();
        let at_end = self.purgatory.stats();
        assert_eq!((at_end.parked, at_end.watched), (0, 0), "{at_end:?}");
        assert_eq!(self.purgatory.watched_keys(), 0);
        assert!(
            at_end.shut_down >= stats.parked as u64,
            "{stats:?}, {at_end:?}"
        );
        let more = self.more.lock().unwrap_or_else(PoisonError::into_inner);
        pages.extend(more.iter().cloned());
        drop(more);
        pages.iter().for_each(|page| page.assert_ended_once());
    }
}

fn none() -> (Deed, Deed) {
    (Deed::Nothing, Deed::Nothing)
}

/// One in four examinations or ends panics.
fn panics() -> (Deed, Deed) {
    let deed = |chance| match thread_rng().gen_bool(chance) {
        true => Deed::Panic,
        false => Deed::Nothing,
    };
    (deed(0.25), deed(0.25))
}

fn calls_back() -> (Deed, Deed) {
    let deed = || {
        let key = thread_rng().gen_range(0..KEYS);
        match thread_rng().gen_range(0..8) {
            0 | 1 => Deed::Check(key),
            2 => Deed::Cancel(key),
            3 => Deed::Park(key),
            _ => Deed::Nothing,
        }
    };
    (deed(), deed())
}

fn shuts_down() -> (Deed, Deed) {
    let deed = match thread_rng().gen_bool(0.1) {
        true => Deed::ShutDown,
        false => Deed::Nothing,
    };
    (Deed::Nothing, deed)
}

#[test]
fn g05_each_operation_ends_once_and_no_event_is_lost() {
    explore(|| Stage::new(none).play());
}

#[test]
fn g12_panics_of_hooks_harm_no_other_operation() {
    explore(|| Stage::new(panics).play());
}

#[test]
fn g14_hooks_may_call_the_purgatory() {
    explore(|| Stage::new(calls_back).play());
}

#[test]
fn g15_a_hook_may_shut_it_down() {
    explore(|| Stage::new(shuts_down).play());
}
