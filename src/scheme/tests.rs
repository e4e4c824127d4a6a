//! Every scheme against the definition of a timer.
//!
//! The model is a sorted map of what is started. In what order a scheme fires is its own business, so the model follows
//! it: whatever fires must be due, and started before the pass began; and when the pass is over, nothing that was due
//! when it began may be left.

use super::*;
use proptest::prelude::*;
use std::any::TypeId;
use std::collections::{BTreeMap, HashSet};

/// A hundred years of milliseconds.
const CENTURY: Tick = 100 * 366 * 86_400_000;

/// The records, which exist from the return of `start` on: a scheme that asks earlier panics here.
#[derive(Debug, Default)]
struct Book(BTreeMap<u32, (Tick, Position)>);

impl Records for Book {
    fn deadline(&self, id: u32) -> Tick {
        self.0[&id].0
    }

    fn set_position(&mut self, id: u32, position: Position) {
        self.0.get_mut(&id).expect("a record").1 = position;
    }
}

/// A scheme, and what it should hold.
struct Model<S> {
    scheme: S,
    slots: Tick,
    records: Book,
    /// What is started: the deadline, and how many passes had begun.
    started: BTreeMap<u32, (Tick, u32)>,
    passes: u32,
    present: Tick,
    ids: u32,
}

/// Where a deadline lies, or how far a pass jumps.
#[derive(Debug, Clone, Copy)]
enum Span {
    Ticks(u64),
    Back(u64),
    /// So many revolutions of a level, and one tick more or less.
    Slots(u32, u32, i64),
    Power(u32, i64),
    /// To the earliest deadline, and one tick more or less.
    Earliest(i64),
    Any(u64),
}

/// What happens between steps.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// The present that is told lies so much back.
    Start(Span, u64),
    Stop(prop::sample::Index),
    Restart(prop::sample::Index, Span),
    StopNothing,
}

#[derive(Debug, Clone)]
enum Event {
    Act(Action),
    /// A pass, with one action after each step while there are any. It may be left after so many steps.
    Pass(Span, Vec<Action>, Option<usize>),
    /// A pass with actions in the callbacks.
    Advance(Span, Vec<Action>),
}

impl<S: Scheme> Model<S> {
    fn new(slots: u32, now: Tick) -> Self {
        Self {
            scheme: S::new(slots, now),
            slots: Tick::from(slots.max(2)),
            records: Book::default(),
            started: BTreeMap::new(),
            passes: 0,
            present: now,
            ids: 0,
        }
    }

    fn is<T: Scheme>() -> bool {
        TypeId::of::<S>() == TypeId::of::<T>()
    }

    fn earliest(&self) -> Option<Tick> {
        self.started.values().map(|&(deadline, _)| deadline).min()
    }

    /// A tick from the present; at most the last but one, since the last is never.
    fn tick(&self, span: Span) -> Tick {
        let near = |tick: Tick, by: i64| tick.saturating_add_signed(by);
        let now = self.present;
        let tick = match span {
            Span::Ticks(ticks) => now.saturating_add(ticks),
            Span::Back(ticks) => now.saturating_sub(ticks),
            Span::Slots(times, level, by) => {
                let width = Tick::from(times).saturating_mul(self.slots.saturating_pow(level));
                near(now.saturating_add(width), by)
            }
            Span::Power(bit, by) => near(now.saturating_add(1 << bit), by),
            Span::Earliest(by) => near(self.earliest().unwrap_or(now), by),
            Span::Any(tick) => tick,
        };
        tick.min(Tick::MAX - 1)
    }

    fn start(&mut self, deadline: Tick, now: Tick) {
        let id = self.ids;
        self.ids += 1;
        self.start_as(id, deadline, now);
    }

    fn start_as(&mut self, id: u32, deadline: Tick, now: Tick) {
        self.records.0.remove(&id);
        let before = self.scheme.next_deadline();
        let result = self.scheme.start(&mut self.records, id, deadline, now);
        let after = self.scheme.next_deadline();
        match result {
            Ok(Started { position, earliest }) => {
                self.records.0.insert(id, (deadline, position));
                self.started.insert(id, (deadline, self.passes));
                assert!(
                    !Self::is::<SimpleWheel>()
                        || deadline <= self.present.saturating_add(self.slots - 1)
                );
                let earlier = after.filter(|&after| before.is_none_or(|before| after < before));
                assert_eq!(earliest, earlier, "from {before:?} to {after:?}");
            }
            Err(BeyondSpan { latest }) => {
                assert!(Self::is::<SimpleWheel>(), "takes any deadline");
                assert!(deadline > latest && latest >= now.saturating_add(self.slots - 1));
                assert!(latest <= self.present.saturating_add(self.slots - 1));
            }
        }
        self.check();
    }

    fn stop(&mut self, which: prop::sample::Index) -> Option<u32> {
        let ids = self.started.keys().copied().collect::<Vec<_>>();
        let id = *which.get(ids.get(..).filter(|ids| !ids.is_empty())?);
        let (_, position) = self.records.0[&id];
        self.scheme.stop(&mut self.records, position);
        self.started.remove(&id);
        self.records.0.remove(&id);
        self.check();
        Some(id)
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(span, back) => {
                self.start(self.tick(span), self.present.saturating_sub(back));
            }
            Action::Stop(which) => _ = self.stop(which),
            Action::Restart(which, span) => {
                if let Some(id) = self.stop(which) {
                    self.start_as(id, self.tick(span), self.present);
                }
            }
            Action::StopNothing => self.scheme.stop(&mut self.records, Position::NONE),
        }
    }

    /// What holds at every moment.
    fn check(&mut self) {
        assert_eq!(self.scheme.len(), self.started.len());
        assert_eq!(self.scheme.is_empty(), self.started.is_empty());
        let next = self.scheme.next_deadline();
        let earliest = self.earliest();
        assert_eq!(next.is_none(), earliest.is_none());
        assert!(next <= earliest, "{next:?} is past {earliest:?}");
        // Without a bucket to guard it, a deadline is exact, but for what is due already.
        let overdue = next.is_some_and(|next| next <= self.present);
        assert!(!Self::is::<UnorderedList>() || next == earliest);
        assert!(!Self::is::<OrderedList>() || next == earliest || overdue);
        assert!(!Self::is::<Heap>() || next == earliest || overdue);
        let positions = self.started.keys().map(|id| self.records.0[id].1.number());
        let positions = positions.collect::<HashSet<_>>();
        assert_eq!(
            positions.len(),
            self.started.len(),
            "positions are distinct"
        );
        assert!(!positions.contains(&Position::NONE.number()));
    }

    fn begin_pass(&mut self, span: Span) -> Tick {
        let now = self.tick(span).max(self.present);
        self.present = now;
        self.passes += 1;
        now
    }

    fn fired(&mut self, id: u32, deadline: Tick) {
        let (expected, pass) = self
            .started
            .remove(&id)
            .expect("it was started, and not stopped");
        assert_eq!(deadline, expected);
        assert!(deadline <= self.present, "early");
        assert!(
            pass < self.passes,
            "due already, and not left for the next pass"
        );
        assert_eq!(self.records.0[&id].1, Position::NONE);
        self.check();
    }

    /// What holds when a pass is over that took so many steps, and began with so many timers.
    fn passed(&mut self, steps: usize, timers: usize) {
        for &(deadline, pass) in self.started.values() {
            assert!(deadline > self.present || pass == self.passes, "late");
        }
        let levels = (1..64).find(|&level| self.slots.checked_pow(level).is_none());
        let levels = levels.unwrap_or(64) as usize;
        let bound = (timers + 2 * self.slots as usize) * (levels + 1) + 1;
        assert!(steps <= bound, "{steps} steps for {timers} timers");
        self.check();
    }

    /// A pass step by step. Returns how many steps it took.
    fn pass(&mut self, span: Span, actions: &[Action], leave: Option<usize>) -> usize {
        let now = self.begin_pass(span);
        self.scheme.begin_pass(now);
        self.check();
        let timers = self.started.len() + actions.len();
        let mut actions = actions.iter();
        for steps in 0.. {
            if leave == Some(steps) {
                return steps;
            }
            match self.scheme.step(&mut self.records, now) {
                Step::Fired(id, deadline) => self.fired(id, deadline),
                Step::Bookkeeping => self.check(),
                Step::Idle => {
                    self.passed(steps, timers);
                    return steps;
                }
            }
            if let Some(&action) = actions.next() {
                self.act(action);
            }
        }
        unreachable!("a pass ends")
    }

    /// The same by `advance`, with the actions in the callbacks.
    fn advance(&mut self, span: Span, actions: &[Action]) {
        let now = self.begin_pass(span);
        let timers = self.started.len() + actions.len();
        // The scheme is lent to `advance`: a stand-in takes its place meanwhile.
        let mut scheme = std::mem::replace(&mut self.scheme, S::new(2, 0));
        let mut records = std::mem::take(&mut self.records);
        let mut actions = actions.iter();
        let steps = scheme.advance(&mut records, now, |scheme, records, id, deadline| {
            std::mem::swap(scheme, &mut self.scheme);
            std::mem::swap(records, &mut self.records);
            self.fired(id, deadline);
            for &action in actions.by_ref().take(2) {
                self.act(action);
            }
            std::mem::swap(scheme, &mut self.scheme);
            std::mem::swap(records, &mut self.records);
        });
        (self.scheme, self.records) = (scheme, records);
        self.passed(steps, timers);
    }

    fn run(slots: u32, now: Tick, events: &[Event]) {
        let mut model = Self::new(slots, now);
        for event in events {
            match event {
                Event::Act(action) => model.act(*action),
                Event::Pass(span, actions, leave) => _ = model.pass(*span, actions, *leave),
                Event::Advance(span, actions) => model.advance(*span, actions),
            }
        }
        model.pass(Span::Any(Tick::MAX - 1), &[], None);
        model.pass(Span::Ticks(0), &[], None);
        assert_eq!(model.scheme.len(), 0, "all is due in the end");
    }
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        6 => (0..5_u64).prop_map(Span::Ticks),
        2 => (0..70_u64).prop_map(Span::Ticks),
        4 => (1..4_u32, 1..4_u32, -1..2_i64).prop_map(|(n, level, by)| Span::Slots(n, level, by)),
        2 => (0..64_u32, -1..2_i64).prop_map(|(bit, by)| Span::Power(bit, by)),
        2 => (-1..2_i64).prop_map(Span::Earliest),
        1 => Just(Span::Ticks(CENTURY)),
        1 => any::<u64>().prop_map(Span::Any),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let deadline = || prop_oneof![8 => span(), 1 => (0..70_u64).prop_map(Span::Back)];
    let back = prop_oneof![3 => Just(0), 1 => 1..4_u64];
    prop_oneof![
        6 => (deadline(), back).prop_map(|(span, back)| Action::Start(span, back)),
        2 => any::<prop::sample::Index>().prop_map(Action::Stop),
        1 => (any::<prop::sample::Index>(), deadline()).prop_map(|(i, to)| Action::Restart(i, to)),
        1 => Just(Action::StopNothing),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let actions = || prop::collection::vec(action(), 0..8);
    let jump = || prop_oneof![5 => span().prop_filter("near", near), 1 => span()];
    let leave = prop_oneof![3 => Just(None), 1 => (0..12_usize).prop_map(Some)];
    prop_oneof![
        6 => action().prop_map(Event::Act),
        3 => (jump(), actions(), leave).prop_map(|(to, within, leave)| Event::Pass(to, within, leave)),
        2 => (jump(), actions()).prop_map(|(to, within)| Event::Advance(to, within)),
    ]
}

/// Not a jump after which little is left to happen.
fn near(span: &Span) -> bool {
    !matches!(
        span,
        Span::Any(_) | Span::Ticks(CENTURY) | Span::Power(33.., _)
    )
}

fn origin() -> impl Strategy<Value = Tick> {
    prop_oneof![
        2 => 0..200_u64,
        1 => (1 << 30) - 80..(1 << 30) + 80_u64,
        1 => (1 << 36) - 80..(1 << 36) + 80_u64,
        1 => (1 << 63) - 80..(1 << 63) + 80_u64,
        1 => Tick::MAX - 300..Tick::MAX,
        1 => any::<u64>(),
    ]
}

fn slots() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0..9_u32,
        2 => prop::sample::select(vec![16, 20, 60, 64, 100]),
        1 => 2..700_u32,
    ]
}

/// The properties of each scheme, in a module of its name.
macro_rules! schemes {
    ($($name:ident: $scheme:ty),* $(,)?) => {$(
        mod $name {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(400))]

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
            fn jumps_cost_no_ticks() {
                super::jumps_cost_no_ticks::<$scheme>();
            }

            #[test]
            fn fires_at_the_borders_of_levels() {
                super::fires_at_the_borders_of_levels::<$scheme>();
            }

            #[test]
            fn a_wheel_left_idle_is_not_late() {
                super::a_wheel_left_idle_is_not_late::<$scheme>();
            }
        }
    )*};
}

schemes! {
    unordered_list: UnorderedList,
    ordered_list: OrderedList,
    heap: Heap,
    simple_wheel: SimpleWheel,
    sorted_hashed_wheel: SortedHashedWheel,
    hashed_wheel: HashedWheel,
    stepped_wheel: SteppedWheel,
    hierarchical_wheel: HierarchicalWheel,
}

/// Whatever position it is told to stop, a scheme does not panic, and its passes end and fire the rest.
fn any_position_may_be_stopped<S: Scheme>(deadlines: &[Tick], positions: &[u32]) {
    let mut records = Book::default();
    let mut scheme = S::new(16, 100);
    for (id, &deadline) in (0..).zip(deadlines) {
        if let Ok(started) = scheme.start(&mut records, id, deadline, 100) {
            records.0.insert(id, (deadline, started.position));
        }
    }
    let mut positions = positions.iter().map(|&number| Position(number));
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

/// A hundred years at a tick of 1 ms and at one of 1 ns, with ten timers: near ones, far ones, one beyond.
fn jumps_cost_no_ticks<S: Scheme>() {
    for century in [CENTURY, CENTURY * 1_000_000] {
        for slots in [2, 20, 64, 1_000] {
            let mut model = Model::<S>::new(slots, 7);
            for n in 1..=9 {
                model.start(7 + century / 9 * n / n.pow(9), 7);
            }
            model.start(7 + century * 2, 7);
            // (`pass` itself bounds the steps.)
            let steps = model.pass(Span::Ticks(century), &[], None);
            assert!(steps < 5_000, "{steps} steps with {slots} slots");
            let steps = model.pass(Span::Ticks(century), &[], None);
            assert!(steps < 5_000, "{steps} steps with {slots} slots");
            assert_eq!(model.scheme.len(), 0);
            let steps = model.pass(Span::Ticks(century), &[], None);
            assert_eq!(steps, 0, "with no timer a jump is free");
        }
    }
}

/// Timers around each power of the number of slots, each alone and then all at once, by jumps to one tick before, to
/// the deadline, and past it.
fn fires_at_the_borders_of_levels<S: Scheme>() {
    for slots in [2, 3, 10, 64] {
        for origin in [0, 1, 63, 64, (1 << 30) - 1, (1 << 36) - 1] {
            let powers = (0..40).map_while(|power| Tick::from(slots).checked_pow(power));
            let borders = powers
                .take_while(|&power| power < 1 << 62)
                .collect::<Vec<_>>();
            let around = |tick: Tick| (tick - 1)..=(tick + 1);
            for by in borders.iter().flat_map(|&border| around(border)) {
                let mut model = Model::<S>::new(slots, origin);
                model.start(origin + by, origin);
                let started = model.scheme.len();
                if by > 1 {
                    model.pass(Span::Ticks(by - 1), &[], None);
                    assert_eq!(model.scheme.len(), started, "early");
                }
                model.pass(Span::Ticks(by.min(1)), &[], None);
                assert_eq!(model.scheme.len(), 0, "late");
            }
            let mut model = Model::<S>::new(slots, origin);
            for &border in &borders {
                around(border).for_each(|by| model.start(origin + by, origin));
            }
            for to in borders.iter().flat_map(|&border| around(border)) {
                model.pass(Span::Any(model.present.max(origin + to)), &[], None);
            }
            assert_eq!(model.scheme.len(), 0);
        }
    }
}

/// A timer that is started long after the last pass is filed from the present, not from that pass.
fn a_wheel_left_idle_is_not_late<S: Scheme>() {
    for slots in [2, 3, 64] {
        let mut model = Model::<S>::new(slots, 0);
        model.present = CENTURY;
        model.start(CENTURY + 1, CENTURY);
        assert_eq!(model.scheme.next_deadline(), Some(CENTURY + 1));
        let steps = model.pass(Span::Ticks(1), &[], None);
        assert!(steps <= 2, "{steps} steps");
        assert_eq!(model.scheme.len(), 0);
    }
}

/// Those that promise an order keep it.
#[test]
fn lists_and_heaps_fire_by_deadline() {
    fn order<S: Scheme>() -> Vec<(Tick, u32)> {
        let mut records = Book::default();
        let mut scheme = S::new(8, 0);
        for (id, deadline) in (0..).zip([5, 3, 9, 3, 7, 5, 1, 3]) {
            let started = scheme.start(&mut records, id, deadline, 0).unwrap();
            records.0.insert(id, (deadline, started.position));
        }
        let mut fired = Vec::new();
        for now in 1..=9 {
            scheme.advance(&mut records, now, |_, _, id, at| fired.push((at, id)));
        }
        fired
    }
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
    assert_eq!(order::<SortedHashedWheel>(), sorted);
    assert_eq!(order::<HashedWheel>(), sorted);
    assert!(order::<Heap>().is_sorted_by_key(|&(deadline, _)| deadline));
}

/// The simple wheel takes the last tick of its revolution, and no later one.
#[test]
fn a_simple_wheel_spans_one_revolution() {
    let mut model = Model::<SimpleWheel>::new(8, 100);
    let refused = |model: &mut Model<SimpleWheel>, deadline, now| {
        let result = model
            .scheme
            .start(&mut Book::default(), u32::MAX, deadline, now);
        result.expect_err("beyond the span").latest
    };
    assert_eq!(refused(&mut model, 108, 100), 107);
    assert_eq!(refused(&mut model, Tick::MAX - 1, 100), 107);
    model.start(107, 100);
    assert_eq!(model.scheme.len(), 1);
    // The wheel has fallen behind: what a new timer may be depends on the present all the same.
    model.present = 105;
    assert_eq!(refused(&mut model, 113, 105), 112);
    model.start(112, 105);
    model.pass(Span::Any(107), &[], None);
    assert_eq!(model.scheme.len(), 1);
    model.pass(Span::Any(112), &[], None);
    assert_eq!(model.scheme.len(), 0);
    let mut last = Model::<SimpleWheel>::new(8, Tick::MAX - 3);
    last.start(Tick::MAX - 1, Tick::MAX - 3);
    last.pass(Span::Any(Tick::MAX - 1), &[], None);
    assert_eq!(last.scheme.len(), 0);
}

/// The wheel knows what its next steps come to, from the last block of a bucket to the first.
#[test]
fn the_wheel_says_which_timers_come_next() {
    let mut records = Book::default();
    let mut wheel = HierarchicalWheel::new(64, 0);
    assert_eq!(wheel.upcoming().next(), None);
    for id in 0..300 {
        let started = wheel.start(&mut records, id, 10, 0).unwrap();
        records.0.insert(id, (10, started.position));
    }
    let upcoming = wheel.upcoming().collect::<Vec<_>>();
    let mut fired = Vec::new();
    wheel.advance(&mut records, 10, |_, _, id, _| fired.push(id));
    assert_eq!(upcoming, fired);
    assert_eq!(fired.len(), 300);
}

/// A bucket whose window begins when an overdue timer was due is no earlier than that.
#[test]
fn the_wheel_says_nothing_of_a_deadline_that_is_not_earlier() {
    let mut model = Model::<HierarchicalWheel>::new(64, 0);
    let now = model.begin_pass(Span::Ticks(70));
    model.scheme.begin_pass(now);
    model.start(64, 0);
    // In the bucket from 64 on. (`start` compares what it says with the deadlines before and after.)
    model.start(100, 0);
    assert_eq!(model.scheme.next_deadline(), Some(64));
}
