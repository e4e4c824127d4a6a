//! G22, G25: a bounded check serves its own key; and an operation is told why it is examined. (What the checks of one
//! thread do is compared in `tests/model`.)

use crate::lost_completion::steps::{
    FIRST_CHECK, elsewhere, on_threads, park, park_hook, park_probe,
};
use crate::support::keys::by_number;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, lock, manual, quietly, within};
use futures::FutureExt;
use request_purgatory::purgatory::{Cause, Key};
use request_purgatory::{CheckBound, Take, Waits, Watch, threads::Reaper};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

fn for_one() -> CheckBound {
    CheckBound::at_most(1)
}

/// Lists of items, by key.
type Lists = Arc<Mutex<HashMap<u64, VecDeque<u64>>>>;

type Worker = Take<u64, (u64, u64)>;

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

fn waits<K: Key>() -> Waits<K> {
    let waits = Waits::builder("g25").reaper(Reaper::Manual).build();
    waits.expect("no threads to refuse")
}

fn poll(worker: &mut Worker) -> Option<(u64, u64)> {
    let taken = worker.now_or_never()?;
    Some(taken.expect("no end but an item").done())
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
            on_threads(2, |producer| {
                let queue = 1 + producer;
                for item in 0..2 + round % 2 {
                    push(&lists, queue, item);
                    waits.check_and_complete_with(&queue, for_one());
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

/// A key as a client writes it: equal to others that are written otherwise.
#[derive(Debug, Clone)]
struct Written(u64, &'static str);
by_number!(Written);

/// However the key of a check is written: an operation looks it up as it has written it itself.
#[test]
fn g25_an_operation_is_told_its_own_value_of_the_key() {
    let waits = waits::<Written>();
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

/// While a thread examines the first watcher for one key, another checks both keys: the first answers yes to the mark,
/// for no key in particular, so the check in progress goes on to the second watcher.
#[test]
fn g25_a_completion_for_another_reason_does_not_use_up_a_bound() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let told = Arc::new(Mutex::new(Vec::new()));
        let (weak, tell, mut asked) = (purgatory.downgrade(), told.clone(), 0);
        let first = Op::<u64>::new(NEVER_IN_A_TEST).told(move |cause| {
            asked += 1;
            lock(&tell).push(cause.key().copied());
            if asked == FIRST_CHECK {
                let all = weak.upgrade().expect("it is being examined");
                let completed = elsewhere(|| all.check_and_complete_with(&2, for_one()));
                assert_eq!(completed, 0, "it is held");
            }
            asked > FIRST_CHECK
        });
        park(&purgatory, first, [1, 2]);
        let second = Op::new(NEVER_IN_A_TEST).told(|cause| cause.key().is_some());
        park(&purgatory, second, [1]);
        assert_eq!(purgatory.check_and_complete_with(&1, for_one()), 2);
        assert_eq!(*lock(&told), [None, None, Some(1), None]);
    });
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
    let completed = purgatory.check_and_complete_with(&1, CheckBound::all().until_refused());
    assert_eq!(completed, 1);
    assert_eq!(purgatory.stats().parked, 0);
}

/// That one is examined once more by its own thread, and may find nothing for another reason.
#[test]
fn g22_a_bounded_check_passes_over_what_another_thread_examines() {
    for bound in [CheckBound::all().until_refused(), for_one()] {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let (held, stall) = Probe::new().stalled_op(NEVER_IN_A_TEST);
            park(&purgatory, held, [1, 2]);
            let (free, _) = park_probe(&purgatory, [1]);
            let holder = stall.check(&purgatory, 2);
            free.satisfy();
            assert_eq!(purgatory.check_and_complete_with(&1, bound), 1);
            assert_eq!(free.examinations(), 3);
            stall.end();
            assert_eq!(holder.join().expect("the holder"), 0);
        });
    }
}
