//! G5, G12: every operation ends once, and what becomes of the change by which it is forced to end. (All calls at once,
//! on many threads: `mixed_watches`.)

use crate::lost_completion::steps::{
    FIRST_CHECK, SATISFIED, assert_empty, park, park_probe, probed_op, taken,
};
use crate::support::keys::Acting;
use crate::support::stall::overasked_op;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, lock, manual, quietly, within};
use request_purgatory::Purgatory;
use std::panic::panic_any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the operations have answered that were ended.
type Answers = Arc<Mutex<Vec<&'static str>>>;

fn answering(answers: &Answers, answer: &'static str, op: Op) -> Op {
    let answers = answers.clone();
    op.then(move |_| lock(&answers).push(answer))
}

/// A change by which an operation answers with an error.
fn error(answers: &Answers) -> impl Fn(&mut Op) + Send + Sync + 'static {
    let answers = answers.clone();
    move |op| {
        let changed = std::mem::replace(op, Op::new(NEVER_IN_A_TEST));
        *op = answering(&answers, "error", changed);
    }
}

#[test]
fn g05_a_forced_operation_that_another_thread_holds_gets_the_change() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let answers = Answers::default();
        let (held, stall) = Probe::new().stalled_op(NEVER_IN_A_TEST);
        park(&purgatory, answering(&answers, "held", held), [1, 2]);
        let free = answering(&answers, "free", Op::new(NEVER_IN_A_TEST));
        park(&purgatory, free, [1]);
        let holder = stall.check(&purgatory, 2);
        let forced = purgatory.force_complete_for_key_with(&1, error(&answers));
        assert_eq!((forced, taken(&answers)), (1, vec!["error"]));
        stall.end();
        assert_eq!(holder.join().expect("the holder"), 0);
        assert_eq!(taken(&answers), ["error"]);
    });
}

/// Its event is reported in the last examination that its holder makes in a row, before it is forced to end. The
/// examination that is due finds it satisfied: what it then holds, no change makes an error of. Or it finds nothing.
#[test]
fn g05_what_is_found_satisfied_is_not_changed() {
    for (satisfied, answer) in [(true, "success"), (false, "error")] {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let answers = Answers::default();
            let forced = answers.clone();
            let op = overasked_op(
                &purgatory,
                move |all| {
                    let forced = all.force_complete_for_key_with(&1, error(&forced));
                    assert_eq!(forced, 0, "it is held");
                },
                move || satisfied,
            );
            park(&purgatory, answering(&answers, "success", op), [1]);
            purgatory.check_and_complete(&1);
            assert_eq!(taken(&answers), [answer]);
            assert_eq!(purgatory.stats().completed, 1);
        });
    }
}

/// Neither that of the operation which it was to change, nor those of the others on the key.
#[test]
fn g12_a_change_that_panics_costs_no_operation_its_ending() {
    type Change = Box<dyn Fn(&mut Op) + Send + Sync>;
    let panics_when_dropped = || -> Change {
        let key = Acting(0, Some(Arc::new(|| panic_any("intended"))));
        Box::new(move |_| _ = &key)
    };
    /// A change that comes first, to the one that is held; the change of all three; panics.
    type Row = (&'static str, Option<Change>, Change, u64);
    let rows: [Row; 3] = [
        ("called", None, Box::new(|_| panic_any("intended")), 3),
        // By the holder, which is the last.
        ("dropped", None, panics_when_dropped(), 1),
        // As another replaces it.
        ("replaced", Some(panics_when_dropped()), Box::new(|_| ()), 1),
    ];
    for (name, before, change, panics) in rows {
        within(PATIENCE, move || {
            quietly();
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let probe = Probe::new();
            let (held, stall) = probe.stalled_op(NEVER_IN_A_TEST);
            park(&purgatory, held, [1, 2]);
            let [second, third] = [(); 2].map(|()| park_probe(&purgatory, [1]).0);
            let holder = stall.check(&purgatory, 2);
            if let Some(before) = before {
                let left = purgatory.force_complete_for_key_with(&2, before);
                assert_eq!(left, 0, "it is held");
            }
            let forced = purgatory.force_complete_for_key_with(&1, change);
            assert_eq!(forced, 2, "{name}");
            stall.end();
            assert_eq!(holder.join().expect("the holder"), 0, "{name}");
            let endings = [probe, second, third].map(|probe| probe.ending());
            assert_eq!(endings, [SATISFIED; 3], "{name}");
            let stats = purgatory.stats();
            assert_eq!((stats.panicked, stats.parked), (panics, 0), "{name}");
        });
    }
}

/// Many are ended before any is told of it, and each is examined then: by examinations that call the purgatory.
#[test]
fn g05_examinations_that_act_in_a_storm_end_nothing_twice() {
    const TIMEOUT: Duration = Duration::from_millis(1);
    /// What the examination of the operation on this key calls, and how many operations it gets back.
    type Act = fn(&Purgatory<Op>, u64) -> usize;
    const ACTS: [(&str, Act); 5] = [
        ("advance", |all, _| {
            all.advance();
            0
        }),
        ("shutdown", |all, key| {
            if key > 700 {
                all.shutdown();
            }
            0
        }),
        ("cancel", |all, key| {
            let around = [key - 1, key + 1].map(|key| all.cancel_for_key(&key).len());
            around.iter().sum()
        }),
        ("force", |all, key| {
            all.force_complete_for_key(&((key + 400) % 1_000));
            0
        }),
        ("panic", |_, _| panic!("intended")),
    ];
    quietly();
    within(PATIENCE, move || {
        for (name, act) in ACTS {
            let (purgatory, clock) = manual::<u64>(|builder| builder);
            let returned = Arc::new(AtomicUsize::new(0));
            let probes = [(); 1_000].map(|()| Probe::new());
            for (key, probe) in (0..).zip(&probes) {
                let returned = returned.clone();
                let op = probed_op(&purgatory, probe, TIMEOUT, move |all, _, nth| {
                    if nth >= FIRST_CHECK && key % 97 == 3 {
                        returned.fetch_add(act(all, key), Ordering::SeqCst);
                    }
                    false
                });
                park(&purgatory, op, [key, 1_000 + key % 3]);
            }
            clock.advance(2 * TIMEOUT);
            purgatory.advance();
            let ended = probes.iter().filter(|probe| probe.ending().is_some());
            let aborted = purgatory.stats().aborted as usize;
            let ends = ended.count() + returned.load(Ordering::SeqCst) + aborted;
            assert_eq!(ends, probes.len(), "{name}");
            assert_empty(&purgatory);
        }
    });
}
