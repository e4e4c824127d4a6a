//! What can be built: the four kinds, as the test sees them.

use crate::settings::{Expected, Setting, World, given};
use crate::support::expiries::{Common, common};
use crate::support::{Op, bell::waker, lock};
use request_purgatory::purgatory::{BuildError, Builder, KeyHasher, RejectReason};
use request_purgatory::scheme::{HashedWheel, Heap, HierarchicalWheel, Scheme, SimpleWheel};
use request_purgatory::{Purgatory, Timer};
use request_purgatory_tracker::{self as tracker, Requests, Responded, ResponseFuture, Tracker};
use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::mpsc::Sender;
use std::task::Context;
use std::thread;
use std::time::Duration;

/// Says on which thread it is told.
#[derive(Clone)]
pub(crate) struct Tell(pub(crate) Sender<Option<String>>);

impl Tell {
    pub(crate) fn tell(&self) {
        // The test may be over.
        let _ = self.0.send(thread::current().name().map(str::to_owned));
    }
}

/// One of the four kinds, as the test sees it.
pub(crate) trait Built {
    fn shown(&self) -> String;
    /// Parks something on this key, that tells when it expires.
    fn park(&self, key: u32, timeout: Duration) -> Result<(), RejectReason>;
    fn advance(&self) -> usize;
    fn seen(&self) -> Common;

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

        fn seen(&self) -> Common {
            common!(self.0)
        }
    };
}

/// A tracker has reasons of its own.
fn reason_of_tracker<T>(rejected: tracker::Rejected<T>) -> RejectReason {
    match rejected.reason() {
        tracker::RejectReason::Full => RejectReason::Full,
        other => panic!("{other:?}"),
    }
}

/// An error as it is shown. (Of a tracker: that of its timer, unless it is its own.)
pub(crate) type Make = Result<Box<dyn Built>, String>;

fn shown(error: BuildError) -> String {
    format!("{error:?}")
}

fn shown_of_tracker(error: tracker::BuildError) -> String {
    match error {
        tracker::BuildError::Timer(error) => shown(error),
        own => format!("{own:?}"),
    }
}

/// Settings, those before and after the one that changes the type; with that, unless it keeps its default.
pub(crate) type Order<'a> = (&'a [Setting], Option<usize>, &'a [Setting]);

/// What was built, whom it tells, and what is kept for that.
struct Of<R, K = ()>(R, Tell, K);

impl<S: KeyHasher> Built for Of<Purgatory<Op<u32>, S>> {
    alike!();

    fn park(&self, key: u32, timeout: Duration) -> Result<(), RejectReason> {
        let tell = self.1.clone();
        let op = Op::new(timeout).then(move |_| tell.tell());
        let parked = self.0.try_complete_else_watch(op, [key]);
        parked.map(|_| ()).map_err(|rejected| rejected.reason())
    }

    fn check(&self, expected: &Expected) {
        let key = 1 << 20;
        let room = expected.max_parked;
        for number in 0..room.min(4) {
            let parked = self.park(key, Duration::MAX);
            let refused = (number >= expected.max_watchers).then_some(RejectReason::KeyFull);
            assert_eq!(parked.err(), refused);
        }
        let watchers = room.min(4).min(expected.max_watchers);
        assert_eq!(self.0.watchers(&key), watchers);
        self.0.cancel_for_key(&key);
    }
}

impl<W: Scheme> Built for Of<Timer<Tell, W>> {
    alike!();

    fn park(&self, _: u32, timeout: Duration) -> Result<(), RejectReason> {
        let started = self.0.start(timeout, self.1.clone());
        started.map(|_| ()).map_err(|rejected| rejected.reason())
    }
}

impl<S: KeyHasher> Built for Of<Tracker<u32, Tell, S>> {
    alike!();

    fn park(&self, key: u32, timeout: Duration) -> Result<(), RejectReason> {
        let tracked = self.0.try_track(key, self.1.clone(), timeout);
        tracked.map(|_| ()).map_err(reason_of_tracker)
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

type Kept<S> = Mutex<Vec<ResponseFuture<u32, u32, S>>>;

impl<S: KeyHasher> Built for Of<Requests<u32, u32, S>, Kept<S>> {
    alike!();

    fn park(&self, key: u32, timeout: Duration) -> Result<(), RejectReason> {
        let request = self.0.request(key, timeout);
        let mut request = request.map_err(reason_of_tracker)?;
        let tell = self.1.clone();
        let waker = waker(move || tell.tell());
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
            // One more than it remembers.
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

pub(crate) fn purgatory(order: Order<'_>, world: &World, tell: Tell) -> Make {
    fn build<S: KeyHasher>(builder: Builder<Purgatory<Op<u32>, S>>, tell: Tell) -> Make {
        let built = builder.build().map_err(shown)?;
        Ok(Box::new(Of(built, tell, ())))
    }
    with_hasher!(Purgatory::builder(&world.name), order, world, |it| {
        Setting::MapShards(shards) => it.map_shards(shards),
        Setting::MaxWatchers(count) => it.max_watchers_per_key(count),
    }, |builder| build(builder, tell))
}

pub(crate) fn timer<W: Scheme>(order: Order<'_>, world: &World, tell: Tell) -> Make {
    let (before, _, after) = order;
    let builder = Timer::builder(&world.name);
    let builder = given!(builder, before, world, |it|).scheme::<W>();
    let builder = given!(builder, after, world, |it|);
    let built = builder.build(|tell: Tell| tell.tell()).map_err(shown)?;
    Ok(Box::new(Of(built, tell, ())))
}

pub(crate) fn tracker(order: Order<'_>, world: &World, tell: Tell) -> Make {
    fn build<S: KeyHasher>(builder: tracker::Builder<Tracker<u32, Tell, S>>, tell: Tell) -> Make {
        let built = builder.build(|_, value, _| value.tell());
        Ok(Box::new(Of(built.map_err(shown_of_tracker)?, tell, ())))
    }
    with_hasher!(Tracker::builder(&world.name), order, world, |it| {
        Setting::FirstToken(number) => it.first_token(number),
    }, |builder| build(builder, tell))
}

pub(crate) fn requests(order: Order<'_>, world: &World, tell: Tell) -> Make {
    fn build<S: KeyHasher>(builder: tracker::Builder<Requests<u32, u32, S>>, tell: Tell) -> Make {
        let built = builder.build().map_err(shown_of_tracker)?;
        Ok(Box::new(Of(built, tell, Kept::<S>::default())))
    }
    with_hasher!(Requests::builder(&world.name), order, world, |it| {
        Setting::RememberedIds(count) => it.remembered_ids(count),
    }, |builder| build(builder, tell))
}

/// The kinds, and in what they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
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
    pub(crate) fn has_keys(self) -> bool {
        matches!(self, Self::Purgatory | Self::Tracker | Self::Requests)
    }

    pub(crate) fn build(self, order: Order<'_>, world: &World, tell: Tell) -> Make {
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
