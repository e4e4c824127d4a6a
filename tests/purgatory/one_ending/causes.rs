//! G22, G25: a bounded check serves its own key; and an operation is told why it is examined.

use crate::lost_completion::steps::{FIRST_CHECK, elsewhere, park, park_hook};
use crate::support::bell::Bell;
use crate::support::keys::by_number;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, lock, manual, quietly, within};
use request_purgatory::{
    CheckBound, Completion, DelayedOperation, Purgatory, ResolvedKey, Waits, Watch, future::Taken,
    future::WaitFuture, future::WaitOperation, purgatory::Cause, threads::Reaper,
    time::ManualClock,
};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

fn for_one() -> CheckBound {
    CheckBound::at_most(1)
}

fn up_to(rank: u64) -> CheckBound {
    CheckBound::all().up_to(rank)
}

fn until_refused() -> CheckBound {
    CheckBound::all().until_refused()
}

/// Lists of items, by key.
type Lists = Arc<Mutex<HashMap<u64, VecDeque<u64>>>>;

type Worker = WaitFuture<WaitOperation<u64>, Taken<(u64, u64)>>;

/// Waits for an item of any of `keys`, and takes from the key that it is told, if it is told one.
fn worker(waits: &Waits<u64>, lists: &Lists, keys: &[u64]) -> Worker {
    let (takes, returns, own) = (lists.clone(), lists.clone(), keys.to_vec());
    waits.take(
        keys.to_vec(),
        None,
        move |cause| {
            let pop = |key: &u64| Some((*key, lock(&takes).get_mut(key)?.pop_front()?));
            match cause.key() {
                Some(key) => pop(key),
                None => own.iter().find_map(pop),
            }
        },
        move |(key, item)| lock(&returns).entry(key).or_default().push_front(item),
    )
}

fn push(lists: &Lists, key: u64, item: u64) {
    lock(lists).entry(key).or_default().push_back(item);
}

fn waits() -> Waits<u64> {
    let waits = Waits::builder("g25").reaper(Reaper::Manual).build();
    waits.expect("no threads to refuse")
}

fn poll(worker: &mut Worker) -> Option<(u64, u64)> {
    match Bell::new().poll(worker) {
        Poll::Ready(taken) => Some(taken.expect("no end but an item").done()),
        Poll::Pending => None,
    }
}

/// Redis: V waits on list 2, R on lists 4 and 2, S on list 2. V gets an item and is dropped; an item has come to list 4
/// that is not checked yet. The item that goes back is for list 2, so R must not be served from list 4 in its place.
#[test]
fn g25_an_item_given_back_goes_to_its_keys_next_waiter() {
    let (waits, lists) = (waits(), Lists::default());
    let served = worker(&waits, &lists, &[2]);
    let mut reader = worker(&waits, &lists, &[4, 2]);
    let mut sleeper = worker(&waits, &lists, &[2]);
    push(&lists, 2, 20);
    assert_eq!(waits.check_and_complete_with(&2, for_one()), 1);
    push(&lists, 4, 40);
    let checks = waits.stats().checks;
    drop(served);
    assert_eq!(waits.stats().checks, checks + 1, "it is offered to one");
    assert_eq!(poll(&mut reader), Some((2, 20)), "the next of list 2");
    assert_eq!(waits.check_and_complete_with(&4, for_one()), 0);
    push(&lists, 2, 21);
    assert_eq!(waits.check_and_complete_with(&2, for_one()), 1);
    assert_eq!(poll(&mut sleeper), Some((2, 21)));
}

/// Faktory: workers of queues 1 and 2, and of queue 2; two producers, each of which checks its own queue for one.
/// At rest no item lies beside a worker that could take it.
#[test]
fn g25_no_item_stays_beside_a_worker_that_waits_for_it() {
    within(PATIENCE, || {
        for round in 0..200 {
            let (waits, lists) = (waits(), Lists::default());
            let queues = |number| if number % 2 == 0 { &[1, 2][..] } else { &[2] };
            let workers = (0..6).map(|number| worker(&waits, &lists, queues(number)));
            let mut workers = workers.collect::<Vec<_>>();
            thread::scope(|scope| {
                for queue in [1, 2] {
                    let (waits, lists) = (&waits, &lists);
                    scope.spawn(move || {
                        for item in 0..2 + round % 2 {
                            push(lists, queue, item);
                            waits.check_and_complete_with(&queue, for_one());
                        }
                    });
                }
            });
            waits.advance();
            let left = |queue| lock(&lists).get(&queue).map_or(0, VecDeque::len);
            let waiting = |number: &usize| poll(&mut workers[*number]).is_none();
            let waiting = (0..6).filter(waiting).collect::<Vec<_>>();
            let of_both = waiting.iter().any(|number| number % 2 == 0);
            assert!(waiting.is_empty() || left(2) == 0, "{waiting:?}, {lists:?}");
            assert!(!of_both || left(1) == 0, "{waiting:?}, {lists:?}");
        }
    });
}

/// The keys of the causes for which operations were examined, but for parks.
type Told = Arc<Mutex<Vec<Option<u64>>>>;

fn take_told(told: &Told) -> Vec<Option<u64>> {
    std::mem::take(&mut *lock(told))
}

/// Writes down for which key it is examined, and says yes if `answer` does, but not in its park.
struct Picky {
    told: Told,
    answer: Box<dyn FnMut() -> bool + Send>,
}

impl Picky {
    fn new(told: &Told, answer: impl FnMut() -> bool + Send + 'static) -> Self {
        Self {
            told: told.clone(),
            answer: Box::new(answer),
        }
    }

    fn purgatory() -> (Purgatory<Self>, ManualClock) {
        let clock = ManualClock::new();
        let builder = Purgatory::builder("g25").reaper(Reaper::Manual);
        let purgatory = builder.clock(clock.clone()).build();
        (purgatory.expect("no threads to refuse"), clock)
    }
}

impl DelayedOperation for Picky {
    type Key = u64;

    fn timeout(&self) -> Duration {
        TICK
    }

    fn try_complete(&mut self) -> bool {
        panic!("it is asked for a cause")
    }

    fn try_complete_for(&mut self, cause: Cause<'_, u64>) -> bool {
        if cause.is_parking() {
            return false;
        }
        let key = cause.key().copied();
        assert!(key.is_none() || !cause.is_deadline());
        lock(&self.told).push(key);
        (self.answer)()
    }

    fn on_complete(self, _: Completion) {}
}

/// By key and by borrowed form, by resolution, nested and deferred.
#[test]
fn g25_an_operation_is_told_the_key_however_it_is_checked() {
    type Keys = [ResolvedKey<Picky>; 2];
    /// What the operation watches, by the resolved keys 1 and 2.
    type Row = (&'static str, fn(&Keys) -> Vec<Watch<'_, u64>>);
    const ROWS: [Row; 8] = [
        ("one", |_| vec![1.into()]),
        ("two", |_| vec![2.into(), 1.into()]),
        ("three", |_| vec![2.into(), 3.into(), 1.into()]),
        ("many", |_| (1..9).rev().map(Watch::from).collect()),
        ("resolved", |[one, _]| vec![one.watch()]),
        ("two resolved", |[one, two]| vec![two.watch(), one.watch()]),
        ("the other resolved", |[_, two]| vec![two.watch(), 1.into()]),
        ("ranked", |[one, _]| vec![one.watch().at_rank(5)]),
    ];
    let (purgatory, clock) = Picky::purgatory();
    let resolved = [1, 2].map(|key| purgatory.resolve(key));
    let told = Told::default();
    for (name, watches) in ROWS {
        // (A neighbour on the key, so that lists of one and of several are met.)
        for neighbours in 0..3 {
            let op = |told: &Told| Picky::new(told, || false);
            for _ in 0..neighbours {
                park(&purgatory, op(&Told::default()), watches(&resolved));
            }
            let handle = park(&purgatory, op(&told), watches(&resolved));
            purgatory.check_and_complete(&1);
            purgatory.check_and_complete_with(&1, up_to(5));
            resolved[0].check_and_complete();
            resolved[0].check_and_complete_with(CheckBound::at_most(9));
            purgatory.check_later(1);
            purgatory.advance();
            assert_eq!(take_told(&told), [Some(1); 5], "{name}, {neighbours}");
            handle.check();
            purgatory.check_and_complete_all([&1, &3]);
            purgatory.check_where(|key| *key == 1);
            assert_eq!(take_told(&told), [None; 3], "{name}, {neighbours}");
            clock.advance(2 * TICK);
            purgatory.advance();
            assert_eq!(take_told(&told), [None], "the deadline");
            assert!(purgatory.is_empty());
        }
    }
}

/// A key as a client writes it: equal to others that are written otherwise.
#[derive(Debug, Clone)]
struct Written(u64, &'static str);
by_number!(Written);

/// However the key of a check is written: an operation looks it up as it has written it itself.
#[test]
fn g25_an_operation_is_told_its_own_value_of_the_key() {
    let waits = Waits::<Written>::builder("g25").reaper(Reaper::Manual);
    let waits = waits.build().expect("no threads to refuse");
    let [key, other] = [1, 2].map(|number| Written(number, "own"));
    let [resolved, second] = [1, 2].map(|number| waits.resolve(Written(number, "resolved")));
    // Also where one that is asked before it has the key by its resolution.
    let asks = |cause: Cause<'_, Written>| cause.key().and(None::<()>);
    let _first = waits.take([resolved.watch()], None, asks, drop);
    for keys in [vec![key.clone()], vec![other.clone(), key], vec![other; 4]] {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = told.clone();
        let keys = keys.into_iter().chain([Written(1, "own")]);
        let _waits = waits.take(
            std::iter::once(second.watch()).chain(keys.map(Watch::from)),
            None,
            move |cause| {
                lock(&tell).extend(cause.key().map(|key| key.1));
                None::<()>
            },
            drop,
        );
        waits.check_and_complete(&Written(1, "checked"));
        waits.check_and_complete_with(&Written(1, "checked"), for_one());
        resolved.check_and_complete();
        resolved.check_and_complete_with(for_one());
        waits.check_later(Written(1, "later"));
        waits.advance();
        assert_eq!(*lock(&told), ["own"; 5]);
    }
}

/// A check that is made inside an examination, and whose turn comes later, goes as far as it was to go. That of several
/// keys checks each of them.
#[test]
fn g22_a_nested_check_keeps_its_key_and_its_bound() {
    type Check = fn(&Purgatory<Picky>) -> usize;
    fn plain(all: &Purgatory<Picky>, bound: CheckBound) -> usize {
        all.check_and_complete_with(&1, bound)
    }
    fn resolved(all: &Purgatory<Picky>, bound: CheckBound) -> usize {
        all.resolve(2).check_and_complete_with(bound)
    }
    const BOTH: [u64; 2] = [1, 4];
    /// A check, what each of five operations answers, and how often which keys are told. (There is no operation on
    /// other keys than 1, 2 and 4.)
    const ROWS: [(Check, bool, usize, &[u64]); 8] = [
        (|all| all.check_and_complete(&1), false, 5, &[1]),
        (|all| all.resolve(2).check_and_complete(), false, 5, &[2]),
        (|all| plain(all, CheckBound::at_most(2)), true, 2, &[1]),
        (|all| resolved(all, CheckBound::at_most(2)), true, 2, &[2]),
        (|all| plain(all, up_to(2)), false, 3, &[1]),
        (|all| plain(all, until_refused()), false, 1, &[1]),
        (|all| all.check_and_complete_all(&BOTH), false, 5, &BOTH),
        (|all| all.check_where(|key| key % 3 == 1), false, 5, &BOTH),
    ];
    for (row, (check, answer, times, keys)) in ROWS.into_iter().enumerate() {
        let (purgatory, _clock) = Picky::purgatory();
        let (told, resolved) = (Told::default(), purgatory.resolve(2));
        for rank in 0..5 {
            let watches = [Watch::from(1).at_rank(rank), resolved.watch(), 4.into()];
            park(&purgatory, Picky::new(&told, move || answer), watches);
        }
        let weak = purgatory.downgrade();
        let checks = move || weak.upgrade().is_some_and(|all| check(&all) == 0);
        park(&purgatory, Picky::new(&Told::default(), checks), [3]);
        assert_eq!(purgatory.check_and_complete(&3), 1, "{row}");
        let mut told = take_told(&told);
        told.sort_unstable();
        let expected = keys.iter().flat_map(|key| vec![Some(*key); times]);
        assert!(told.into_iter().eq(expected), "row {row}");
    }
}

/// While a thread examines the first watcher for one key, another checks both keys: the first answers yes to the mark,
/// for no key in particular, so the check in progress goes on to the second watcher.
#[test]
fn g25_a_completion_for_another_reason_does_not_use_up_a_bound() {
    within(PATIENCE, || {
        let (purgatory, _clock) = Picky::purgatory();
        let told = Told::default();
        let (weak, mut asked) = (purgatory.downgrade(), 0);
        let first = Picky::new(&told, move || {
            asked += 1;
            if asked == 1 {
                let all = weak.upgrade().expect("it is being examined");
                let completed = elsewhere(|| all.check_and_complete_with(&2, for_one()));
                assert_eq!(completed, 0, "it is held");
            }
            asked == 2
        });
        park(&purgatory, first, [1, 2]);
        park(&purgatory, Picky::new(&told, || true), [1]);
        assert_eq!(purgatory.check_and_complete_with(&1, for_one()), 2);
        assert_eq!(take_told(&told), [Some(1), None, Some(1)]);
    });
}

/// Operations that take one item each.
#[derive(Clone, Default)]
struct Items {
    left: Arc<Mutex<usize>>,
    looks: Arc<Mutex<usize>>,
}

impl Items {
    fn park(&self, purgatory: &Purgatory<Op>, watch: Watch<'_, u64>) {
        let items = self.clone();
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            *lock(&items.looks) += 1;
            let mut left = lock(&items.left);
            let some = *left > 0;
            *left -= usize::from(some);
            some
        });
        park(purgatory, op, [watch]);
    }

    /// What a check completes if there are so many items, and how often it looks for one.
    fn taken(&self, items: usize, check: impl Fn() -> usize) -> (usize, usize) {
        (*lock(&self.left), *lock(&self.looks)) = (items, 0);
        (check(), *lock(&self.looks))
    }
}

#[test]
fn g22_a_check_until_refused_stops_at_the_first_refusal() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let items = Items::default();
    (0..10).for_each(|_| items.park(&purgatory, 1.into()));
    let key = purgatory.resolve(1);
    let bound = until_refused();
    let plain = || purgatory.check_and_complete_with(&1, bound);
    let resolved = || key.check_and_complete_with(bound);
    let one = || key.check_and_complete_with(for_one().until_refused());
    assert_eq!(items.taken(3, plain), (3, 4));
    assert_eq!(items.taken(2, resolved), (2, 3));
    assert_eq!(items.taken(5, one), (1, 1));
    // It goes no further than to a rank, whichever was said first.
    for bound in [up_to(2).until_refused(), bound.up_to(2)] {
        *lock(&items.left) = 0;
        for rank in [1, 2, 2, 3] {
            items.park(&purgatory, Watch::from(2).at_rank(rank));
        }
        let ranked = || purgatory.check_and_complete_with(&2, bound);
        assert_eq!(items.taken(1, ranked), (1, 2));
        assert_eq!(items.taken(9, ranked), (2, 2));
        assert_eq!(purgatory.force_complete_for_key(&2), 1);
    }
}

/// An operation that panics refuses nothing: the item is for the next one.
#[test]
fn g12_a_check_until_refused_goes_on_behind_a_panic() {
    quietly();
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    for panics in [true, false] {
        park_hook(&purgatory, [1], move |_, nth| {
            let is_checked = nth >= FIRST_CHECK;
            assert!(!(is_checked && panics), "intended");
            is_checked
        });
    }
    let completed = purgatory.check_and_complete_with(&1, until_refused());
    assert_eq!(completed, 1);
    assert_eq!(purgatory.stats().parked, 0);
}

/// That one is examined once more by its own thread, and may find nothing for another reason.
#[test]
fn g22_a_bounded_check_passes_over_what_another_thread_examines() {
    for bound in [until_refused(), for_one()] {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let (held, stall) = Probe::new().stalled_op(NEVER_IN_A_TEST);
            let items = Items::default();
            park(&purgatory, held, [1, 2]);
            items.park(&purgatory, 1.into());
            let holder = stall.check(&purgatory, 2);
            let check = || purgatory.check_and_complete_with(&1, bound);
            assert_eq!(items.taken(1, check), (1, 1));
            stall.end();
            assert_eq!(holder.join().expect("the holder"), 0);
        });
    }
}
