//! `Tracker` and `Requests`: threads that track, complete, respond, forget and expire under one key. Each value must
//! end once, and the map must be empty at the end: every key in it is a clone that is counted.

use loom::thread;
use loom_tests::bounded;
use request_purgatory::{WaitError, threads::Dispatch, threads::Reaper, time::ManualClock};
use request_purgatory_tracker::{RejectReason, Rejected, Requests, Responded, Tracker};
use std::future::Future;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const NEAR: Duration = Duration::from_millis(2);

/// Without a seed: every execution of a model visits the keys in one order.
type Fixed = BuildHasherDefault<DefaultHasher>;

/// A key, of which it is known how many clones there are.
#[derive(Clone)]
struct Key(u8, Arc<()>);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// A tracker that the model drives, and what has become of its values.
#[derive(Clone)]
struct World {
    tracker: Tracker<Key, u32, Fixed>,
    clock: ManualClock,
    keys: Arc<()>,
    /// (No thread of the model is ever stopped while it has this lock.)
    ends: Arc<Mutex<Vec<u32>>>,
    /// How many the reaper has expired.
    driven: Arc<AtomicUsize>,
}

impl World {
    fn new() -> Self {
        let (clock, ends) = (ManualClock::new(), Arc::<Mutex<Vec<u32>>>::default());
        let log = ends.clone();
        let tracker = Tracker::builder("model")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(Dispatch::Inline)
            .hasher(Fixed::default())
            .build(move |_, value, _| log.lock().unwrap().push(value));
        Self {
            tracker: tracker.expect("the settings are sound"),
            clock,
            keys: Arc::new(()),
            ends,
            driven: Arc::default(),
        }
    }

    fn key(&self, number: u8) -> Key {
        Key(number, self.keys.clone())
    }

    /// Tracks, and books what comes back.
    fn track(&self, value: u32, timeout: Duration) {
        match self
            .tracker
            .track(self.key(1), value, timeout)
            .map_err(Rejected::into_parts)
        {
            Ok(tracked) => self.book(tracked.1),
            Err((RejectReason::ShutDown, value)) => self.book([value]),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn complete(&self, number: u8) {
        self.book(self.tracker.complete(&self.key(number)));
    }

    fn book(&self, values: impl IntoIterator<Item = u32>) {
        self.ends.lock().unwrap().extend(values);
    }

    fn spawn(&self, act: impl FnOnce(&Self) + 'static) -> thread::JoinHandle<()> {
        let world = self.clone();
        thread::spawn(move || act(&world))
    }

    /// All values have ended, each once, and nothing is left.
    fn assert_ended(&self, values: &[u32]) {
        let mut ends = self.ends.lock().unwrap().clone();
        ends.sort_unstable();
        assert_eq!(ends, values);
        assert_eq!(
            (self.tracker.stats().parked, self.tracker.stats().panicked),
            (0, 0)
        );
        assert_eq!(Arc::strong_count(&self.keys), 1, "a key is left in the map");
    }
}

/// Catches: a completion or a replacement that claims nothing; an entry that is taken out by its key alone, or stays.
#[test]
fn g05_replacing_races_completing_and_expiry() {
    bounded(|| {
        let world = World::new();
        world.track(1, NEAR);
        let others = [
            world.spawn(|world| world.track(2, Duration::MAX)),
            world.spawn(|world| world.complete(1)),
        ];
        // The clock is none of the model's: here the others may read it.
        thread::yield_now();
        world.clock.advance(NEAR);
        world.tracker.advance();
        for other in others {
            other.join().unwrap();
        }
        // The second value stays, unless it was completed: its place has not expired with the first.
        let kept = world.tracker.contains(&world.key(1));
        assert_eq!(world.tracker.stats().parked, usize::from(kept));
        world.complete(1);
        world.assert_ended(&[1, 2]);
    });
}

/// Catches: a search that ends at the entry of a value that is just expiring, and misses the one that came for its key.
#[test]
fn g05_a_value_is_found_beside_one_that_expires() {
    bounded(|| {
        let world = World::new();
        world.track(1, NEAR);
        world.clock.advance(NEAR);
        let reaper = world.spawn(|world| _ = world.tracker.advance());
        world.track(2, Duration::MAX);
        assert_eq!(world.tracker.complete(&world.key(1)), Some(2));
        world.book([2]);
        reaper.join().unwrap();
        world.assert_ended(&[1, 2]);
    });
}

/// Catches: a value that expires while it gets its place, and stays in the map, is lost, or has its callback run by the
/// call that tracks it.
#[test]
fn g05_tracking_races_expiry() {
    bounded(|| {
        let world = World::new();
        let reaper = world.spawn(|world| {
            world.clock.advance(NEAR);
            let expired = world.tracker.advance();
            world.driven.fetch_add(expired, Ordering::Relaxed);
        });
        world.track(1, Duration::ZERO);
        reaper.join().unwrap();
        let expired = world.tracker.advance();
        assert_eq!(world.driven.load(Ordering::Relaxed) + expired, 1);
        world.assert_ended(&[1]);
    });
}

/// Catches: two that both replace the same value, or neither.
#[test]
fn g05_two_replace_at_once() {
    bounded(|| {
        let world = World::new();
        world.track(1, Duration::MAX);
        let others =
            [2, 3].map(|value| world.spawn(move |world| world.track(value, Duration::MAX)));
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(world.tracker.stats().parked, 1);
        world.complete(1);
        world.assert_ended(&[1, 2, 3]);
    });
}

/// The new value takes over the timer of the old one, which the shutdown ends. Catches: an old value that goes to a
/// caller whose new value is refused; a new value that is neither tracked nor given back.
#[test]
fn g15_shutdown_races_a_replacement() {
    bounded(|| {
        let world = World::new();
        world.track(1, Duration::MAX);
        let other = world.spawn(|world| world.track(2, Duration::MAX));
        let remains = world.tracker.shutdown();
        other.join().unwrap();
        world.book(remains.into_iter().map(|(_, value)| value));
        world.assert_ended(&[1, 2]);
    });
}

/// Requests that the model drives, and the keys that count.
fn requests() -> (Requests<Key, u32, Fixed>, ManualClock, Key) {
    let clock = ManualClock::new();
    let requests = Requests::builder("model")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .remembered_ids(2)
        .hasher(Fixed::default())
        .build();
    let key = Key(1, Arc::new(()));
    (requests.expect("the settings are sound"), clock, key)
}

fn poll<F: Future + Unpin>(request: &mut F) -> Poll<F::Output> {
    Pin::new(request).poll(&mut Context::from_waker(Waker::noop()))
}

/// How many clones of the key are left when the requests are dropped, which remember some.
fn keys_left(requests: Requests<Key, u32, Fixed>, key: Key) -> usize {
    assert_eq!(requests.stats().parked, 0);
    drop(requests);
    Arc::strong_count(&key.1) - 1
}

/// Catches: a response that counts as taken though the request times out, or the other way round; one that is unknown
/// because its request is just timing out.
#[test]
fn g05_a_response_races_the_timeout() {
    bounded(|| {
        let (requests, clock, key) = requests();
        let mut request = requests.request(key.clone(), NEAR).expect("room");
        let responder = {
            let (requests, key) = (requests.clone(), key.clone());
            thread::spawn(move || requests.respond(&key, 7))
        };
        // The clock is none of the model's: here the others may read it.
        thread::yield_now();
        clock.advance(NEAR);
        let timed_out = requests.advance();
        let taken = responder.join().unwrap();
        let expected = match taken {
            Responded::Delivered => (Ok(7), 0, 0),
            other => {
                assert_eq!(other, Responded::Late(7));
                (Err(WaitError::Expired), 1, 1)
            }
        };
        let Poll::Ready(answer) = poll(&mut request) else {
            panic!("it has ended");
        };
        assert_eq!((answer, timed_out as u64, requests.late()), expected);
        drop(request);
        assert_eq!(keys_left(requests, key), 0);
    });
}

/// Catches: a response to a request that is being forgotten, and is unknown; a forgotten request that stays, or that
/// takes the entry of the next one with its id.
#[test]
fn g05_forgetting_races_the_timeout_and_a_response() {
    bounded(|| {
        let (requests, clock, key) = requests();
        let request = requests.request(key.clone(), NEAR).expect("room");
        let responder = {
            let (requests, key) = (requests.clone(), key.clone());
            thread::spawn(move || requests.respond(&key, 7))
        };
        let reaper = {
            let requests = requests.clone();
            thread::spawn(move || {
                clock.advance(NEAR);
                requests.advance()
            })
        };
        drop(request);
        let taken = responder.join().unwrap();
        let timed_out = reaper.join().unwrap() as u64;
        let stats = requests.stats();
        assert_eq!(stats.completed + stats.expired + stats.cancelled, 1);
        let late = u64::from(taken != Responded::Delivered);
        assert_eq!((stats.expired, requests.late()), (timed_out, late));
        assert_eq!(requests.unknown(), 0);
        assert_eq!(keys_left(requests, key), 0);
    });
}

/// Catches: an ending that takes the entry of a later request with the same id.
#[test]
fn g18_an_old_ending_does_not_touch_a_new_request() {
    bounded(|| {
        let (requests, clock, key) = requests();
        let old = requests.request(key.clone(), NEAR).expect("room");
        clock.advance(NEAR);
        let reaper = {
            let requests = requests.clone();
            thread::spawn(move || requests.advance())
        };
        drop(old);
        let mut new = match requests.request(key.clone(), Duration::MAX) {
            Ok(request) => request,
            // The reaper has it in its hands.
            Err(ref rejected) if rejected.reason() == RejectReason::Duplicate => {
                reaper.join().unwrap();
                return;
            }
            Err(other) => panic!("{other}"),
        };
        reaper.join().unwrap();
        assert_eq!(requests.stats().parked, 1);
        assert_eq!(requests.respond(&key, 7), Responded::Delivered);
        assert!(matches!(poll(&mut new), Poll::Ready(Ok(7))));
        drop(new);
        assert_eq!(keys_left(requests, key), 0);
    });
}

/// Catches: an end of all that meets a request which is just being made, before that can be ended; a request that is
/// failed and stays, or fails twice.
#[test]
fn g05_failing_all_races_a_request_and_a_response() {
    bounded(|| {
        let (requests, _, key) = requests();
        let mut first = requests.request(key.clone(), NEAR).expect("room");
        let failing = {
            let requests = requests.clone();
            thread::spawn(move || requests.fail_all_with(|_| 8))
        };
        let second = Key(2, key.1.clone());
        let mut second = requests.request(second, NEAR).expect("room");
        let answered = requests.respond(&key, 7) == Responded::Delivered;
        let failed = failing.join().unwrap();
        let expected = if answered { 7 } else { 8 };
        assert_eq!(poll(&mut first), Poll::Ready(Ok(expected)));
        let pending = poll(&mut second).is_pending();
        assert_eq!(failed, usize::from(!answered) + usize::from(!pending));
        assert_eq!(
            (requests.stats().parked, requests.unknown()),
            (usize::from(pending), 0)
        );
        drop((first, second));
        assert_eq!(keys_left(requests, key), 0);
    });
}
