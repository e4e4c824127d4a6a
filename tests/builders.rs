//! G9, G17, G18, G28: whatever settings a builder is given, in whatever order, whichever of them twice, each does what it
//! says: the last value counts, and no other setting takes it away. Also those that change the type of what is built.

mod support;

use proptest::prelude::*;
use request_purgatory::purgatory::{BuildError, Builder, KeyHasher, RejectReason, Rejected, Stats};
use request_purgatory::scheme::{HashedWheel, Heap, HierarchicalWheel, Scheme, SimpleWheel};
use request_purgatory::threads::{Dispatch, Reaper, ReaperThread};
use request_purgatory::time::{Clock, ManualClock, Timestamp, WakeFn};
use request_purgatory::tracker::{Responded, ResponseFuture};
use request_purgatory::{Purgatory, Requests, Timer, Tracker};
use std::future::Future;
use std::hash::{BuildHasher, DefaultHasher};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;
use support::expiries::for_any;
use support::spans::{Choices, Span, span};
use support::{Job, Op, PATIENCE, Tally, eventually, lock, threads_named};

/// Where the user's code runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    OwnThread,
    Inline,
    /// One of two executors.
    Executor(usize),
}

/// Who drives the timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drives {
    Own,
    Shared,
    /// One of two reactors.
    Reactor(usize),
    Manual,
}

#[derive(Debug, Clone, Copy)]
enum Setting {
    Tick(Duration),
    WheelSize(usize),
    MaxParked(usize),
    MaxTimeout(Duration),
    /// One of two clocks.
    Clock(usize),
    Dispatch(Runs),
    Reaper(Drives),
    ThreadsAtOnce,
    /// One of two hashers.
    Hasher(usize),
    MapShards(usize),
    MaxWatchers(usize),
    FirstToken(u64),
    RememberedIds(usize),
}

/// What a builder was told last.
#[derive(Debug, Clone)]
struct Expected {
    tick: Duration,
    wheel_size: usize,
    max_parked: usize,
    max_timeout: Duration,
    clock: usize,
    dispatch: Option<Runs>,
    reaper: Drives,
    threads_at_once: bool,
    hasher: Option<usize>,
    map_shards: Option<usize>,
    max_watchers: usize,
    first_token: u64,
    remembered_ids: usize,
}

impl Expected {
    fn of(settings: &[Setting]) -> Self {
        let mut it = Self {
            tick: Duration::from_millis(1),
            wheel_size: 64,
            max_parked: usize::MAX,
            max_timeout: Duration::MAX,
            clock: 0,
            dispatch: None,
            reaper: Drives::Own,
            threads_at_once: false,
            hasher: None,
            map_shards: None,
            max_watchers: usize::MAX,
            first_token: 1,
            remembered_ids: 8_192,
        };
        for setting in settings {
            match *setting {
                Setting::Tick(tick) => it.tick = tick,
                Setting::WheelSize(slots) => it.wheel_size = slots,
                Setting::MaxParked(count) => it.max_parked = count,
                Setting::MaxTimeout(timeout) => it.max_timeout = timeout,
                Setting::Clock(which) => it.clock = which,
                Setting::Dispatch(runs) => it.dispatch = Some(runs),
                Setting::Reaper(drives) => it.reaper = drives,
                Setting::ThreadsAtOnce => it.threads_at_once = true,
                Setting::Hasher(which) => it.hasher = Some(which),
                Setting::MapShards(shards) => it.map_shards = Some(shards),
                Setting::MaxWatchers(count) => it.max_watchers = count,
                Setting::FirstToken(number) => it.first_token = number,
                Setting::RememberedIds(count) => it.remembered_ids = count,
            }
        }
        it
    }

    fn runs(&self) -> Runs {
        self.dispatch.unwrap_or(match self.reaper {
            Drives::Own | Drives::Shared => Runs::OwnThread,
            Drives::Reactor(_) | Drives::Manual => Runs::Inline,
        })
    }

    /// The threads that only this has.
    fn threads(&self) -> usize {
        let completions = self.runs() == Runs::OwnThread && self.reaper != Drives::Shared;
        usize::from(self.reaper == Drives::Own) + usize::from(completions)
    }

    /// The arithmetic of its deadlines.
    fn choices(&self, start: Duration) -> Choices {
        Choices {
            tick: self.tick,
            wheel_size: self.wheel_size,
            max_parked: None,
            max_timeout: self.max_timeout,
            start,
        }
    }
}

/// What settings name, of each kind two, and what becomes of them.
struct World {
    name: String,
    clocks: [ManualClock; 2],
    executors: [Arc<Mutex<Vec<Job>>>; 2],
    reactors: [Arc<Tally>; 2],
    hashers: [Counting; 2],
    shared: ReaperThread,
}

/// A hasher that counts.
#[derive(Clone)]
struct Counting(Arc<Tally>);

impl BuildHasher for Counting {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        self.0.add();
        DefaultHasher::new()
    }
}

impl World {
    fn new(shared: &ReaperThread) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            name: format!("b{}.", NEXT.fetch_add(1, Ordering::Relaxed)),
            clocks: [7, 11].map(|start| ManualClock::starting_at(Duration::from_secs(start))),
            executors: Default::default(),
            reactors: [Tally::new(), Tally::new()],
            hashers: [Tally::new(), Tally::new()].map(Counting),
            shared: shared.clone(),
        }
    }

    fn dispatch(&self, runs: Runs) -> Dispatch {
        match runs {
            Runs::OwnThread => Dispatch::OwnThread,
            Runs::Inline => Dispatch::Inline,
            Runs::Executor(which) => {
                let jobs = self.executors[which].clone();
                Dispatch::Executor(Arc::new(move |job| lock(&jobs).push(job)))
            }
        }
    }

    fn reaper(&self, drives: Drives) -> Reaper {
        match drives {
            Drives::Own => Reaper::Own,
            Drives::Shared => Reaper::Shared(self.shared.clone()),
            Drives::Manual => Reaper::Manual,
            Drives::Reactor(which) => {
                let woken = self.reactors[which].clone();
                Reaper::Reactor(WakeFn::new(move || {
                    woken.add();
                    true
                }))
            }
        }
    }
}

/// Gives a builder all settings, one after the other: those that every kind has, and those of this kind.
macro_rules! given {
    ($builder:expr, $settings:expr, $world:expr, |$it:ident| $($own:tt)*) => {
        $settings.iter().fold($builder, |$it, setting| match *setting {
            Setting::Tick(tick) => $it.tick(tick),
            Setting::WheelSize(slots) => $it.wheel_size(slots),
            Setting::MaxParked(count) => $it.max_parked(count),
            Setting::MaxTimeout(timeout) => $it.max_timeout(timeout),
            Setting::Clock(which) => $it.clock($world.clocks[which].clone()),
            Setting::Dispatch(runs) => $it.dispatch($world.dispatch(runs)),
            Setting::Reaper(drives) => $it.reaper($world.reaper(drives)),
            Setting::ThreadsAtOnce => $it.threads_at_once(),
            $($own)*
            #[allow(unreachable_patterns, reason = "a kind may have all")]
            _ => $it,
        })
    };
}

/// Says on which thread it is told.
#[derive(Clone)]
struct Tell(Sender<Option<String>>);

impl Tell {
    fn tell(&self) {
        // The test may be over.
        let _ = self.0.send(thread::current().name().map(str::to_owned));
    }
}

impl Wake for Tell {
    fn wake(self: Arc<Self>) {
        self.tell();
    }
}

/// One of the four kinds, as the test sees it.
trait Built {
    fn shown(&self) -> String;
    /// Parks something on this key, that tells when it expires.
    fn park(&self, key: u32, timeout: Duration) -> Result<(), RejectReason>;
    fn advance(&self) -> usize;
    fn next_deadline(&self) -> Option<Timestamp>;
    fn stats(&self) -> Stats;

    /// Looks whether the settings that only this kind has do what they say.
    fn check(&self, _: &Expected) {}
}

/// The methods that all kinds have alike.
macro_rules! alike {
    () => {
        fn shown(&self) -> String {
            format!("{:?}", self.0)
        }

        fn advance(&self) -> usize {
            self.0.advance()
        }

        fn next_deadline(&self) -> Option<Timestamp> {
            self.0.next_deadline()
        }

        fn stats(&self) -> Stats {
            self.0.stats()
        }
    };
}

fn reason<T>(rejected: Rejected<T>) -> RejectReason {
    rejected.reason()
}

type Make = Result<Box<dyn Built>, BuildError>;

/// Settings, those before and after the one that changes the type; with that, unless it keeps its default.
type Order<'a> = (&'a [Setting], Option<usize>, &'a [Setting]);

struct OfPurgatory<S: request_purgatory::purgatory::KeyHasher>(Purgatory<Op<u32>, S>, Tell);

impl<S: KeyHasher> Built for OfPurgatory<S> {
    alike!();

    fn park(&self, key: u32, timeout: Duration) -> Result<(), RejectReason> {
        let tell = self.1.clone();
        let op = Op::new(timeout).then(move |_| tell.tell());
        let parked = self.0.try_complete_else_watch(op, [key]);
        parked.map(|_| ()).map_err(reason)
    }

    fn check(&self, expected: &Expected) {
        let key = 1 << 20;
        let room = expected.max_parked;
        for number in 0..room.min(4) {
            let parked = self.park(key, Duration::MAX);
            let refused = (number >= expected.max_watchers).then_some(RejectReason::KeyFull);
            assert_eq!(parked.err(), refused);
        }
        assert_eq!(
            self.0.watchers(&key),
            room.min(4).min(expected.max_watchers)
        );
        self.0.cancel_for_key(&key);
    }
}

struct OfTimer<W: Scheme>(Timer<Tell, W>, Tell);

impl<W: Scheme> Built for OfTimer<W> {
    alike!();

    fn park(&self, _: u32, timeout: Duration) -> Result<(), RejectReason> {
        let started = self.0.start(timeout, self.1.clone());
        started.map(|_| ()).map_err(reason)
    }
}

struct OfTracker<S: KeyHasher>(Tracker<u32, Tell, S>, Tell);

impl<S: KeyHasher> Built for OfTracker<S> {
    alike!();

    fn park(&self, key: u32, timeout: Duration) -> Result<(), RejectReason> {
        let tracked = self.0.try_track(key, self.1.clone(), timeout);
        tracked.map(|_| ()).map_err(reason)
    }

    fn check(&self, expected: &Expected) {
        if expected.max_parked > 0 {
            let first = self.0.try_track(9, self.1.clone(), Duration::MAX);
            let first = first.expect("there is room");
            assert_eq!(first.get(), expected.first_token);
            assert!(self.0.complete_if(&9, first).is_some());
        }
    }
}

struct OfRequests<S: KeyHasher>(
    Requests<u32, u32, S>,
    Tell,
    Mutex<Vec<ResponseFuture<u32, u32, S>>>,
);

impl<S: KeyHasher> Built for OfRequests<S> {
    alike!();

    fn park(&self, key: u32, timeout: Duration) -> Result<(), RejectReason> {
        let mut request = self.0.request(key, timeout).map_err(reason)?;
        let waker = Waker::from(Arc::new(self.1.clone()));
        let poll = pin!(&mut request).poll(&mut Context::from_waker(&waker));
        // It may have expired on another thread before it could be polled.
        if poll.is_ready() {
            self.1.tell();
        }
        lock(&self.2).push(request);
        Ok(())
    }

    fn check(&self, expected: &Expected) {
        if expected.max_parked > 0 && expected.remembered_ids < 100 {
            let ids = 0..=expected.remembered_ids as u32;
            for id in ids.clone() {
                drop(self.0.request(id, Duration::MAX).expect("there is room"));
            }
            for id in ids {
                let late = matches!(self.0.respond(&id, 0), Responded::Late(0));
                assert_eq!(late, id > 0, "{id}");
            }
        }
    }
}

/// Gives a builder all settings of a kind, and in between its hasher, and builds it.
macro_rules! with_hasher {
    ($new:expr, $order:expr, $world:expr, |$it:ident| { $($own:tt)* }, $build:expr) => {{
        let (before, hasher, after) = $order;
        let builder = given!($new, before, $world, |$it| $($own)*);
        match hasher {
            None => $build(given!(builder, after, $world, |$it| $($own)*)),
            Some(which) => {
                let builder = builder.hasher($world.hashers[which].clone());
                let builder = given!(builder, after, $world, |$it|
                    Setting::Hasher(which) => $it.hasher($world.hashers[which].clone()),
                    $($own)*
                );
                $build(builder)
            }
        }
    }};
}

fn purgatory(order: Order<'_>, world: &World, tell: Tell) -> Make {
    fn build<S: KeyHasher>(builder: Builder<Purgatory<Op<u32>, S>>, tell: Tell) -> Make {
        Ok(Box::new(OfPurgatory(builder.build()?, tell)))
    }
    with_hasher!(Purgatory::builder(&world.name), order, world, |it| {
        Setting::MapShards(shards) => it.map_shards(shards),
        Setting::MaxWatchers(count) => it.max_watchers_per_key(count),
    }, |builder| build(builder, tell))
}

fn timer<W: Scheme>(order: Order<'_>, world: &World, tell: Tell) -> Make {
    let (before, _, after) = order;
    let builder = Timer::builder(&world.name);
    let builder = given!(builder, before, world, |it|).scheme::<W>();
    let builder = given!(builder, after, world, |it|);
    Ok(Box::new(OfTimer(
        builder.build(|tell: Tell| tell.tell())?,
        tell,
    )))
}

fn tracker(order: Order<'_>, world: &World, tell: Tell) -> Make {
    fn build<S: KeyHasher>(builder: Builder<Tracker<u32, Tell, S>>, tell: Tell) -> Make {
        Ok(Box::new(OfTracker(
            builder.build(|_, value, _| value.tell())?,
            tell,
        )))
    }
    with_hasher!(Tracker::builder(&world.name), order, world, |it| {
        Setting::FirstToken(number) => it.first_token(number),
    }, |builder| build(builder, tell))
}

fn requests(order: Order<'_>, world: &World, tell: Tell) -> Make {
    fn build<S: KeyHasher>(builder: Builder<Requests<u32, u32, S>>, tell: Tell) -> Make {
        Ok(Box::new(OfRequests(
            builder.build()?,
            tell,
            Mutex::default(),
        )))
    }
    with_hasher!(Requests::builder(&world.name), order, world, |it| {
        Setting::RememberedIds(count) => it.remembered_ids(count),
    }, |builder| build(builder, tell))
}

/// The kinds, and in what they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Purgatory,
    Timer,
    /// Of another scheme.
    HashedTimer,
    HeapTimer,
    /// Of one with a horizon.
    SimpleTimer,
    Tracker,
    Requests,
}

impl Kind {
    fn has_keys(self) -> bool {
        matches!(self, Self::Purgatory | Self::Tracker | Self::Requests)
    }

    fn build(self, order: Order<'_>, world: &World, tell: Tell) -> Make {
        match self {
            Self::Purgatory => purgatory(order, world, tell),
            Self::Timer => timer::<HierarchicalWheel>(order, world, tell),
            Self::HashedTimer => timer::<HashedWheel>(order, world, tell),
            Self::HeapTimer => timer::<Heap>(order, world, tell),
            Self::SimpleTimer => timer::<SimpleWheel>(order, world, tell),
            Self::Tracker => tracker(order, world, tell),
            Self::Requests => requests(order, world, tell),
        }
    }
}

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
    fn refusal(&self, expected: &Expected) -> Option<BuildError> {
        let token = (1..=1 << 63).contains(&expected.first_token) || self.kind != Kind::Tracker;
        let wheel = (2..=1 << 16).contains(&expected.wheel_size);
        let refusal = (!token).then_some(BuildError::FirstToken);
        let refusal = refusal.or((!wheel).then_some(BuildError::WheelSize));
        refusal.or(expected.tick.is_zero().then_some(BuildError::Tick))
    }

    fn check(&self, shared: &ReaperThread) {
        let (world, expected) = (World::new(shared), self.expected());
        let (sender, told) = channel();
        let built = self.kind.build(self.order(), &world, Tell(sender));
        let refusal = self.refusal(&expected);
        assert_eq!(
            format!("{:?}", built.as_ref().err()),
            format!("{refusal:?}")
        );
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

    /// Why it is refused where so many are parked, if it is.
    fn refused(
        &self,
        expected: &Expected,
        parked: usize,
        deadline: Option<u64>,
    ) -> Option<RejectReason> {
        let horizon = expected.wheel_size as u64;
        if parked >= expected.max_parked {
            return Some(RejectReason::Full);
        }
        if self.kind == Kind::SimpleTimer && deadline.is_some_and(|at| at >= horizon) {
            return Some(RejectReason::TooLong);
        }
        (expected.max_watchers == 0).then_some(RejectReason::KeyFull)
    }

    /// One is parked, with others until there is no room; and told when its deadline has passed.
    fn check_parked(
        &self,
        real: &dyn Built,
        world: &World,
        expected: &Expected,
        told: &Receiver<Option<String>>,
    ) {
        let (clock, other) = (
            &world.clocks[expected.clock],
            &world.clocks[1 - expected.clock],
        );
        let start = clock.now();
        let choices = expected.choices(start.since_origin());
        let of = |timeout| choices.deadline(start.since_origin(), timeout);
        let timeout = self.timeout.of(expected.tick);
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
                assert_eq!(
                    real.next_deadline(),
                    self.next_deadline(expected, clock.now())
                );
            }
            let mut parked = 1;
            for key in 1..6 {
                let refused = self.refused(expected, parked, of(Duration::MAX));
                assert_eq!(real.park(key, Duration::MAX).err(), refused);
                parked += usize::from(refused.is_none());
                // Its timeout may be cut.
                due += usize::from(refused.is_none() && of(Duration::MAX) == Some(tick));
            }
            assert_eq!(real.stats().parked, parked);
            other.advance(Duration::MAX);
            clock.advance(at.saturating_since(start) - Duration::from_nanos(1));
            assert_eq!((real.advance(), real.stats().expired), (0, 0));
            clock.advance(Duration::from_nanos(1));
        }
        if by_hand {
            let expired = real.advance();
            assert!(at <= start || expired == due);
        }
        eventually("they expire", || real.stats().expired == due as u64);
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
                std::mem::take(&mut *lock(jobs))
                    .into_iter()
                    .for_each(|job| job());
                here
            }
        };
        for _ in 0..due {
            let told = told.recv_timeout(PATIENCE).expect("it has expired");
            assert!(told == place || !in_time, "{told:?}, not {place:?}");
        }
    }

    /// That of one for which the same counts, told in an order that has no surprises.
    fn next_deadline(&self, expected: &Expected, now: Timestamp) -> Option<Timestamp> {
        let world = World {
            clocks: [(); 2].map(|()| ManualClock::starting_at(now.since_origin())),
            ..World::new(&SHARED)
        };
        let settings = [
            Setting::Reaper(Drives::Manual),
            Setting::Clock(0),
            Setting::MaxTimeout(expected.max_timeout),
            Setting::WheelSize(expected.wheel_size),
            Setting::Tick(expected.tick),
        ];
        let plain = self
            .kind
            .build((&settings, None, &[]), &world, Tell(channel().0));
        let plain = plain.expect("the settings make sense");
        plain
            .park(0, self.timeout.of(expected.tick))
            .expect("there is room");
        plain.next_deadline()
    }
}

fn setting() -> impl Strategy<Value = Setting> {
    let tick = prop_oneof![1 => Just(0), 6 => 1..10_000_000_u64, 6 => Just(2_000_000)];
    let wheel =
        prop_oneof![1 => Just(1), 1 => Just((1 << 16) + 1), 6 => 2..9_usize, 6 => 2..200_usize];
    let runs = prop_oneof![
        Just(Runs::OwnThread),
        Just(Runs::Inline),
        (0..2_usize).prop_map(Runs::Executor)
    ];
    let drives = prop_oneof![
        1 => Just(Drives::Own),
        1 => Just(Drives::Shared),
        2 => (0..2_usize).prop_map(Drives::Reactor),
        3 => Just(Drives::Manual)
    ];
    let token = prop_oneof![1 => Just(0), 6 => 1..100_u64, 2 => Just(1 << 63)];
    let common = prop_oneof![
        tick.prop_map(|nanos| Setting::Tick(Duration::from_nanos(nanos))),
        wheel.prop_map(Setting::WheelSize),
        (0..5_usize).prop_map(Setting::MaxParked),
        (0..50_000_u64).prop_map(|micros| Setting::MaxTimeout(Duration::from_micros(micros))),
        (0..2_usize).prop_map(Setting::Clock),
        runs.prop_map(Setting::Dispatch),
        drives.prop_map(Setting::Reaper),
        Just(Setting::ThreadsAtOnce),
    ];
    let own = prop_oneof![
        (0..2_usize).prop_map(Setting::Hasher),
        (0..10_usize).prop_map(Setting::MapShards),
        (0..4_usize).prop_map(Setting::MaxWatchers),
        token.prop_map(Setting::FirstToken),
        (0..5_usize).prop_map(Setting::RememberedIds),
    ];
    prop_oneof![2 => common, 1 => own]
}

fn case() -> impl Strategy<Value = Case> {
    let kind = prop_oneof![
        3 => Just(Kind::Purgatory),
        1 => Just(Kind::Timer),
        1 => Just(Kind::HashedTimer),
        1 => Just(Kind::HeapTimer),
        1 => Just(Kind::SimpleTimer),
        3 => Just(Kind::Tracker),
        3 => Just(Kind::Requests),
    ];
    let clock = (any::<usize>(), 0..2_usize);
    let settings = (prop::collection::vec(setting(), 0..16), clock);
    // Without a clock of the test's it would take real time.
    let settings = settings.prop_map(|(mut settings, (at, which))| {
        settings.insert(at % (settings.len() + 1), Setting::Clock(which));
        settings
    });
    let turn = prop::option::weighted(0.8, (any::<usize>(), 0..2_usize));
    let all = (kind, settings, turn, span());
    all.prop_map(|(kind, settings, turn, timeout)| Case {
        kind,
        settings,
        turn,
        timeout,
    })
}

/// The reaper of all that share one.
static SHARED: LazyLock<ReaperThread> =
    LazyLock::new(|| ReaperThread::spawn("shared").expect("two threads more"));

#[test]
fn g17_each_setting_of_a_builder_does_what_it_says_in_any_order() {
    let several = || prop::collection::vec(case(), 4);
    for_any(several, |all| {
        all.iter().for_each(|case| case.check(&SHARED))
    });
}
