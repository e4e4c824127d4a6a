//! A model of the timers that a scheme should hold: a sorted map. After each step, a test compares the scheme with the
//! map.
//!
//! The model accepts every order in which a scheme fires timers. A timer that fires must have reached its deadline, and
//! must have been started before the pass began. When a pass is complete, every such timer must have fired.

use super::Tested;
use crate::{HorizonError, Position, Records, Started, Step, Tick};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// A hundred years in milliseconds.
pub(super) const CENTURY: Tick = 100 * 366 * 86_400_000;

/// The records. A record exists from the return of `start` on: a scheme that reads or writes it earlier panics here.
#[derive(Debug, Default)]
pub(super) struct Table(pub(super) BTreeMap<u32, (Tick, Position)>);

impl Records for Table {
    fn deadline(&self, id: u32) -> Tick {
        self.0[&id].0
    }

    fn set_position(&mut self, id: u32, position: Position) {
        self.0.get_mut(&id).expect("a record").1 = position;
    }
}

/// A scheme, and the timers that it should hold.
pub(super) struct Model<S> {
    pub(super) scheme: S,
    /// The number of slots per level that the scheme has.
    slots: Tick,
    records: Table,
    /// For each timer: its deadline, and the number of passes that had begun when the timer was started.
    started: BTreeMap<u32, (Tick, u32)>,
    /// The timers in the order of their deadlines.
    deadlines: BTreeSet<(Tick, u32)>,
    passes: u32,
    pub(super) present: Tick,
    ids: u32,
}

/// A tick, mostly relative to the present: a deadline, or the end of a jump (the present of the next pass).
#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    In(u64),
    Ago(u64),
    /// The present, plus a multiple of a power of `slots`, plus an offset. The fields are the factor, the exponent of
    /// the power, and the offset: -1, 0 or 1.
    Revolutions(u32, u32, i64),
    /// The present, plus a number of ticks that is a power of two, plus an offset. The fields are the exponent of the
    /// power, and the offset: -1, 0 or 1.
    Power(u32, i64),
    /// The earliest deadline, with an offset of -1, 0 or 1.
    Earliest(i64),
    At(Tick),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    /// Starts a timer, with a `now` that is this number of ticks before the present.
    Start(When, u64),
    Stop(Index),
    Restart(Index, When),
    StopNothing,
}

#[derive(Debug, Clone)]
pub(super) enum Event {
    Act(Action),
    /// Starts this number of timers, with deadlines scattered over this number of ticks. There may be enough to fill
    /// several blocks of a bucket and several levels of a heap.
    Crowd(u64, u64),
    /// Makes a pass, with one action after each step while actions remain. If a number is given, the pass is left
    /// unfinished after this number of steps.
    Pass(When, Vec<Action>, Option<usize>),
    /// Makes steps of an earlier pass. The first number is how many ticks before the present the earlier pass began.
    /// The second number is the number of steps.
    Straggle(u64, usize),
}

impl<S: Tested> Model<S> {
    pub(super) fn new(slots: u32, now: Tick) -> Self {
        Self {
            scheme: S::new(slots, now),
            slots: S::slots(slots),
            records: Table::default(),
            started: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            passes: 0,
            present: now,
            ids: 0,
        }
    }

    pub(super) fn run(slots: u32, now: Tick, events: &[Event]) {
        let mut model = Self::new(slots, now);
        for event in events {
            match event {
                Event::Act(action) => model.act(*action),
                Event::Crowd(count, ticks) => model.crowd(*count, *ticks),
                Event::Pass(to, actions, leave) => _ = model.pass(*to, actions, *leave),
                Event::Straggle(back, steps) => model.straggle(*back, *steps),
            }
        }
        model.pass(When::At(Tick::MAX - 1), &[], None);
        model.pass(When::In(0), &[], None);
        assert_eq!(model.scheme.len(), 0, "every timer has fired in the end");
    }

    fn tick(&self, when: When) -> Tick {
        let now = self.present;
        let near = |tick: Tick, by: i64| tick.saturating_add_signed(by);
        let tick = match when {
            When::In(ticks) => now.saturating_add(ticks),
            When::Ago(ticks) => now.saturating_sub(ticks),
            When::Revolutions(times, level, by) => {
                let width = Tick::from(times).saturating_mul(self.slots.saturating_pow(level));
                near(now.saturating_add(width), by)
            }
            When::Power(bit, by) => near(now.saturating_add(1 << bit), by),
            When::Earliest(by) => near(self.earliest().unwrap_or(now), by),
            When::At(tick) => tick,
        };
        tick.min(Tick::MAX - 1)
    }

    fn earliest(&self) -> Option<Tick> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Starts a timer, with `now` as the scheme's present.
    pub(super) fn start(&mut self, deadline: Tick, now: Tick) {
        self.ids += 1;
        self.start_as(self.ids, deadline, now);
    }

    fn start_as(&mut self, id: u32, deadline: Tick, now: Tick) {
        self.records.0.remove(&id);
        let before = self.scheme.next_deadline();
        let result = self.scheme.start(&mut self.records, id, deadline, now);
        let after = self.scheme.next_deadline();
        let latest = self.present.saturating_add(self.slots - 1);
        match result {
            Ok(Started { position, earliest }) => {
                assert!(S::ENDLESS || deadline <= latest, "past the horizon");
                self.records.0.insert(id, (deadline, position));
                self.started.insert(id, (deadline, self.passes));
                self.deadlines.insert((deadline, id));
                let earlier = after.filter(|&after| before.is_none_or(|before| after < before));
                assert_eq!(earliest, earlier, "from {before:?} to {after:?}");
            }
            Err(HorizonError { latest: said }) => {
                assert!(!S::ENDLESS && deadline > said && said <= latest);
                assert!(said >= now.saturating_add(self.slots - 1));
            }
        }
        self.check();
    }

    fn crowd(&mut self, count: u64, ticks: u64) {
        for n in 0..count {
            let deadline = self.tick(When::In(n.wrapping_mul(0x9E37_79B9) % ticks));
            self.start(deadline, self.present);
        }
    }

    fn stop(&mut self, which: Index) -> Option<u32> {
        let ids = self.started.keys().copied().collect::<Vec<_>>();
        let id = *which.get(ids.get(..).filter(|ids| !ids.is_empty())?);
        self.started.remove(&id);
        let (deadline, position) = self.records.0[&id];
        self.deadlines.remove(&(deadline, id));
        self.scheme.stop(&mut self.records, position);
        self.records.0.remove(&id);
        self.check();
        Some(id)
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(when, back) => {
                self.start(self.tick(when), self.present.saturating_sub(back));
            }
            Action::Stop(which) => _ = self.stop(which),
            Action::Restart(which, when) => {
                if let Some(id) = self.stop(which) {
                    self.start_as(id, self.tick(when), self.present);
                }
            }
            Action::StopNothing => self.scheme.stop(&mut self.records, Position::NONE),
        }
        self.check_positions();
    }

    /// Begins a pass, and returns its present.
    pub(super) fn begin_pass(&mut self, to: When) -> Tick {
        self.present = self.tick(to).max(self.present);
        self.passes += 1;
        self.scheme.begin_pass(self.present);
        self.check();
        self.present
    }

    /// Does a pass, and returns the number of its steps. Checks that this number is bounded by the timers and levels,
    /// not by the ticks.
    pub(super) fn pass(&mut self, to: When, actions: &[Action], leave: Option<usize>) -> usize {
        let now = self.begin_pass(to);
        let levels = (1..64).take_while(|&level| self.slots.checked_pow(level).is_some());
        let timers = self.started.len() + actions.len();
        let bound = (timers + 2 * self.slots as usize) * (levels.count() + 2) + 1;
        let mut actions = actions.iter();
        for steps in 0..=bound {
            if leave == Some(steps) {
                return steps;
            }
            if !self.step(now) {
                for &(deadline, pass) in self.started.values() {
                    assert!(deadline > now || pass == self.passes, "late");
                }
                self.check_positions();
                return steps;
            }
            if let Some(&action) = actions.next() {
                self.act(action);
            }
        }
        panic!("more than {bound} steps for {timers} timers");
    }

    fn straggle(&mut self, back: u64, steps: usize) {
        let now = self.present.saturating_sub(back);
        let _idle = (0..steps).all(|_| self.step(now));
    }

    /// Does a step of a pass at `now`. `false` if the pass is complete.
    fn step(&mut self, now: Tick) -> bool {
        let step = self.scheme.step(&mut self.records, now);
        if let Step::Fired(id, deadline) = step {
            let (expected, pass) = self.started.remove(&id).expect("a timer that is started");
            assert_eq!(deadline, expected);
            self.deadlines.remove(&(deadline, id));
            assert!(deadline <= now, "early");
            assert!(pass < self.passes, "started in this pass");
            assert_eq!(self.records.0[&id].1, Position::NONE);
        }
        self.check();
        step != Step::Idle
    }

    /// Checks the conditions that hold at every moment.
    fn check(&mut self) {
        assert_eq!(self.scheme.len(), self.started.len());
        assert_eq!(self.scheme.is_empty(), self.started.is_empty());
        let (next, earliest) = (self.scheme.next_deadline(), self.earliest());
        assert_eq!(next.is_none(), earliest.is_none());
        assert!(next <= earliest, "{next:?} is past {earliest:?}");
        let overdue = next.is_some_and(|next| next <= self.present);
        assert!(!S::EXACT || next == earliest || overdue, "not the earliest");
    }

    fn check_positions(&self) {
        let positions = self.started.keys().map(|id| self.records.0[id].1.number());
        let positions = positions.collect::<HashSet<_>>();
        assert_eq!(positions.len(), self.started.len(), "not distinct");
        assert!(!positions.contains(&Position::NONE.number()));
    }
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        6 => (0..5_u64).prop_map(When::In),
        2 => (0..70_u64).prop_map(When::In),
        4 => (1..4_u32, 1..4_u32, -1..2_i64).prop_map(|(n, level, by)| When::Revolutions(n, level, by)),
        2 => (0..64_u32, -1..2_i64).prop_map(|(bit, by)| When::Power(bit, by)),
        2 => (-1..2_i64).prop_map(When::Earliest),
        1 => Just(When::In(CENTURY)),
        1 => any::<u64>().prop_map(When::At),
    ]
}

/// The present of the next pass (round of expiry), to which time jumps. Most jumps are short, so that some timers are
/// left after the pass.
fn jump() -> impl Strategy<Value = When> {
    let far = |to: &When| matches!(to, When::At(_) | When::In(CENTURY) | When::Power(33.., _));
    prop_oneof![5 => when().prop_filter("near", move |to| !far(to)), 1 => when()]
}

fn action() -> impl Strategy<Value = Action> {
    let deadline = || prop_oneof![8 => when(), 1 => (0..70_u64).prop_map(When::Ago)];
    let back = prop_oneof![3 => Just(0), 1 => 1..4_u64];
    prop_oneof![
        6 => (deadline(), back).prop_map(|(when, back)| Action::Start(when, back)),
        2 => any::<Index>().prop_map(Action::Stop),
        1 => (any::<Index>(), deadline()).prop_map(|(which, when)| Action::Restart(which, when)),
        1 => Just(Action::StopNothing),
    ]
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    let actions = prop::collection::vec(action(), 0..8);
    let back = prop_oneof![3 => 0..5_u64, 1 => 0..70_u64];
    let leave = prop_oneof![3 => Just(None), 1 => (0..12_usize).prop_map(Some)];
    prop_oneof![
        6 => action().prop_map(Event::Act),
        1 => (1..150_u64, 1..300_u64).prop_map(|(count, ticks)| Event::Crowd(count, ticks)),
        5 => (jump(), actions, leave).prop_map(|(to, actions, leave)| Event::Pass(to, actions, leave)),
        2 => (back, 1..30_usize).prop_map(|(back, steps)| Event::Straggle(back, steps)),
    ]
}

pub(super) fn origin() -> impl Strategy<Value = Tick> {
    let around = |tick: Tick| tick - 80..tick + 80;
    prop_oneof![
        2 => 0..200_u64,
        1 => around(1 << 30),
        1 => around(1 << 36),
        1 => around(1 << 63),
        1 => Tick::MAX - 300..Tick::MAX,
        1 => any::<u64>(),
    ]
}

pub(super) fn slots() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0..9_u32,
        2 => prop::sample::select(vec![16, 20, 60, 64, 100]),
        1 => 2..700_u32,
    ]
}
