//! Tests of what the trait [`Scheme`] guarantees. The tests that the macro `schemes` makes run for every scheme, the
//! others for some schemes.

mod model;

use super::*;
use model::{CENTURY, Model, Table, When, event, origin, slots};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A scheme, and the promises in which schemes differ.
trait Tested: Scheme {
    /// Whether `next_deadline` returns exactly the earliest deadline, as long as this deadline has not passed.
    const EXACT: bool;
    /// Whether the scheme accepts every deadline.
    const ENDLESS: bool;
    /// Whether the scheme rounds the number of slots up to a power of two.
    const ROUNDS: bool;

    /// The number of slots per level of a scheme that was made with the number `given`.
    fn slots(given: u32) -> Tick {
        let slots = Tick::from(given.max(2));
        if Self::ROUNDS {
            slots.next_power_of_two()
        } else {
            slots
        }
    }
}

/// Makes a module of tests for each scheme.
macro_rules! schemes {
    ($($name:ident: $scheme:ty, exact: $exact:literal, endless: $endless:literal, rounds: $rounds:literal;)*) => {$(
        impl Tested for $scheme {
            const EXACT: bool = $exact;
            const ENDLESS: bool = $endless;
            const ROUNDS: bool = $rounds;
        }

        mod $name {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(300))]

                #[test]
                fn agrees_with_the_model(
                    slots in slots(),
                    origin in origin(),
                    events in prop::collection::vec(event(), 1..60),
                ) {
                    Model::<$scheme>::run(slots, origin, &events);
                }

                #[test]
                fn any_position_may_be_stopped(
                    deadlines in prop::collection::vec(0..300_u64, 0..200),
                    positions in prop::collection::vec(
                        prop_oneof![0..300_u32, any::<u32>(), (0..300_u32).prop_map(|n| 1 << 31 | n)],
                        0..100,
                    ),
                ) {
                    super::any_position_may_be_stopped::<$scheme>(&deadlines, &positions);
                }
            }

            #[test]
            fn a_jump_costs_entries_not_ticks() {
                super::a_jump_costs_entries_not_ticks::<$scheme>();
            }

            #[test]
            fn timers_that_come_and_go_use_few_places() {
                super::timers_that_come_and_go_use_few_places::<$scheme>();
            }

            #[test]
            fn an_earlier_pass_takes_nothing_from_a_later_one() {
                super::an_earlier_pass_takes_nothing_from_a_later_one::<$scheme>();
            }

            #[test]
            fn fires_at_the_borders_of_levels() {
                super::fires_at_the_borders_of_levels::<$scheme>();
            }
        }
    )*};
}

schemes! {
    unordered_list: UnorderedList, exact: true, endless: true, rounds: false;
    ordered_list: OrderedList, exact: true, endless: true, rounds: false;
    heap: Heap, exact: true, endless: true, rounds: false;
    simple_wheel: SimpleWheel, exact: false, endless: false, rounds: false;
    sorted_hashed_wheel: SortedHashedWheel, exact: false, endless: true, rounds: false;
    hashed_wheel: HashedWheel, exact: false, endless: true, rounds: false;
    stepped_wheel: SteppedWheel, exact: false, endless: true, rounds: true;
    hierarchical_wheel: HierarchicalWheel, exact: false, endless: true, rounds: true;
}

/// Starts a timer for each of these deadlines, unless the scheme rejects the deadline. A timer's id is the index of its
/// deadline.
fn started<S: Scheme>(slots: u32, now: Tick, deadlines: &[Tick]) -> (S, Table) {
    let (mut scheme, mut records) = (S::new(slots, now), Table::default());
    for (id, &deadline) in (0..).zip(deadlines) {
        if let Ok(started) = scheme.start(&mut records, id, deadline, now) {
            records.0.insert(id, (deadline, started.position));
        }
    }
    (scheme, records)
}

/// A stop at any position does not panic, and removes at most one timer, even inside the callback of an advance. The
/// scheme fires the other timers.
fn any_position_may_be_stopped<S: Scheme>(deadlines: &[Tick], positions: &[u32]) {
    let (mut scheme, mut records) = started::<S>(16, 100, deadlines);
    let mut positions = positions.iter().map(|&number| Position::new(number));
    let mut left = scheme.len();
    for position in positions.by_ref().take(50) {
        scheme.stop(&mut records, position);
        assert!(left - scheme.len() <= 1);
        left = scheme.len();
    }
    let mut fired = 0;
    for now in [100, 110, 200, 400] {
        let steps = scheme.advance(&mut records, now, |scheme, records, _, _| {
            fired += 1;
            if let Some(position) = positions.next() {
                let before = scheme.len();
                scheme.stop(records, position);
                left -= before - scheme.len();
            }
        });
        assert!(steps < 1_000);
    }
    assert_eq!(fired, left);
    assert_eq!(scheme.next_deadline(), None);
}

/// Two threads drive one scheme. A later pass begins, and then the earlier pass makes one more step. The later pass
/// still fires every timer that was due when it began.
fn an_earlier_pass_takes_nothing_from_a_later_one<S: Scheme>() {
    let (mut scheme, mut records) = started::<S>(16, 0, &[]);
    scheme.begin_pass(10);
    scheme.begin_pass(11);
    // In most schemes, a timer that is started at the present of the latest pass is overdue.
    let started = scheme.start(&mut records, 0, 11, 10);
    let started = started.expect("it is one tick ahead");
    records.0.insert(0, (11, started.position));
    scheme.begin_pass(11);
    let _ = scheme.step(&mut records, 10);
    let steps = std::iter::from_fn(|| Some(scheme.step(&mut records, 11)));
    let mut steps = steps.take_while(|step| *step != Step::Idle);
    assert!(steps.any(|step| matches!(step, Step::Fired(0, 11))));
}

/// Makes two jumps, at a tick of 1 ms and at a tick of 1 ns. A jump is a pass (round of expiry) that comes a hundred
/// years after the last one. There are eleven timers: some near, some far, and one that fires in the second jump.
fn a_jump_costs_entries_not_ticks<S: Tested>() {
    for century in [CENTURY, CENTURY * 1_000_000] {
        for slots in [2, 20, 64, 1_000] {
            let mut model = Model::<S>::new(slots, 7);
            for n in 1..=9 {
                model.start(7 + century / 9 * n / n.pow(9), 7);
            }
            model.start(7 + century * 2, 7);
            // A simple wheel accepts only deadlines less than `slots` ticks ahead. Of the eleven timers, it accepts
            // this one only.
            model.start(8, 7);
            for _ in 0..2 {
                // `pass` itself checks the number of steps against the numbers of timers and levels.
                let steps = model.pass(When::In(century), &[], None);
                assert!(steps < 5_000, "{steps} steps with {slots} slots");
            }
            assert_eq!(model.scheme.len(), 0);
            let steps = model.pass(When::In(century), &[], None);
            assert_eq!(steps, 0, "without timers a jump is free");
            // A timer that is started long after the last pass goes to the level for its distance from the present, not
            // from the last pass. So it fires after a few steps.
            model.present += century;
            let soon = model.present + 1;
            model.start(soon, model.present);
            assert_eq!(model.scheme.next_deadline(), Some(soon));
            let steps = model.pass(When::In(1), &[], None);
            assert!(steps <= 2, "{steps} steps after an idle century");
        }
    }
}

/// The place of a timer that fired or was stopped is reused, so the memory of a scheme depends on its present timers
/// only.
fn timers_that_come_and_go_use_few_places<S: Scheme>() {
    let (mut scheme, mut records) = started::<S>(16, 0, &[]);
    let mut places = BTreeSet::new();
    for now in 0..10_000 {
        let [stopped, _] = [0, 1].map(|id| {
            let deadline = now + 1 + Tick::from(id);
            let started = scheme.start(&mut records, id, deadline, now);
            let position = started.expect("not past the horizon").position;
            records.0.insert(id, (deadline, position));
            places.insert(position.number());
            position
        });
        scheme.stop(&mut records, stopped);
        scheme.advance(&mut records, now + 2, |_, _, _, _| ());
        assert!(scheme.is_empty());
    }
    assert!(places.len() < 100, "{} places", places.len());
}

/// Timers with timeouts around each power of the number of slots that the scheme has. First each timer is started
/// alone, with a jump to one tick before its deadline and a jump to the deadline. Then all timers are started, with a
/// jump to each deadline.
fn fires_at_the_borders_of_levels<S: Tested>() {
    for slots in [2, 3, 10, 64] {
        for origin in [0, 1, 63, 64, (1 << 30) - 1, (1 << 36) - 1] {
            let powers = (0..40).map_while(|power| S::slots(slots).checked_pow(power));
            let borders = powers.take_while(|&power| power < 1 << 62);
            let around = borders.flat_map(|border| border - 1..=border + 1);
            let around = around.collect::<Vec<_>>();
            for &by in &around {
                let mut model = Model::<S>::new(slots, origin);
                model.start(origin + by, origin);
                let started = model.scheme.len();
                if by > 1 {
                    model.pass(When::In(by - 1), &[], None);
                    assert_eq!(model.scheme.len(), started, "early");
                }
                model.pass(When::In(by.min(1)), &[], None);
                assert_eq!(model.scheme.len(), 0, "late");
            }
            let mut model = Model::<S>::new(slots, origin);
            around
                .iter()
                .for_each(|by| model.start(origin + by, origin));
            for by in around {
                model.pass(When::At(origin + by), &[], None);
            }
            assert_eq!(model.scheme.len(), 0);
        }
    }
}

/// Schemes that promise an order of firing keep this order within one revolution.
#[test]
fn timers_fire_by_deadline() {
    fn order<S: Scheme>() -> Vec<(Tick, u32)> {
        let (mut scheme, mut records) = started::<S>(16, 0, &[5, 3, 9, 3, 7, 5, 1, 3]);
        let mut fired = Vec::new();
        scheme.advance(&mut records, 9, |_, _, id, at| fired.push((at, id)));
        fired
    }
    // Timers with the same deadline fire in the order of their starts.
    let sorted = [
        (1, 6),
        (3, 1),
        (3, 3),
        (3, 7),
        (5, 0),
        (5, 5),
        (7, 4),
        (9, 2),
    ];
    assert_eq!(order::<OrderedList>(), sorted);
    assert_eq!(order::<SimpleWheel>(), sorted);
    assert_eq!(order::<SortedHashedWheel>(), sorted);
    assert_eq!(order::<HashedWheel>(), sorted);
    assert!(order::<HierarchicalWheel>().is_sorted_by_key(|&(deadline, _)| deadline));
    assert!(order::<Heap>().is_sorted_by_key(|&(deadline, _)| deadline));
}

/// A late pass fires timers in the order of their deadlines, whatever their levels were.
#[test]
fn the_wheel_fires_by_deadline_in_a_late_pass() {
    let deadlines = (1..2_000).map(|n: Tick| 1 + n * 7_919 % 60_000);
    let deadlines = deadlines.collect::<Vec<_>>();
    let (mut wheel, mut records) = started::<HierarchicalWheel>(64, 0, &deadlines);
    let mut fired = Vec::new();
    for now in [20_000, 90_000] {
        wheel.advance(&mut records, now, |_, _, _, deadline| fired.push(deadline));
    }
    assert_eq!(fired.len(), deadlines.len());
    assert!(fired.is_sorted());
}

/// The simple wheel accepts the last tick of its revolution, and no later one.
#[test]
fn a_simple_wheel_has_a_horizon_of_one_revolution() {
    let mut model = Model::<SimpleWheel>::new(8, 100);
    let refused = |model: &mut Model<SimpleWheel>, deadline, now| {
        let records = &mut Table::default();
        let result = model.scheme.start(records, u32::MAX, deadline, now);
        result.expect_err("past the horizon").latest
    };
    assert_eq!(refused(&mut model, 108, 100), 107);
    assert_eq!(refused(&mut model, Tick::MAX - 1, 100), 107);
    model.start(107, 100);
    assert_eq!(model.scheme.len(), 1);
    // There was no pass since tick 100. But the horizon (the latest deadline that the wheel accepts) depends on the
    // present tick that is passed to `start`.
    model.present = 105;
    assert_eq!(refused(&mut model, 113, 105), 112);
    model.start(112, 105);
    model.pass(When::At(107), &[], None);
    assert_eq!(model.scheme.len(), 1);
    model.pass(When::At(112), &[], None);
    assert_eq!(model.scheme.len(), 0);
    let mut last = Model::<SimpleWheel>::new(8, Tick::MAX - 3);
    last.start(Tick::MAX - 1, Tick::MAX - 3);
    last.pass(When::At(Tick::MAX - 1), &[], None);
    assert_eq!(last.scheme.len(), 0);
}

/// `upcoming` returns the timers that the next steps examine, in that order. All timers lie in one bucket here, which
/// consists of several blocks, and the steps begin with the last block.
#[test]
fn the_wheel_names_the_upcoming_timers() {
    let (mut wheel, mut records) = started::<HierarchicalWheel>(64, 0, &[10; 300]);
    let upcoming = wheel.upcoming().collect::<Vec<_>>();
    let mut fired = Vec::new();
    wheel.advance(&mut records, 10, |_, _, id, _| fired.push(id));
    assert_eq!(upcoming, fired);
    assert_eq!(fired.len(), 300);
    assert_eq!(wheel.upcoming().next(), None);
}

/// Counts how often a scheme wakes a thread that sleeps until the next deadline. The scheme has a timer of 10 s and a
/// far timer, at a tick of 1 ms.
#[test]
fn an_idle_scheme_wakes_its_thread_so_often() {
    fn wake_ups<S: Scheme>(far: Tick) -> u64 {
        let (mut scheme, mut records) = started::<S>(64, 0, &[10_000, far]);
        let mut count = 0;
        while let Some(now) = scheme.next_deadline() {
            scheme.advance(&mut records, now, |_, _, _, deadline| {
                assert_eq!(deadline, now)
            });
            count += 1;
        }
        count
    }
    const TEN_HOURS: Tick = 36_000_000;
    assert_eq!(wake_ups::<UnorderedList>(TEN_HOURS), 2);
    assert_eq!(wake_ups::<OrderedList>(TEN_HOURS), 2);
    assert_eq!(wake_ups::<Heap>(TEN_HOURS), 2);
    assert_eq!(wake_ups::<HierarchicalWheel>(TEN_HOURS), 7);
    // These schemes wake their thread at every tick, here for a minute.
    assert_eq!(wake_ups::<SortedHashedWheel>(60_000), 60_000);
    assert_eq!(wake_ups::<HashedWheel>(60_000), 60_000);
    assert_eq!(wake_ups::<SteppedWheel>(60_000), 60_000);
}

/// A wheel has a far timer, and had its last pass (round of expiry) long ago. Then a near timer is started. It wakes
/// the thread that waits for the next deadline only once, at the deadline of the near timer.
#[test]
fn the_wheel_files_a_near_timer_from_the_present_beside_a_far_one() {
    let mut model = Model::<HierarchicalWheel>::new(64, 0);
    model.start(1 << 40, 0);
    model.present = 1 << 30;
    let soon = model.present + 10;
    model.start(soon, model.present);
    assert_eq!(model.scheme.next_deadline(), Some(soon));
    assert_eq!(model.pass(When::At(soon), &[], None), 1);
}

/// `Started::earliest` tells the caller of a start that the next deadline has become earlier. It is `None` if the timer
/// goes into an empty bucket, but an overdue timer has the same deadline as this bucket.
#[test]
fn the_wheel_announces_only_earlier_deadlines() {
    let mut model = Model::<HierarchicalWheel>::new(64, 0);
    model.begin_pass(When::At(70));
    model.start(64, 0);
    // The timer goes into the bucket that starts at 64. `Model::start` checks that `Started::earliest` is given only if
    // the next deadline is earlier than before.
    model.start(100, 0);
    assert_eq!(model.scheme.next_deadline(), Some(64));
}
