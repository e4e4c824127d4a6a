//! G17: the bound of the weight.

use crate::support::{NEVER_IN_A_TEST, PATIENCE, within};
use request_purgatory::future::{Awaited, block_on};
use request_purgatory::purgatory::{Builder, Handle};
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::ManualClock;
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, RejectReason, Timer, WaitError, Waits,
};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

/// Weighs more each time it is asked.
struct Heavy {
    weight: Cell<usize>,
    /// Which of its examinations panics, counted down.
    panics: u32,
    satisfied: Arc<AtomicBool>,
    /// Before its completion returns.
    completing: Option<Receiver<()>>,
    ended: Sender<Completion>,
}

impl DelayedOperation for Heavy {
    type Key = u32;

    fn timeout(&self) -> Duration {
        TICK
    }

    fn weight(&self) -> usize {
        self.weight.replace(self.weight.get().wrapping_add(1))
    }

    fn try_complete(&mut self) -> bool {
        self.panics = self.panics.wrapping_sub(1);
        assert_ne!(self.panics, 0, "as it was told");
        self.satisfied.load(SeqCst)
    }

    fn on_complete(self, completion: Completion) {
        if let Some(completing) = self.completing {
            let _ = completing.recv();
        }
        let _ = self.ended.send(completion);
    }
}

struct World {
    clock: ManualClock,
    purgatory: Purgatory<Heavy>,
    satisfied: Arc<AtomicBool>,
    ended: Sender<Completion>,
    ends: Receiver<Completion>,
}

impl World {
    fn new(configure: impl FnOnce(Builder<Purgatory<Heavy>>) -> Builder<Purgatory<Heavy>>) -> Self {
        let clock = ManualClock::new();
        let (ended, ends) = channel();
        let builder = Purgatory::builder("g17-weight").clock(clock.clone());
        let builder = configure(builder.reaper(Reaper::Manual));
        Self {
            clock,
            purgatory: builder.build().expect("no threads to refuse"),
            satisfied: Arc::default(),
            ended,
            ends,
        }
    }

    fn heavy(&self, weight: usize) -> Heavy {
        Heavy {
            weight: Cell::new(weight),
            panics: 0,
            satisfied: self.satisfied.clone(),
            completing: None,
            ended: self.ended.clone(),
        }
    }

    fn park(&self, weight: usize) -> Result<Option<Handle<Heavy>>, RejectReason> {
        let parked = self
            .purgatory
            .try_complete_else_watch(self.heavy(weight), [1]);
        let parked = parked.map_err(|refused| {
            let (reason, op) = refused.into_parts();
            if reason == RejectReason::Full {
                assert_eq!(op.weight.get(), weight.wrapping_add(1), "it is asked once");
            }
            reason
        });
        parked.map(|parked| parked.into_handle())
    }

    fn weight(&self) -> u64 {
        self.purgatory.stats().weight
    }
}

#[test]
fn g17_operations_are_parked_up_to_their_weight_exactly() {
    let world = World::new(|builder| builder.max_weight(10));
    assert_eq!(world.park(11).err(), Some(RejectReason::Full));
    assert!(world.park(usize::MAX).is_err());
    assert!(world.park(7).is_ok() && world.park(0).is_ok());
    assert_eq!(world.park(4).err(), Some(RejectReason::Full));
    assert!(world.park(3).is_ok() && world.park(1).is_err());
    assert!(world.park(0).is_ok(), "it weighs nothing");
    assert_eq!((world.weight(), world.purgatory.len()), (10, 4));
    // The bound of the number counts beside that.
    let world = World::new(|builder| builder.max_weight(10).max_parked(2));
    assert!(world.park(7).is_ok() && world.park(4).is_err());
    assert!(world.park(1).is_ok() && world.park(1).is_err());
    assert_eq!((world.weight(), world.purgatory.len()), (8, 2));
}

#[test]
fn g17_without_a_bound_nothing_is_weighed() {
    for world in [World::new(|it| it), World::new(|it| it.max_parked(3))] {
        assert!(world.park(usize::MAX).is_ok() && world.park(7).is_ok());
        assert_eq!((world.weight(), world.purgatory.len()), (0, 2));
    }
}

/// Each ending frees what was taken, once: the weight that it had when it parked.
#[test]
fn g17_every_ending_frees_its_weight_once() {
    let world = World::new(|builder| builder.max_weight(10).dispatch(Dispatch::Inline));
    type End<'a> = &'a dyn Fn(&World, Handle<Heavy>);
    let ends: [End<'_>; 8] = [
        &|world, _| {
            world.satisfied.store(true, SeqCst);
            assert_eq!(world.purgatory.check_and_complete(&1), 1);
            world.satisfied.store(false, SeqCst);
        },
        &|world, _| {
            world.clock.advance(TICK);
            assert_eq!(world.purgatory.advance(), 1);
        },
        &|_, handle| assert!(handle.force_complete()),
        &|_, handle| assert!(handle.cancel().is_some()),
        &|world, _| assert_eq!(world.purgatory.cancel_for_key(&1).len(), 1),
        &|world, _| assert_eq!(world.purgatory.force_complete_for_key(&1), 1),
        &|world, _| {
            world.satisfied.store(true, SeqCst);
            world.purgatory.check_later(1);
            world.purgatory.advance();
            world.satisfied.store(false, SeqCst);
        },
        &|world, _| world.purgatory.shutdown(),
    ];
    for (index, end) in ends.iter().enumerate() {
        assert_eq!(world.weight(), 0, "{index}");
        let handle = world.park(9).expect("room").expect("it is parked");
        assert_eq!((world.weight(), world.park(2).is_err()), (9, true));
        end(&world, handle);
        assert_eq!((world.weight(), world.purgatory.len()), (0, 0), "{index}");
    }
}

#[test]
fn g17_a_park_that_panics_or_is_refused_keeps_no_weight() {
    let world = World::new(|builder| builder.max_weight(10).max_watchers_per_key(1));
    for examination in [1, 2] {
        let heavy = Heavy {
            panics: examination,
            ..world.heavy(9)
        };
        let park = || world.purgatory.try_complete_else_watch(heavy, [1]);
        assert!(catch_unwind(AssertUnwindSafe(park)).is_err());
        assert_eq!((world.weight(), world.purgatory.len()), (0, 0));
    }
    assert!(world.park(3).is_ok());
    assert_eq!(world.park(4).err(), Some(RejectReason::KeyFull));
    assert_eq!(world.weight(), 3);
    // Satisfied at once: it never parks.
    world.satisfied.store(true, SeqCst);
    assert!(world.park(usize::MAX).is_ok_and(|handle| handle.is_none()));
    assert_eq!(world.weight(), 3);
    world.purgatory.shutdown();
    world.satisfied.store(false, SeqCst);
    assert_eq!(world.park(1).err(), Some(RejectReason::ShutDown));
    assert_eq!(world.weight(), 0);
}

/// As a place of `max_parked` is: the operation keeps its memory so long.
#[test]
fn g17_a_weight_is_free_when_on_complete_has_returned() {
    within(PATIENCE, || {
        let world = World::new(|builder| builder.max_weight(10).dispatch(Dispatch::OwnThread));
        let (goes_on, completing) = channel();
        let heavy = Heavy {
            completing: Some(completing),
            ..world.heavy(6)
        };
        assert!(world.purgatory.try_complete_else_watch(heavy, [1]).is_ok());
        world.clock.advance(TICK);
        assert_eq!(world.purgatory.advance(), 1);
        assert_eq!((world.weight(), world.purgatory.len()), (6, 0));
        assert_eq!(world.park(5).err(), Some(RejectReason::Full));
        goes_on.send(()).expect("it waits");
        assert_eq!(world.ends.recv(), Ok(Completion::Expired));
        assert_eq!(world.purgatory.drain(PATIENCE), 0);
        assert_eq!(world.weight(), 0);
    });
}

/// Threads park and end operations of all weights, and meet at the bound.
#[test]
fn g17_under_threads_the_weight_never_exceeds_its_bound_and_all_comes_back() {
    struct Light(usize, Arc<AtomicU64>);

    impl DelayedOperation for Light {
        type Key = usize;

        fn timeout(&self) -> Duration {
            NEVER_IN_A_TEST
        }

        fn weight(&self) -> usize {
            self.0
        }

        fn try_complete(&mut self) -> bool {
            false
        }

        fn on_complete(self, _: Completion) {
            self.1.fetch_sub(self.0 as u64, SeqCst);
        }
    }

    within(PATIENCE, || {
        const BOUND: u64 = 50;
        let built = Purgatory::builder("g17-threads").max_weight(BOUND as usize);
        let purgatory = built.max_parked(8).build().expect("no threads to refuse");
        let (parked, refused) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
        thread::scope(|scope| {
            for thread in 0..4_usize {
                let (purgatory, parked, refused) = (&purgatory, &parked, &refused);
                scope.spawn(move || {
                    for round in 0..4_000_usize {
                        let weight = (round * 7 + thread * 3) % 23;
                        let light = Light(weight, parked.clone());
                        match purgatory.try_complete_else_watch(light, [thread]) {
                            Ok(_) => {
                                let sum = parked.fetch_add(weight as u64, SeqCst) + weight as u64;
                                assert!(sum <= BOUND, "{sum}");
                            }
                            Err(full) => {
                                assert_eq!(full.reason(), RejectReason::Full);
                                refused.fetch_add(1, SeqCst);
                            }
                        }
                        assert!(purgatory.stats().weight <= BOUND);
                        if round % 3 == 2 {
                            purgatory.force_complete_for_key(&thread);
                        }
                    }
                    purgatory.force_complete_for_key(&thread);
                });
            }
        });
        let stats = purgatory.stats();
        assert_eq!((stats.parked, stats.weight, parked.load(SeqCst)), (0, 0, 0));
        assert!(refused.load(SeqCst) > 0 && stats.completed > 0);
    });
}

#[test]
fn g17_an_awaited_operation_has_its_own_weight_and_a_wait_weighs_one() {
    let purgatory = Purgatory::<Awaited<Heavy>>::builder("g17-awaited").max_weight(10);
    let purgatory = purgatory.reaper(Reaper::Manual).build();
    let purgatory = purgatory.expect("no threads to refuse");
    let world = World::new(|builder| builder);
    let first = purgatory.completion(world.heavy(6), [1]);
    assert!(first.is_ok() && purgatory.completion(world.heavy(5), [1]).is_err());
    drop(first);
    assert_eq!(purgatory.stats().weight, 0);
    let waits = Waits::<u32>::builder("g17-waits").max_weight(2);
    let waits = waits.reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let wait = || waits.wait([1], None, || None::<()>);
    let (first, second) = (wait(), waits.take([1], None, |_| None::<()>, drop));
    assert_eq!(block_on(wait()), Err(WaitError::Full));
    assert_eq!(waits.stats().weight, 2);
    drop((first, second));
    assert_eq!(waits.stats().weight, 0);
}

#[test]
fn g17_a_timer_weighs_what_it_is_told_to() {
    let clock = ManualClock::new();
    let builder = Timer::builder("g17-timer")
        .clock(clock.clone())
        .max_weight(10);
    let builder = builder.reaper(Reaper::Manual);
    let timer = builder.build(drop::<Vec<u8>>);
    let timer = timer.expect("no threads to refuse");
    let start = |weight: usize| timer.start_weighed(TICK, weight, vec![0; weight]);
    let first = start(6).expect("room");
    assert!(start(4).is_ok());
    let refused = start(1).expect_err("it is full");
    let refused = (refused.reason(), refused.into_inner().len());
    assert_eq!(refused, (RejectReason::Full, 1));
    assert_eq!((timer.stats().weight, timer.len()), (10, 2));
    assert_eq!(timer.stop(first).map(|payload| payload.len()), Some(6));
    assert_eq!(timer.stats().weight, 4);
    clock.advance(TICK);
    assert_eq!((timer.advance(), timer.stats().weight), (1, 0));
    assert!(start(10).is_ok() && start(1).is_err());
    assert_eq!(timer.shutdown().len(), 1);
    assert_eq!(timer.stats().weight, 0);
    // Without a weight, a payload weighs one.
    let timer = Timer::builder("g17-timer")
        .max_weight(1)
        .reaper(Reaper::Manual);
    let timer = timer.build(drop::<Vec<u8>>);
    let timer = timer.expect("no threads to refuse");
    assert!(timer.start(TICK, vec![0; 7]).is_ok());
    assert!(timer.start(TICK, vec![]).is_err());
}
