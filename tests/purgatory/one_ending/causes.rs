//! G25: a bounded check serves its own key. And: what an operation is told about why it is examined.

use crate::support::keys::{Acting, by_number};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, manual, quietly, within};
use request_purgatory::threads::Reaper;
use request_purgatory::{
    CheckBound, Completion, DelayedOperation, Handle, Purgatory, Waits, Watch, future::Taken,
    future::WaitFuture, future::WaitOperation, purgatory::Cause,
};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::Duration;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}

const TICK: Duration = Duration::from_millis(1);

/// Lists of items, by key.
type Lists = Arc<Mutex<HashMap<u64, VecDeque<u64>>>>;

/// Waits for an item of any of `keys`, and takes from the key that it is told, if it is told one.
fn worker(
    waits: &Waits<u64>,
    lists: &Lists,
    keys: &[u64],
) -> WaitFuture<WaitOperation<u64>, Taken<(u64, u64)>> {
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

fn poll(take: &mut WaitFuture<WaitOperation<u64>, Taken<(u64, u64)>>) -> Option<(u64, u64)> {
    use std::future::Future;
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(take).poll(&mut cx) {
        std::task::Poll::Ready(taken) => Some(taken.expect("no end but an item").done()),
        std::task::Poll::Pending => None,
    }
}

/// Redis: V waits on list 2, R on lists 4 and 2, S on list 2. V gets an item and is dropped; an item has come to list 4
/// that is not checked yet. The item that goes back is for list 2, so R must not be served from list 4 in its place.
#[test]
fn g25_an_item_that_goes_back_is_for_the_next_waiter_of_its_key() {
    let (waits, lists) = (waits(), Lists::default());
    let served = worker(&waits, &lists, &[2]);
    let mut reader = worker(&waits, &lists, &[4, 2]);
    let mut sleeper = worker(&waits, &lists, &[2]);
    push(&lists, 2, 20);
    assert_eq!(waits.check_and_complete_with(&2, CheckBound::at_most(1)), 1);
    push(&lists, 4, 40);
    let checks = waits.stats().checks;
    drop(served);
    assert_eq!(waits.stats().checks, checks + 1, "it is offered to one");
    assert_eq!(poll(&mut reader), Some((2, 20)), "the next of list 2");
    assert_eq!(waits.check_and_complete_with(&4, CheckBound::at_most(1)), 0);
    push(&lists, 2, 21);
    assert_eq!(waits.check_and_complete_with(&2, CheckBound::at_most(1)), 1);
    assert_eq!(poll(&mut sleeper), Some((2, 21)));
}

/// Faktory: workers of queues 1 and 2, and of queue 2; two producers, each of which checks its own queue for one.
/// At rest no item lies beside a worker that could take it.
#[test]
fn g25_no_item_stays_beside_a_worker_that_waits_for_it() {
    within(PATIENCE, || {
        for round in 0..200 {
            let (waits, lists) = (waits(), Lists::default());
            let mut workers = (0..6)
                .map(|number| match number % 2 {
                    0 => worker(&waits, &lists, &[1, 2]),
                    _ => worker(&waits, &lists, &[2]),
                })
                .collect::<Vec<_>>();
            let producers = [1, 2].map(|queue| {
                let (waits, lists) = (waits.clone(), lists.clone());
                thread::spawn(move || {
                    for item in 0..2 + round % 2 {
                        push(&lists, queue, item);
                        waits.check_and_complete_with(&queue, CheckBound::at_most(1));
                    }
                })
            });
            for producer in producers {
                producer.join().expect("a producer");
            }
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

/// Completes when it is asked for key 1, or for no key.
struct Picky {
    told: Arc<Mutex<Vec<Option<u64>>>>,
    examined: Box<dyn Fn() -> bool + Send>,
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
        if !cause.is_parking() {
            let key = cause.key().copied();
            assert!(key.is_none() || !cause.is_deadline());
            lock(&self.told).push(key);
        }
        !cause.is_parking() && (self.examined)()
    }

    fn on_complete(self, _: Completion) {}
}

/// By key and by borrowed form, by resolution, nested and deferred; by operations that watch one key, several, many,
/// resolved ones and ranked ones.
#[test]
fn g25_an_operation_is_told_the_key_however_it_is_checked() {
    let (purgatory, clock) = manual_of::<Picky>();
    let [one, two] = [1, 2].map(|key| purgatory.resolve(key));
    type Park<'a> = Box<dyn Fn(Picky) -> Handle<Picky> + 'a>;
    let parked = |parked: Result<request_purgatory::purgatory::Admission<Picky>, _>| {
        let parked: Option<Handle<_>> = parked.ok().and_then(|parked| parked.into_handle());
        parked.expect("it cannot complete yet")
    };
    let parks: [Park<'_>; 8] = [
        Box::new(|op| parked(purgatory.try_complete_else_watch(op, [1]))),
        Box::new(|op| parked(purgatory.try_complete_else_watch(op, [2, 1]))),
        Box::new(|op| parked(purgatory.try_complete_else_watch(op, [2, 3, 1]))),
        Box::new(|op| parked(purgatory.try_complete_else_watch(op, (1..9).rev()))),
        Box::new(|op| parked(purgatory.try_complete_else_watch(op, [one.watch()]))),
        Box::new(|op| parked(purgatory.try_complete_else_watch(op, [two.watch(), one.watch()]))),
        Box::new(|op| parked(purgatory.try_complete_else_watch(op, [two.watch(), 1.into()]))),
        Box::new(|op| parked(purgatory.try_complete_else_watch(op, [one.watch().at_rank(5)]))),
    ];
    let told = Arc::new(Mutex::new(Vec::new()));
    for (number, park) in parks.iter().enumerate() {
        // (A neighbour on the key, so that lists of one and of several are met.)
        for neighbours in 0..3 {
            let op = |told: &Arc<_>| Picky {
                told: Arc::clone(told),
                examined: Box::new(|| false),
            };
            let others = (0..neighbours).map(|_| park(op(&Arc::default())));
            let others = others.collect::<Vec<_>>();
            let handle = park(op(&told));
            purgatory.check_and_complete(&1);
            purgatory.check_and_complete_with(&1, CheckBound::all().up_to(5));
            one.check_and_complete();
            one.check_and_complete_with(CheckBound::at_most(9));
            purgatory.check_later(1);
            purgatory.advance();
            let keys = std::mem::take(&mut *lock(&told));
            assert_eq!(keys, [Some(1); 5], "{number}, {neighbours}");
            handle.check();
            purgatory.check_and_complete_all([&1, &3]);
            purgatory.check_where(|key| *key == 1);
            let keys = std::mem::take(&mut *lock(&told));
            assert_eq!(keys, [None; 3], "{number}, {neighbours}");
            drop(others);
            clock.advance(2 * TICK);
            purgatory.advance();
            assert_eq!(std::mem::take(&mut *lock(&told)), [None], "the deadline");
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
        waits.check_and_complete_with(&Written(1, "checked"), CheckBound::at_most(1));
        resolved.check_and_complete();
        resolved.check_and_complete_with(CheckBound::at_most(1));
        waits.check_later(Written(1, "later"));
        waits.advance();
        assert_eq!(*lock(&told), ["own"; 5]);
    }
}

/// A check that is made inside an examination, and whose turn comes later, goes as far as it was to go. That of several
/// keys checks each of them.
#[test]
fn g22_a_nested_check_keeps_its_key_and_its_bound() {
    /// A check (there is no operation on other keys than 1, 2 and 4), what the operations answer, and what they are told.
    type Row = (fn(&Purgatory<Picky>) -> usize, bool, &'static [u64]);
    const ROWS: [Row; 8] = [
        (|all| all.check_and_complete(&1), false, &[1; 5]),
        (|all| all.resolve(2).check_and_complete(), false, &[2; 5]),
        (
            |all| all.check_and_complete_with(&1, CheckBound::at_most(2)),
            true,
            &[1; 2],
        ),
        (
            |all| {
                all.resolve(2)
                    .check_and_complete_with(CheckBound::at_most(2))
            },
            true,
            &[2; 2],
        ),
        (
            |all| all.check_and_complete_with(&1, CheckBound::all().up_to(2)),
            false,
            &[1; 3],
        ),
        (
            |all| all.check_and_complete_with(&1, CheckBound::all().until_refused()),
            false,
            &[1],
        ),
        (
            |all| all.check_and_complete_all([&1, &4]),
            false,
            &[1, 1, 1, 1, 1, 4, 4, 4, 4, 4],
        ),
        (
            |all| all.check_where(|key| matches!(key, 1 | 4)),
            false,
            &[1, 1, 1, 1, 1, 4, 4, 4, 4, 4],
        ),
    ];
    for (row, (check, answer, expected)) in ROWS.into_iter().enumerate() {
        let (purgatory, _clock) = manual_of::<Picky>();
        let (told, resolved) = (Arc::new(Mutex::new(Vec::new())), purgatory.resolve(2));
        for rank in 0..5 {
            let op = Picky {
                told: told.clone(),
                examined: Box::new(move || answer),
            };
            let watches = [Watch::from(1).at_rank(rank), resolved.watch(), 4.into()];
            assert!(purgatory.try_complete_else_watch(op, watches).is_ok());
        }
        let weak = purgatory.downgrade();
        let checking = Picky {
            told: Arc::default(),
            examined: Box::new(move || weak.upgrade().is_some_and(|all| check(&all) == 0)),
        };
        assert!(purgatory.try_complete_else_watch(checking, [3]).is_ok());
        assert_eq!(purgatory.check_and_complete(&3), 1);
        let mut told = std::mem::take(&mut *lock(&told));
        told.sort_unstable();
        assert!(
            told.into_iter().eq(expected.iter().copied().map(Some)),
            "{row}"
        );
    }
}

fn manual_of<P: DelayedOperation>() -> (Purgatory<P>, request_purgatory::time::ManualClock) {
    let clock = request_purgatory::time::ManualClock::new();
    let builder = Purgatory::builder("g25").reaper(Reaper::Manual);
    let purgatory = builder.clock(clock.clone()).build();
    (purgatory.expect("no threads to refuse"), clock)
}

/// While a thread examines the first watcher for one key, another checks both keys: the first answers yes to the mark,
/// for no key in particular, so the check in progress goes on to the second watcher.
#[test]
fn g25_a_completion_for_another_reason_does_not_use_up_a_bound() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual_of::<Picky>();
        let told = Arc::new(Mutex::new(Vec::new()));
        let (entered, inside) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let asked = Mutex::new(0);
        let first = Picky {
            told: told.clone(),
            examined: Box::new(move || {
                let mut asked = lock(&asked);
                *asked += 1;
                if *asked == 1 {
                    entered.send(()).expect("the test waits for it");
                    lock(&wait).recv().expect("the test lets it go on");
                }
                *asked == 2
            }),
        };
        let second = Picky {
            told: told.clone(),
            examined: Box::new(|| true),
        };
        assert!(purgatory.try_complete_else_watch(first, [1, 2]).is_ok());
        assert!(purgatory.try_complete_else_watch(second, [1]).is_ok());
        let checker = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.check_and_complete_with(&1, CheckBound::at_most(1)))
        };
        inside.recv().expect("the first is examined");
        assert_eq!(
            purgatory.check_and_complete_with(&2, CheckBound::at_most(1)),
            0
        );
        go_on.send(()).expect("the first waits");
        assert_eq!(checker.join().expect("the checker"), 2);
        assert_eq!(*lock(&told), [Some(1), None, Some(1)]);
    });
}

#[test]
fn g22_a_check_until_refused_stops_at_the_first_refusal() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let items = Arc::new(Mutex::new(0));
    let looks = Arc::new(Mutex::new(0));
    let park = |watch: Watch<'static, u64>| {
        let (items, looks) = (items.clone(), looks.clone());
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            *lock(&looks) += 1;
            let mut items = lock(&items);
            let some = *items > 0;
            *items -= i32::from(some);
            some
        });
        assert!(purgatory.try_complete_else_watch(op, [watch]).is_ok());
    };
    (0..10).for_each(|_| park(1.into()));
    *lock(&looks) = 0;
    let key = purgatory.resolve(1);
    let bound = CheckBound::all().until_refused();
    *lock(&items) = 3;
    assert_eq!(
        (purgatory.check_and_complete_with(&1, bound), *lock(&looks)),
        (3, 4)
    );
    *lock(&items) = 2;
    assert_eq!((key.check_and_complete_with(bound), *lock(&looks)), (2, 7));
    *lock(&items) = 5;
    assert_eq!(
        key.check_and_complete_with(CheckBound::at_most(1).until_refused()),
        1
    );
    // It goes no further than to a rank, whichever was said first.
    let below = CheckBound::all().up_to(2);
    for bound in [below.until_refused(), bound.up_to(2)] {
        *lock(&items) = 0;
        for rank in [1, 2, 2, 3] {
            park(Watch::from(2).at_rank(rank));
        }
        for (there, completed, looked) in [(1, 1, 2), (9, 2, 2)] {
            (*lock(&items), *lock(&looks)) = (there, 0);
            let found = purgatory.check_and_complete_with(&2, bound);
            assert_eq!((found, *lock(&looks)), (completed, looked));
        }
        assert_eq!(purgatory.force_complete_for_key(&2), 1);
    }
}

/// An operation that panics refuses nothing: the item is for the next one.
#[test]
fn g12_a_check_until_refused_goes_on_behind_an_operation_that_panics() {
    quietly();
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    for panics in [true, false] {
        let mut examinations = 0;
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            let is_checked = examinations > 2;
            assert!(!(is_checked && panics), "intended");
            is_checked
        });
        assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
    }
    let bound = CheckBound::all().until_refused();
    assert_eq!(purgatory.check_and_complete_with(&1, bound), 1);
    assert_eq!(purgatory.stats().parked, 0);
}

/// That one is examined once more by its own thread, and may find nothing for another reason.
#[test]
fn g22_a_bounded_check_passes_over_what_another_thread_examines() {
    for bound in [CheckBound::all().until_refused(), CheckBound::at_most(1)] {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let (held, stall) = Probe::new().stalled_op(NEVER_IN_A_TEST);
            let items = Arc::new(Mutex::new(0));
            let takes = items.clone();
            let free = Op::new(NEVER_IN_A_TEST).when(move || *lock(&takes) > 0);
            assert!(purgatory.try_complete_else_watch(held, [1, 2]).is_ok());
            assert!(purgatory.try_complete_else_watch(free, [1]).is_ok());
            let holder = stall.check(&purgatory, 2);
            *lock(&items) = 1;
            assert_eq!(purgatory.check_and_complete_with(&1, bound), 1);
            stall.end();
            assert_eq!(holder.join().expect("the holder"), 0);
        });
    }
}

/// Answers with the error that it was ended with.
struct Request {
    error: Option<&'static str>,
    answer: mpsc::Sender<Option<&'static str>>,
    examined: Box<dyn FnMut() -> bool + Send>,
}

impl DelayedOperation for Request {
    type Key = u64;

    fn timeout(&self) -> Duration {
        NEVER_IN_A_TEST
    }

    fn try_complete(&mut self) -> bool {
        (self.examined)()
    }

    fn on_complete(self, _: Completion) {
        self.answer.send(self.error).expect("the test waits for it");
    }
}

#[test]
fn g05_a_forced_operation_that_another_thread_holds_gets_the_cause() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual_of::<Request>();
        let (answer, answers) = mpsc::channel();
        let (entered, inside) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let mut examinations = 0;
        let held = Request {
            error: None,
            answer: answer.clone(),
            examined: Box::new(move || {
                examinations += 1;
                if examinations == 3 {
                    entered.send(()).expect("the test waits for it");
                    wait.recv().expect("the test lets it go on");
                }
                false
            }),
        };
        let free = Request {
            error: None,
            answer,
            examined: Box::new(|| false),
        };
        assert!(purgatory.try_complete_else_watch(held, [1, 2]).is_ok());
        assert!(purgatory.try_complete_else_watch(free, [1]).is_ok());
        let holder = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.check_and_complete(&2))
        };
        inside.recv().expect("it is examined");
        let cause = |request: &mut Request| request.error = Some("not the leader");
        assert_eq!(purgatory.force_complete_for_key_with(&1, cause), 1);
        assert_eq!(answers.recv(), Ok(Some("not the leader")));
        assert!(answers.try_recv().is_err(), "the other is held");
        go_on.send(()).expect("the holder waits");
        holder.join().expect("the holder");
        assert_eq!(answers.recv(), Ok(Some("not the leader")));
    });
}

/// Its event is reported in the last examination that its holder makes in a row, before it is forced to end. The
/// examination that is due finds it satisfied: what it then holds, no change makes an error of. Or it finds nothing.
#[test]
fn g05_what_is_found_satisfied_is_not_changed() {
    for (satisfied, error) in [(true, None), (false, Some("not the leader"))] {
        force_in_the_last_examination(satisfied, error);
    }
}

fn force_in_the_last_examination(satisfied: bool, error: Option<&'static str>) {
    within(PATIENCE, move || {
        let (purgatory, _clock) = manual_of::<Request>();
        let (answer, answers) = mpsc::channel();
        let (watched, mut examinations) = (purgatory.clone(), 0);
        let examined = move || {
            examinations += 1;
            // The first two are those of the park, and the holder makes up to 16.
            let last = 2 + 16;
            let by_another = || {
                watched.check_and_complete(&1);
                if examinations == last {
                    let cause = |request: &mut Request| request.error = Some("not the leader");
                    assert_eq!(
                        watched.force_complete_for_key_with(&1, cause),
                        0,
                        "it is held"
                    );
                }
            };
            if (3..=last).contains(&examinations) {
                thread::scope(|scope| _ = scope.spawn(by_another));
            }
            examinations > last && satisfied
        };
        let request = Request {
            error: None,
            answer,
            examined: Box::new(examined),
        };
        assert!(purgatory.try_complete_else_watch(request, [1]).is_ok());
        purgatory.check_and_complete(&1);
        assert_eq!(answers.try_recv(), Ok(error));
        assert_eq!(purgatory.stats().completed, 1);
    });
}

/// Neither that of the operation which it was to change, nor those of the others on the key.
#[test]
fn g12_a_change_that_panics_costs_no_operation_its_ending() {
    type Change = Box<dyn Fn(&mut Op) + Send + Sync>;
    // It panics when it is dropped.
    let loud = || -> Change {
        let key = Acting(0, Some(Arc::new(|| std::panic::panic_any("intended"))));
        Box::new(move |_| _ = &key)
    };
    let changes: [(Option<Change>, Change, u64); 3] = [
        (None, Box::new(|_| std::panic::panic_any("intended")), 3),
        // By the holder, which is the last.
        (None, loud(), 1),
        // As another replaces it.
        (Some(loud()), Box::new(|_| ()), 1),
    ];
    for (before, change, panics) in changes {
        within(PATIENCE, move || {
            quietly();
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let probes = [(); 3].map(|()| Probe::new());
            let (held, stall) = probes[0].stalled_op(NEVER_IN_A_TEST);
            assert!(purgatory.try_complete_else_watch(held, [1, 2]).is_ok());
            for probe in &probes[1..] {
                let op = probe.op(NEVER_IN_A_TEST);
                assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
            }
            let holder = stall.check(&purgatory, 2);
            if let Some(before) = before {
                let left = purgatory.force_complete_for_key_with(&2, before);
                assert_eq!(left, 0, "it is held");
            }
            assert_eq!(purgatory.force_complete_for_key_with(&1, change), 2);
            stall.end();
            assert_eq!(holder.join().expect("the holder"), 0);
            let endings = probes.map(|probe| probe.ending());
            assert_eq!(endings, [Some(Completion::Satisfied); 3]);
            let stats = purgatory.stats();
            assert_eq!((stats.panicked, stats.parked), (panics, 0));
        });
    }
}
