//! G9, G17, G18, G28: whatever settings a builder is given, in whatever order, some of them twice, each does what it
//! says: the last value counts, and no other setting takes it away, not even one that changes the type.

mod kinds;
mod settings;

use kinds::{Built, Kind, Order, Tell};
use proptest::prelude::*;
use request_purgatory::purgatory::RejectReason;
use request_purgatory::time::{Clock, Timestamp};
use settings::{Drives, Expected, Runs, Setting, World, setting};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use support::expiries::for_any;
use support::spans::{Span, span};
use support::{PATIENCE, eventually, lock, threads_named};
use testing as support;

#[derive(Debug)]
struct Case {
    kind: Kind,
    settings: Vec<Setting>,
    /// Before which of the settings the type is changed, and to which hasher.
    turn: Option<(usize, usize)>,
    timeout: Span,
}

impl Case {
    fn order(&self) -> Order<'_> {
        let (at, hasher) = self.turn.unzip();
        let at = at.unwrap_or(0) % (self.settings.len() + 1);
        let (before, after) = self.settings.split_at(at);
        (before, hasher, after)
    }

    fn expected(&self) -> Expected {
        let (_, hasher, after) = self.order();
        let mut expected = Expected::of(&self.settings);
        // One that is chosen before the type is changed is left out.
        expected.hasher = hasher.map(|first| Expected::of(after).hasher.unwrap_or(first));
        if self.kind != Kind::Purgatory {
            expected.max_watchers = usize::MAX;
        }
        expected
    }

    /// What is wrong with the settings, if anything is.
    fn refusal(&self, expected: &Expected) -> Option<&'static str> {
        let token = expected.first_token <= 1 << 63 || self.kind != Kind::Tracker;
        let wheel = (2..=1 << 16).contains(&expected.choices.wheel_size);
        let refusal = (!token).then_some("FirstToken");
        let refusal = refusal.or((!wheel).then_some("WheelSize"));
        refusal.or(expected.choices.tick.is_zero().then_some("Tick"))
    }

    fn check(&self) {
        let (world, expected) = (World::new(), self.expected());
        let (sender, told) = channel();
        let built = self.kind.build(self.order(), &world, Tell(sender));
        let refusal = self.refusal(&expected);
        let refused = built.as_ref().err();
        assert_eq!(refused.map(String::as_str), refusal);
        let Ok(real) = built else { return };
        assert!(real.shown().contains(&world.name));
        // Its threads start at once, or later.
        let threads = || threads_named(&world.name).len();
        match expected.threads_at_once {
            true => eventually("its threads", || threads() == expected.threads()),
            false => assert_eq!(threads(), 0),
        }
        real.check(&expected);
        self.check_parked(&*real, &world, &expected, &told);
        for (which, hasher) in world.hashers.iter().enumerate() {
            let used = self.kind.has_keys() && expected.hasher == Some(which);
            assert!(used || hasher.0.count() == 0);
            assert!(!used || hasher.0.count() > 0 || expected.max_parked == 0);
        }
    }

    /// Why one more is rejected where `parked` are parked, if it is.
    fn refused(&self, expected: &Expected, parked: usize, at: Option<u64>) -> Option<RejectReason> {
        let is_too_long = at.is_some_and(|at| at >= expected.choices.wheel_size as u64);
        if parked >= expected.max_parked {
            Some(RejectReason::Full)
        } else if self.kind == Kind::SimpleTimer && is_too_long {
            Some(RejectReason::TooLong)
        } else {
            (expected.max_watchers == 0).then_some(RejectReason::KeyFull)
        }
    }

    /// One is parked, with others until there is no room; and told when its deadline has passed.
    fn check_parked(
        &self,
        real: &dyn Built,
        world: &World,
        expected: &Expected,
        told: &Receiver<Option<String>>,
    ) {
        let [clock, other] = [expected.clock, 1 - expected.clock].map(|it| &world.clocks[it]);
        let (start, choices) = (clock.now(), &expected.choices);
        let of = |timeout| choices.deadline(choices.start, timeout);
        let timeout = self.timeout.of(choices.tick);
        let refused = self.refused(expected, 0, of(timeout));
        assert_eq!(real.park(0, timeout).err(), refused);
        let Some(tick) = of(timeout).filter(|_| refused.is_none()) else {
            return;
        };
        for (which, woken) in world.reactors.iter().enumerate() {
            let drives = expected.reaper == Drives::Reactor(which);
            assert_eq!(woken.count() > 0, drives, "its deadline is the first");
        }
        let by_hand = !matches!(expected.reaper, Drives::Own | Drives::Shared);
        let at = choices.timestamp(tick);
        let mut due = 1;
        // (Where it is due at once, it may have expired by now.)
        if at > start {
            if by_hand {
                assert_eq!(real.seen().next, self.next_deadline(expected));
            }
            let mut parked = 1;
            for key in 1..6 {
                let refused = self.refused(expected, parked, of(Duration::MAX));
                assert_eq!(real.park(key, Duration::MAX).err(), refused);
                parked += usize::from(refused.is_none());
                // Its timeout may be cut.
                due += usize::from(refused.is_none() && of(Duration::MAX) == Some(tick));
            }
            assert_eq!(real.seen().stats.parked, parked);
            other.advance(Duration::MAX);
            clock.advance(at.saturating_since(start) - Duration::from_nanos(1));
            assert_eq!((real.advance(), real.seen().stats.expired), (0, 0));
            clock.advance(Duration::from_nanos(1));
        }
        if by_hand {
            let expired = real.advance();
            assert!(at <= start || expired == due);
        }
        eventually("they expire", || real.seen().stats.expired == due as u64);
        self.check_told(world, expected, told, due, at > start);
    }

    /// So many are told where they are to be told.
    fn check_told(
        &self,
        world: &World,
        expected: &Expected,
        told: &Receiver<Option<String>>,
        due: usize,
        in_time: bool,
    ) {
        let here = thread::current().name().map(str::to_owned);
        let reaper = match expected.reaper {
            Drives::Own => Some(format!("{}-reaper", world.name)),
            Drives::Shared => Some("shared-reaper".into()),
            Drives::Manual | Drives::Reactor(_) => here.clone(),
        };
        let place = match (expected.runs(), expected.reaper) {
            (Runs::Inline, _) => reaper,
            (Runs::OwnThread, Drives::Shared) => Some("shared-completions".into()),
            (Runs::OwnThread, _) => Some(format!("{}-completions", world.name)),
            (Runs::Executor(which), _) => {
                let jobs = &world.executors[which];
                eventually("the jobs", || lock(jobs).len() == due);
                assert!(lock(&world.executors[1 - which]).is_empty());
                let jobs = std::mem::take(&mut *lock(jobs));
                jobs.into_iter().for_each(|job| job());
                here
            }
        };
        for _ in 0..due {
            let told = told.recv_timeout(PATIENCE).expect("it has expired");
            assert!(told == place || !in_time, "{told:?}, not {place:?}");
        }
    }

    /// That of one for which the same counts, told in an order that has no surprises.
    fn next_deadline(&self, expected: &Expected) -> Option<Timestamp> {
        let choices = &expected.choices;
        let settings = [
            Setting::Reaper(Drives::Manual),
            Setting::Clock(expected.clock),
            Setting::MaxTimeout(choices.max_timeout),
            Setting::WheelSize(choices.wheel_size),
            Setting::Tick(choices.tick),
        ];
        let (order, tell) = ((&settings[..], None, &[][..]), Tell(channel().0));
        let plain = self.kind.build(order, &World::new(), tell);
        let plain = plain.expect("the settings make sense");
        assert_eq!(plain.park(0, self.timeout.of(choices.tick)), Ok(()));
        plain.seen().next
    }
}

prop_compose! {
    fn case()(
        kind in prop_oneof![
            3 => Just(Kind::Purgatory),
            1 => Just(Kind::Timer),
            1 => Just(Kind::HashedTimer),
            1 => Just(Kind::HeapTimer),
            1 => Just(Kind::SimpleTimer),
            3 => Just(Kind::Tracker),
            3 => Just(Kind::Requests),
        ],
        mut settings in prop::collection::vec(setting(), 0..16),
        (at, which) in (any::<usize>(), 0..2_usize),
        turn in prop::option::weighted(0.8, (any::<usize>(), 0..2_usize)),
        timeout in span(),
    ) -> Case {
        // Without a clock of the test's it would take real time.
        settings.insert(at % (settings.len() + 1), Setting::Clock(which));
        Case { kind, settings, turn, timeout }
    }
}

#[test]
fn g17_each_setting_of_a_builder_does_what_it_says_in_any_order() {
    let several = || prop::collection::vec(case(), 4);
    for_any(several, |all| all.iter().for_each(Case::check));
}
