//! G6 and G16 under churn whose shape is drawn at random: at each quiet point the counts are exact, no key is kept but
//! those that are watched, and no memory has been added. A target of its own, because it measures the memory of the
//! whole process.
//!
//! A steady size hides leaks. So some operations stay while all around them go, keys are resolved and the resolutions
//! dropped while operations are parked, operations expire in groups, and several purgatories, timers and trackers stand
//! on one clock, each with a reaper of its own or all with one.
//!
//! The last seed that a failed test prints is that of its shape. `CHURN_SEED` repeats it, and `CHURN_SHAPES` says how
//! many to draw.

mod place;
mod shape;

use futures::FutureExt;
use place::{HOT, Operations, Place};
use request_purgatory::purgatory::Stats;
use request_purgatory::{Timer, Waits};
use request_purgatory_tracker::{Requests, Tracker};
use shape::{Driver, Shape, TICK, in_shape};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use support::bell::Bell;
use support::keys::Counted;
use support::{Op, Probe, Tally, eventually, lock};
use testing as support;
use testing::allocated::{Counting, allocated};

#[global_allocator]
static COUNTING: Counting = Counting;

type Boxed = Pin<Box<dyn Future<Output = ()>>>;

/// One test at a time counts the memory.
static MEMORY: Mutex<()> = Mutex::new(());

/// After these rounds the memory is what it stays.
const FIRST_ROUNDS: u64 = 3;
/// These are measured together, and once more if they have added memory, up to this many times.
const ROUNDS: u64 = 6;
const ATTEMPTS: usize = 3;

fn from_env(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// Runs `test` with seeds that differ from run to run.
fn for_each_seed(test: impl Fn(u64)) {
    let _alone = lock(&MEMORY);
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("it is after 1970");
    let shapes = from_env("CHURN_SHAPES").unwrap_or(12);
    let (first, shapes) = match from_env("CHURN_SEED") {
        Some(seed) => (seed, 1),
        None => (now.as_micros() as u64, shapes),
    };
    for seed in first..first + shapes {
        println!("CHURN_SEED={seed}");
        test(seed);
    }
}

/// The purgatories of a shape, and a timer and a tracker on their clock.
struct World {
    shape: Shape,
    places: Vec<Place>,
    timer: Timer<support::Token>,
    tracker: Tracker<u64, support::Token>,
    requests: Requests<u64, support::Token>,
    waits: Waits<Counted>,
    /// How many timers and values have expired, or will at the end of this round.
    expiring: u64,
}

impl World {
    fn new(mut shape: Shape) -> Self {
        // One of those that the clock has to wake is gone.
        drop(in_shape!(shape, Operations).build());
        let places = 1 + shape.random.u64(..3);
        let places = (0..places).map(|_| Place::new(&mut shape)).collect();
        let timer = in_shape!(shape, Timer).build(drop);
        let tracker = in_shape!(shape, Tracker).build(|_, value, _| drop(value));
        let requests = in_shape!(shape, Requests).remembered_ids(16).build();
        let waits = in_shape!(shape, Waits).build();
        Self {
            places,
            timer: timer.expect("threads are to be had"),
            tracker: tracker.expect("threads are to be had"),
            requests: requests.expect("threads are to be had"),
            waits: waits.expect("threads are to be had"),
            expiring: 0,
            shape,
        }
    }

    /// All come and go; some are left to expire.
    fn round(&mut self) {
        let shape = &mut self.shape;
        self.places.iter_mut().for_each(|place| place.churn(shape));
        let mut timers = Vec::new();
        for number in 0..shape.crowd {
            let timeout = shape.timeout(number);
            let [timed, kept] = [(); 2].map(|()| shape.mint.token(number));
            timers.push(self.timer.start(timeout, timed).expect("there is room"));
            assert!(self.tracker.track(number, kept, timeout).is_ok());
        }
        for (number, id) in (0..).zip(timers) {
            if shape.random.bool() {
                drop(self.timer.stop(id).expect("it runs"));
                drop(self.tracker.complete(&number).expect("it is kept"));
            } else {
                self.expiring += 2;
            }
        }
        let futures = self.wait();
        self.shape.clock.advance(self.shape.over());
        self.drive();
        // The operation of a listener stays parked until its future has evaluated the condition at the deadline. A
        // future that is left hears of its end once, and of a recheck; one that was dropped wakes no task.
        for (bell, mut future, is_rechecked) in futures {
            eventually("its end", || bell.rung() >= 1);
            let mut ended = bell.poll(&mut future).is_ready();
            // An end is counted before the future hears of it: the reaper may have told of no more than the recheck.
            if !ended && is_rechecked {
                eventually("its end after a recheck", || bell.rung() >= 2);
                ended = bell.poll(&mut future).is_ready();
            }
            assert!(ended);
            assert!(bell.rung() == 1 || is_rechecked);
        }
        self.settle();
        assert_eq!(self.waits.next_deadline(), None, "a recheck is left");
        assert_eq!(self.waits.stats().missed_checks, 0);
        let shape = &mut self.shape;
        self.places.iter_mut().for_each(|place| place.fill(shape));
    }

    /// Futures are polled and dropped, but for some that are left to expire.
    fn wait(&mut self) -> Vec<(Arc<Bell>, Boxed, bool)> {
        let shape = &mut self.shape;
        let mut polled = Vec::new();
        for number in 0..shape.crowd / 4 {
            let timeout = shape.timeout(number);
            let key = shape.census.key(number % shape.keys);
            let mut is_rechecked = false;
            let mut future: Boxed = match shape.random.u64(..3) {
                0 => {
                    let request = self.requests.request(number, timeout);
                    Box::pin(request.expect("there is room").map(drop))
                }
                1 => Box::pin(self.waits.wait([key], timeout, || None::<()>).map(drop)),
                _ => {
                    let mut listener = self.waits.listen([key], timeout);
                    // It comes with the end, or would come after it.
                    is_rechecked = shape.random.u64(..3) == 0;
                    if is_rechecked {
                        listener = listener.recheck_every(TICK);
                    } else if shape.random.bool() {
                        listener = listener.recheck_every(2 * shape.over());
                    }
                    Box::pin(listener.until(|| async { None::<()> }).map(drop))
                }
            };
            let bell = Bell::new();
            assert!(bell.poll(&mut future).is_pending());
            polled.push((bell, future, is_rechecked));
        }
        polled.retain_mut(|(bell, future, _)| {
            let stays = shape.random.u64(..3) == 0;
            if !stays {
                *future = Box::pin(async {});
                assert_eq!(bell.rung(), 0, "the task that drops it is woken");
            }
            stays
        });
        self.expiring += polled.len() as u64;
        polled
    }

    /// Of all that are no purgatories of operations.
    fn stats(&self) -> [Stats; 4] {
        let (timer, tracker) = (self.timer.stats(), self.tracker.stats());
        [timer, tracker, self.requests.stats(), self.waits.stats()]
    }

    /// Drives all of them, unless a thread does.
    fn drive(&self) {
        if matches!(self.shape.driver, Driver::Test) {
            for place in &self.places {
                place.purgatory.advance();
            }
            self.timer.advance();
            self.tracker.advance();
            self.requests.advance();
            self.waits.advance();
        }
    }

    fn settle(&self) {
        eventually("a quiet point", || {
            let are_quiet = |stats: &Stats| (stats.parked, stats.completions_pending) == (0, 0);
            self.stats().iter().all(are_quiet) && self.places.iter().all(Place::is_quiet)
        });
        let expired = self.stats().iter().map(|stats| stats.expired).sum::<u64>();
        assert_eq!(expired, self.expiring);
        let mut stay = 0;
        for place in &self.places {
            place.assert_exact(&self.shape);
            stay += place.survivors.len() as u64;
        }
        let Shape { mint, census, .. } = &self.shape;
        eventually("the end of all payloads", || mint.living() == stay);
        // For each watch, one in the operation, one in the map, and one in the place of a resolved key.
        let most = 6 * stay;
        eventually("the end of all other keys", || {
            census.count() as u64 <= most
        });
    }
}

#[test]
fn g06_churn_of_any_shape_adds_no_memory() {
    for_each_seed(|seed| {
        let mut world = World::new(Shape::draw(seed));
        for _ in 0..FIRST_ROUNDS {
            world.round();
        }
        let churned = ROUNDS * world.shape.crowd * world.places.len() as u64;
        // Where a reaper has the lock of a shard, a thread parks in a neighbour of it, which may grow for that.
        let noise = match world.shape.driver {
            Driver::Test => 16,
            Driver::Own | Driver::Shared(_) => 48,
        };
        let allowed = noise * 1_024 + churned as usize / 2;
        let mut added = Vec::new();
        // A map shard that gets its first entries takes a table and keeps it, and which shard that is depends on the
        // hashes: so memory may be added, but not again and again.
        while added.len() < ATTEMPTS && added.last().is_none_or(|last| *last >= allowed) {
            let before = allocated();
            for _ in 0..ROUNDS {
                world.round();
            }
            added.push(allocated().saturating_sub(before));
        }
        println!("{added:?} of {allowed} bytes for {churned} operations that are gone");
        assert!(added.last().is_some_and(|last| *last < allowed));
        drop((world.timer, world.tracker, world.requests, world.waits));
        let (shape, places) = (world.shape, world.places);
        for place in places {
            if seed % 2 == 0 {
                place.purgatory.shutdown();
            }
            drop(place);
        }
        eventually("the end of those that stayed", || shape.mint.living() == 0);
        eventually("the end of their keys", || shape.census.count() == 0);
    });
}

/// The shutdown comes while the reaper, which goes on with other purgatories or ends with this one, is in the middle
/// of a storm: what the storm leaves is cleared away all the same.
#[test]
fn g06_a_storm_that_meets_the_shutdown_leaves_nothing() {
    for_each_seed(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let shape = Shape {
            driver: if seed % 2 == 0 {
                Driver::Own
            } else {
                Driver::shared()
            },
            // On either side of its middle there are more than expire together.
            crowd: 1_600 + random.u64(..400),
            ..Shape::draw(seed)
        };
        let purgatory = in_shape!(shape, Operations).build();
        let purgatory = purgatory.expect("threads are to be had");
        let stalls = match random.u64(..2) {
            0 => random.u64(..shape.crowd),
            _ => shape.crowd / 2 + random.u64(..100),
        };
        let ends = Tally::new();
        let (stalled, stall) = Probe::new().stalled_op(TICK);
        let mut stalled = Some(stalled);
        for number in 0..shape.crowd {
            let (token, counted) = (shape.mint.token(number), ends.clone());
            let op = stalled.take_if(|_| number == stalls);
            let op = op.unwrap_or_else(|| Op::new(TICK)).then(move |_| {
                drop(token);
                counted.add();
            });
            let keys = [HOT, 1 + number % shape.keys].map(|key| shape.census.key(key));
            let admission = purgatory.try_complete_else_watch(op, keys);
            assert!(admission.expect("there is room").is_parked());
        }
        let clock = shape.clock.clone();
        // The reaper examines it at the deadline, when those before it have expired, and those behind it have not.
        let pass = stall.examine(move || {
            clock.advance(TICK);
            0
        });
        pass.join().expect("no panic");
        // It waits for the reaper, and goes on in the background.
        let shutdown = purgatory.shutdown_timeout(50 * TICK);
        assert!(shutdown.is_err(), "the reaper is at it");
        stall.end();
        eventually("the end of all", || ends.count() == shape.crowd);
        eventually("the end of what they left", || {
            let stats = purgatory.stats();
            let watched = (stats.watched, purgatory.watched_keys());
            (stats.parked, watched, shape.census.count()) == (0, (0, 0), 0)
        });
        assert_eq!(shape.mint.living(), 0);
        let stats = purgatory.stats();
        assert_eq!(stats.expired + stats.shut_down, shape.crowd);
    });
}
