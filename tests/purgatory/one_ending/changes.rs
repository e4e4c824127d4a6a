//! G5, G12: operations that are forced to end with a change, and what becomes of the change where a thread holds them.

use crate::lost_completion::steps::{SATISFIED, park, park_probe};
use crate::support::keys::Acting;
use crate::support::stall::overasked_op;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, lock, manual, quietly, within};
use std::sync::{Arc, Mutex};

/// What the operations have answered that were ended.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<&'static str>>>);

impl Answers {
    fn op(&self, op: Op, answer: &'static str) -> Op {
        let answers = self.0.clone();
        op.then(move |_| lock(&answers).push(answer))
    }

    /// A change by which an operation answers with an error.
    fn error(&self) -> impl Fn(&mut Op) + Send + Sync + 'static {
        let answers = self.clone();
        move |op| {
            let changed = std::mem::replace(op, Op::new(NEVER_IN_A_TEST));
            *op = answers.op(changed, "error");
        }
    }

    fn taken(&self) -> Vec<&'static str> {
        std::mem::take(&mut *lock(&self.0))
    }
}

#[test]
fn g05_a_forced_operation_that_another_thread_holds_gets_the_change() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let answers = Answers::default();
        let (held, stall) = Probe::new().stalled_op(NEVER_IN_A_TEST);
        park(&purgatory, answers.op(held, "held"), [1, 2]);
        park(
            &purgatory,
            answers.op(Op::new(NEVER_IN_A_TEST), "free"),
            [1],
        );
        let holder = stall.check(&purgatory, 2);
        let forced = purgatory.force_complete_for_key_with(&1, answers.error());
        assert_eq!((forced, answers.taken()), (1, vec!["error"]), "one is held");
        stall.end();
        assert_eq!(holder.join().expect("the holder"), 0);
        assert_eq!(answers.taken(), ["error"]);
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
                    let forced = all.force_complete_for_key_with(&1, forced.error());
                    assert_eq!(forced, 0, "it is held");
                },
                move || satisfied,
            );
            park(&purgatory, answers.op(op, "success"), [1]);
            purgatory.check_and_complete(&1);
            assert_eq!(answers.taken(), [answer]);
            assert_eq!(purgatory.stats().completed, 1);
        });
    }
}

/// Neither that of the operation which it was to change, nor those of the others on the key.
#[test]
fn g12_a_change_that_panics_costs_no_operation_its_ending() {
    type Change = Box<dyn Fn(&mut Op) + Send + Sync>;
    let panics_when_dropped = || -> Change {
        let key = Acting(0, Some(Arc::new(|| std::panic::panic_any("intended"))));
        Box::new(move |_| _ = &key)
    };
    /// A change that comes first, to the one that is held; the change of all three; panics.
    type Row = (&'static str, Option<Change>, Change, u64);
    let rows: [Row; 3] = [
        (
            "called",
            None,
            Box::new(|_| std::panic::panic_any("intended")),
            3,
        ),
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
