//! G1, G4, G5, G6, G16 for plain, resolved and ranked watches at once, under load: parks, checks in all ways, cancels,
//! forced ends, new deadlines, expiries, and keys resolved and released, on many threads.

use super::steps::{assert_empty, on_threads, park_probe, ranked, taken, up_to};
use crate::support::keys::{Census, Counted};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, lock, within};
use request_purgatory::{Completion, Handle, Purgatory, ResolvedKey, Watch};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const THREADS: u64 = 4;
const KEYS: u64 = 5;
const ROUNDS: u64 = 8;
const STEPS: usize = 1_500;

/// A parked operation, seen by the threads that may end it.
#[derive(Clone)]
struct Entry {
    probe: Arc<Probe>,
    handle: Handle<Op<Counted>>,
    /// Its keys, each with the rank that counts.
    ranks: Arc<BTreeMap<u64, Option<u64>>>,
}

struct Scene {
    purgatory: Purgatory<Op<Counted>>,
    census: Census,
    entries: Mutex<Vec<Entry>>,
    parks: AtomicUsize,
    taken_back: AtomicUsize,
}

struct Worker<'a> {
    scene: &'a Scene,
    random: fastrand::Rng,
    resolved: [Option<ResolvedKey<Op<Counted>>>; KEYS as usize],
}

impl Worker<'_> {
    fn step(&mut self) {
        let (number, rank) = (self.random.u64(..KEYS), self.random.u64(..4));
        match self.random.u64(..11) {
            0..4 => self.park(),
            4..7 => self.satisfy_and_check(),
            7 => self.cancel(),
            8 => self.use_a_handle(),
            9 => self.resolved[number as usize] = None,
            _ => self.check(number, Some(rank)),
        }
    }

    /// Resolves the key unless it is resolved already.
    fn resolved(&mut self, number: u64) -> ResolvedKey<Op<Counted>> {
        let scene = self.scene;
        self.resolved[number as usize]
            .get_or_insert_with(|| scene.purgatory.resolve(scene.census.key(number)))
            .clone()
    }

    fn park(&mut self) {
        let mut ranks = BTreeMap::<u64, Option<u64>>::new();
        let mut choices = Vec::new();
        for _ in 0..=self.random.u64(..4) {
            let number = self.random.u64(..KEYS);
            let rank = Some(self.random.u64(..4)).filter(|_| self.random.bool());
            let known = ranks.entry(number).or_insert(rank);
            *known = (*known).min(rank);
            let resolved = self.random.bool().then(|| self.resolved(number));
            choices.push((number, rank, resolved));
        }
        let watches = choices.iter().map(|(number, rank, resolved)| {
            let watch = match resolved {
                Some(key) => key.watch(),
                None => Watch::from(self.scene.census.key(*number)),
            };
            ranked(watch, *rank)
        });
        let probe = Probe::new();
        let timeout = match self.random.u64(..8) {
            0 => Duration::from_millis(self.random.u64(..3)),
            _ => NEVER_IN_A_TEST,
        };
        let purgatory = &self.scene.purgatory;
        let parked = purgatory.try_complete_else_watch(probe.op(timeout), watches);
        // It may have ended already, even before it was parked.
        if let Some(handle) = parked.expect("there is room").into_handle() {
            lock(&self.scene.entries).push(Entry {
                probe,
                handle,
                ranks: Arc::new(ranks),
            });
        }
        self.scene.parks.fetch_add(1, Ordering::SeqCst);
    }

    /// One of all, or of the few last ones, where the threads meet.
    fn pick(&mut self) -> Option<Entry> {
        let entries = lock(&self.scene.entries);
        let last = if self.random.bool() { 30 } else { usize::MAX };
        let first = entries.len().saturating_sub(last);
        let place = self.random.usize(first..entries.len().max(1));
        entries.get(place).cloned()
    }

    fn use_a_handle(&mut self) {
        let Some(entry) = self.pick() else { return };
        let timeout = Duration::from_millis(self.random.u64(..30));
        match self.random.u64(..10) {
            0..2 => _ = entry.handle.force_complete(),
            2..6 => _ = entry.handle.reschedule(timeout),
            _ => _ = entry.handle.check(),
        }
    }

    /// One check of one of its keys, in any way that meets it, and no later check.
    fn satisfy_and_check(&mut self) {
        let Some(entry) = self.pick() else { return };
        entry.probe.satisfy();
        let place = self.random.usize(..entry.ranks.len());
        let (&number, &rank) = entry.ranks.iter().nth(place).expect("it has a key");
        let least = rank.unwrap_or(0);
        let highest = match self.random.u64(..4) {
            0 => None,
            1 => Some(u64::MAX),
            _ => Some(least + self.random.u64(..2)),
        };
        self.check(number, highest);
    }

    fn check(&mut self, number: u64, highest: Option<u64>) {
        let purgatory = &self.scene.purgatory;
        let plain = self.scene.census.key(number);
        match (self.random.u64(..5), highest) {
            (0, None) => _ = purgatory.check_and_complete(&plain),
            (0, Some(rank)) => _ = purgatory.check_and_complete_with(&plain, up_to(rank)),
            (1, _) => purgatory.check_later(plain),
            (_, None) => _ = self.resolved(number).check_and_complete(),
            (_, Some(rank)) => _ = self.resolved(number).check_and_complete_with(up_to(rank)),
        }
    }

    fn cancel(&mut self) {
        let taken = if self.random.u64(..40) == 0 {
            let key = self.scene.census.key(self.random.u64(..KEYS));
            self.scene.purgatory.cancel_for_key(&key).len()
        } else {
            let cancelled = self.pick().and_then(|entry| entry.handle.cancel());
            usize::from(cancelled.is_some())
        };
        self.scene.taken_back.fetch_add(taken, Ordering::SeqCst);
    }
}

fn assert_round(scene: &Scene) {
    let (purgatory, census) = (&scene.purgatory, &scene.census);
    let entries = taken(&scene.entries);
    // No thread checks any more, but for what was left to the reaper: that comes before what it is given last. (Twice,
    // for examinations that are deferred once more.)
    for _ in 0..2 {
        let (last, _) = park_probe(purgatory, [census.key(KEYS)]);
        scene.parks.fetch_add(1, Ordering::SeqCst);
        last.satisfy();
        purgatory.check_later(census.key(KEYS));
        eventually("the end of the queue", || last.ending().is_some());
    }
    let parked = || entries.iter().filter(|entry| entry.handle.is_parked());
    eventually("the end of all that were satisfied and checked", || {
        !parked().any(|entry| entry.probe.is_ready())
    });
    eventually("the expiry of the short ones", || {
        let short = |left: Duration| left < NEVER_IN_A_TEST / 2;
        let expiring = |entry: &Entry| entry.handle.remaining().is_some_and(short);
        !entries.iter().any(expiring) && parked().count() == purgatory.stats().parked
    });
    let watches = parked().map(|entry| entry.ranks.len()).sum::<usize>();
    // The counts have an ending before its watches are cleared away.
    eventually("the clearing away of all others", || {
        purgatory.stats().watched == watches
    });
    let listed = purgatory.snapshot();
    let listed_keys = listed.iter().map(|op| op.keys.len()).sum::<usize>();
    assert_eq!((listed.len(), listed_keys), (parked().count(), watches));
    drop(listed);
    for number in 0..KEYS {
        let watching = parked().filter(|entry| entry.ranks.contains_key(&number));
        let watching = watching.count();
        let forced = purgatory.force_complete_for_key(&census.key(number));
        assert_eq!(forced, watching, "key {number}");
    }
    assert_empty(purgatory);
    // The reaper may still have the last one.
    eventually("the end of all keys", || census.count() == 0);
    eventually("the last completion", || {
        let is_let_go = |entry: &Entry| Arc::strong_count(&entry.probe) == 1;
        entries.iter().all(is_let_go)
    });
    let returned = entries.iter().filter(|entry| match entry.probe.ending() {
        None => true,
        Some(Completion::Satisfied | Completion::Expired | Completion::Cancelled) => false,
        other => panic!("{other:?}"),
    });
    let taken_back = scene.taken_back.swap(0, Ordering::SeqCst);
    assert_eq!(returned.count(), taken_back);
    let stats = purgatory.stats();
    let counted = stats.completed + stats.expired + stats.cancelled + stats.completed_at_once;
    let parks = scene.parks.load(Ordering::SeqCst) as u64;
    assert_eq!((counted, stats.panicked), (parks, 0));
}

/// The probes count hooks that overlap, and hooks after the end.
#[test]
fn g01_g04_g05_all_calls_meet_every_event_and_end_each_operation_once() {
    within(2 * PATIENCE, || {
        let scene = Scene {
            purgatory: Purgatory::new("mixed"),
            census: Census::default(),
            entries: Mutex::default(),
            parks: AtomicUsize::new(0),
            taken_back: AtomicUsize::new(0),
        };
        for round in 0..ROUNDS {
            on_threads(THREADS, |thread| {
                let mut worker = Worker {
                    scene: &scene,
                    random: fastrand::Rng::with_seed(1 + thread + THREADS * round),
                    resolved: Default::default(),
                };
                (0..STEPS).for_each(|_| worker.step());
            });
            assert_round(&scene);
        }
    });
}
