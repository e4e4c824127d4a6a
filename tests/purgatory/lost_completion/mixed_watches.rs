//! G1, G4, G5, G6, G16 for plain, resolved and ranked watches at once, under load: parks, checks in all ways, cancels,
//! expiries, and keys resolved and released, on many threads.

use crate::support::keys::{Census, Counted};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, lock, within};
use request_purgatory::{CheckBound, Completion, Handle, Purgatory, ResolvedKey, Watch};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const THREADS: u64 = 4;
const KEYS: u64 = 5;
const ROUNDS: usize = 8;
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
    taken_back: AtomicUsize,
}

struct Worker {
    scene: Arc<Scene>,
    random: fastrand::Rng,
    resolved: Vec<Option<ResolvedKey<Op<Counted>>>>,
}

impl Worker {
    fn new(scene: &Arc<Scene>, seed: u64) -> Self {
        Self {
            scene: scene.clone(),
            random: fastrand::Rng::with_seed(seed),
            resolved: (0..KEYS).map(|_| None).collect(),
        }
    }

    fn step(&mut self) {
        match self.random.u64(..10) {
            0..4 => self.park(),
            4..7 => self.satisfy_and_check(),
            7 => self.cancel(),
            8 => {
                let number = self.random.u64(..KEYS);
                self.resolved[number as usize] = None;
            }
            _ => {
                let number = self.random.u64(..KEYS);
                let rank = self.random.u64(..4);
                self.check(number, Some(rank));
            }
        }
    }

    /// Resolves the key unless it is, and hands it back to be put away again.
    fn take_resolved(&mut self, number: u64) -> ResolvedKey<Op<Counted>> {
        let scene = &self.scene;
        let place = &mut self.resolved[number as usize];
        place
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
            let resolved = self.random.bool().then(|| self.take_resolved(number));
            choices.push((number, rank, resolved));
        }
        let watches = choices.iter().map(|(number, rank, resolved)| {
            let watch = match resolved {
                Some(key) => key.watch(),
                None => Watch::from(self.scene.census.key(*number)),
            };
            rank.iter().copied().fold(watch, Watch::at_rank)
        });
        let probe = Probe::new();
        let timeout = match self.random.u64(..8) {
            0 => Duration::from_millis(self.random.u64(..3)),
            _ => NEVER_IN_A_TEST,
        };
        let watch = self
            .scene
            .purgatory
            .try_complete_else_watch(probe.op(timeout), watches)
            .expect("there is room");
        // It may have ended already, even before it was parked.
        if let Some(handle) = watch.into_handle() {
            let ranks = Arc::new(ranks);
            lock(&self.scene.entries).push(Entry {
                probe,
                handle,
                ranks,
            });
        }
    }

    fn pick(&mut self) -> Option<Entry> {
        let entries = lock(&self.scene.entries);
        let place = self.random.usize(..entries.len().max(1));
        entries.get(place).cloned()
    }

    /// One check of one of its keys, in any way that meets it, and no later check.
    fn satisfy_and_check(&mut self) {
        let Some(entry) = self.pick() else { return };
        entry.probe.satisfy();
        let place = self.random.usize(..entry.ranks.len());
        let (&number, &rank) = entry.ranks.iter().nth(place).expect("it has a key");
        let least = rank.unwrap_or(0);
        let up_to = match self.random.u64(..4) {
            0 => None,
            1 => Some(u64::MAX),
            _ => Some(least + self.random.u64(..2)),
        };
        self.check(number, up_to);
    }

    fn check(&mut self, number: u64, up_to: Option<u64>) {
        let purgatory = self.scene.purgatory.clone();
        let plain = self.scene.census.key(number);
        match (self.random.u64(..5), up_to) {
            (0, None) => purgatory.check_and_complete(&plain),
            (0, Some(rank)) => {
                purgatory.check_and_complete_with(&plain, CheckBound::all().up_to(rank))
            }
            (1, _) => {
                purgatory.check_later(plain);
                0
            }
            (_, None) => self.take_resolved(number).check_and_complete(),
            (_, Some(rank)) => self
                .take_resolved(number)
                .check_and_complete_with(CheckBound::all().up_to(rank)),
        };
    }

    fn cancel(&mut self) {
        let taken = match self.random.u64(..40) {
            0 => {
                let key = self.scene.census.key(self.random.u64(..KEYS));
                self.scene.purgatory.cancel_for_key(&key).len()
            }
            _ => match self.pick() {
                Some(entry) => usize::from(entry.handle.cancel().is_some()),
                None => 0,
            },
        };
        self.scene.taken_back.fetch_add(taken, Ordering::SeqCst);
    }
}

fn assert_round(scene: &Scene) {
    let purgatory = &scene.purgatory;
    let entries = std::mem::take(&mut *lock(&scene.entries));
    // No thread checks any more, but for what was left to the reaper: that comes before what it is given last. (Twice,
    // for examinations that are deferred once more.)
    for _ in 0..2 {
        let last = Probe::new();
        purgatory
            .try_complete_else_watch(last.op(NEVER_IN_A_TEST), [scene.census.key(KEYS)])
            .expect("there is room");
        last.satisfy();
        purgatory.check_later(scene.census.key(KEYS));
        eventually("the end of the queue", || last.ending().is_some());
    }
    eventually("the end of all that were satisfied and checked", || {
        let lost = |entry: &&Entry| entry.probe.is_ready() && entry.handle.is_parked();
        entries.iter().filter(lost).count() == 0
    });
    eventually("the expiry of the short ones", || {
        let short = |left: Duration| left < NEVER_IN_A_TEST / 2;
        let expiring = |entry: &Entry| entry.handle.remaining().is_some_and(short);
        let parked = entries.iter().filter(|entry| entry.handle.is_parked());
        !entries.iter().any(expiring) && parked.count() == purgatory.stats().parked
    });
    let parked = entries.iter().filter(|entry| entry.handle.is_parked());
    let parked = parked.collect::<Vec<_>>();
    let watches = parked.iter().map(|entry| entry.ranks.len()).sum::<usize>();
    // The counts have an ending before its watches are cleared away.
    eventually("the clearing away of all others", || {
        purgatory.stats().watched == watches
    });
    let listed = purgatory.snapshot();
    assert_eq!(listed.len(), parked.len());
    assert_eq!(
        listed.iter().map(|op| op.keys.len()).sum::<usize>(),
        watches
    );
    drop(listed);
    for number in 0..KEYS {
        let expected = parked
            .iter()
            .filter(|entry| entry.ranks.contains_key(&number));
        let expected = expected.filter(|entry| entry.handle.is_parked()).count();
        assert_eq!(
            purgatory.force_complete_for_key(&scene.census.key(number)),
            expected
        );
    }
    assert_eq!(
        (purgatory.stats().parked, purgatory.stats().watched),
        (0, 0)
    );
    assert_eq!(purgatory.watched_keys(), 0);
    // The reaper may still have the last one.
    eventually("the end of all keys", || scene.census.count() == 0);
    eventually("the last completion", || {
        entries
            .iter()
            .all(|entry| Arc::strong_count(&entry.probe) == 1)
    });
    let taken = entries.iter().filter(|entry| match entry.probe.ending() {
        None => true,
        Some(Completion::Satisfied | Completion::Expired | Completion::Cancelled) => false,
        other => panic!("{other:?}"),
    });
    let taken = taken.count();
    assert_eq!(taken, scene.taken_back.swap(0, Ordering::SeqCst));
    assert_eq!(purgatory.stats().panicked, 0);
}

#[test]
fn g01_every_event_is_met_among_plain_resolved_and_ranked_watches() {
    within(2 * PATIENCE, || {
        let scene = Arc::new(Scene {
            purgatory: Purgatory::new("mixed"),
            census: Census::default(),
            entries: Mutex::default(),
            taken_back: AtomicUsize::new(0),
        });
        for round in 0..ROUNDS as u64 {
            let workers = (0..THREADS).map(|thread| {
                let mut worker = Worker::new(&scene, 1 + thread + THREADS * round);
                thread::spawn(move || (0..STEPS).for_each(|_| worker.step()))
            });
            for worker in workers.collect::<Vec<_>>() {
                worker.join().expect("nothing panics");
            }
            assert_round(&scene);
        }
    });
}
