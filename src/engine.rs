//! The engine: parks payloads that have a deadline, and expires them. A payload is an operation of a purgatory, or a
//! value of a timer.
//!
//! Each payload lies in a slot of a timer [`shard`]. A state word in the slot decides which thread may end the payload.
//! If a new deadline is earlier than the [alarm](crate::threads::alarm) (the tick until which the reaper thread
//! sleeps), the engine wakes the reaper. [`drive`] runs when time has passed, [`expire`] ends the payloads whose
//! deadline has passed, and [`deliver`] runs the user's code for payloads that have ended.
//!
//! The engine knows neither keys nor user code. Its [`handler`](handler::Handler) does: the purgatory and the timer
//! each implement `Handler` for their own payloads. For the handler, the engine counts watches (one for each key of a
//! parked operation) and catches panics of user code.

pub(crate) mod deliver;
pub(crate) mod drive;
pub(crate) mod expire;
pub(crate) mod handler;
pub(crate) mod permits;
pub(crate) mod phase;
pub(crate) mod settings;
pub(crate) mod shard;
pub(crate) mod shards;
pub(crate) mod shared_handle;
pub(crate) mod shutdown;
#[cfg(all(test, not(request_purgatory_loom)))]
mod tests;
pub(crate) mod thread_set;

use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::Trampoline;
use crate::cell::address::{Address, SLOTS};
use crate::cell::slab::{EndedSlot, Held, Spent};
use crate::cell::state::Mark;
use crate::error::{BuildError, RejectReason, Rejected};
use crate::observe::{OBSERVED, Observer};
use crate::scheme::{Scheme, Tick};
use crate::stats::{Count, Counts, Ending, Statistic, Stats};
use crate::sync::{Arc, Mutex, SLICE, thread_number, timer_shards};
use crate::threads::alarm::Alarm;
use crate::threads::dispatch::Dispatch;
use crate::time::anchor::HOLDS;
use crate::time::counter::CounterClock;
use crate::time::ticks::{NEVER, TickScale};
use crate::time::{Clock, Deadline, Timestamp};
use permits::Permits;
use phase::{Background, DRAINING, Phase, Underway};
use settings::Settings;
use shard::{Guard, Shard, Timing};
use shards::Shards;
use std::io;
use std::sync::LazyLock;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use thread_set::ThreadSet;

pub(crate) struct Engine<P, W> {
    pub(crate) name: Arc<str>,
    pub(crate) shards: Shards<P, W>,
    pub(crate) alarm: Alarm,
    /// Locked by a caller of `advance` or `next_deadline` while it resets [`alarm`](Self::alarm), so that only one
    /// caller at a time does so. Used only in an engine without a reaper.
    pub(crate) rearming: Mutex<()>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The instant from which `clock` counts. `None` if `clock` is not the system's clock.
    system_since: Option<Instant>,
    /// The processor's counter, which replaces `clock` where a deadline is computed. Its reading is ahead of `clock` by
    /// at most a tick. `None` if deadlines are computed from `clock`.
    counter: Option<CounterClock>,
    pub(crate) scale: TickScale,
    max_timeout: Duration,
    pub(crate) permits: Permits,
    /// Whether slots and watches (one for each key of an operation) of ended payloads are reclaimed before the user's
    /// code runs for these payloads.
    pub(crate) reclaim_first: bool,
    dispatch: Dispatch,
    pub(crate) threads: ThreadSet,
    pub(crate) underway: Underway,
    pub(crate) background: Background,
    /// Reports events to the user's metrics recorder and tracing subscriber. `None` in a timer and a tracker.
    observer: Option<Observer>,
    pub(crate) phase: Phase,
}

impl<P, W: Scheme> Engine<P, W> {
    /// Makes an engine. The threads start when they are first needed, or at once if the settings ask for that. `Err` if
    /// a setting is invalid, or if the system refuses a thread that is to start at once.
    pub(crate) fn new(settings: Settings) -> Result<Self, BuildError> {
        let wheel_size = u32::try_from(settings.wheel_size).ok();
        let wheel_size = wheel_size.filter(|wheel_size| (2..=1 << 16).contains(wheel_size));
        let wheel_size = wheel_size.ok_or(BuildError::WheelSize)?;
        let scale = TickScale::new(settings.tick, settings.clock.now()).ok_or(BuildError::Tick)?;
        let [max_parked, max_weight] =
            [settings.max_parked, settings.max_weight].map(|max| max.map(|max| max as u64));
        let permits = Permits::new(max_parked, max_weight);
        let (threads, dispatch) = ThreadSet::new(settings.reaper, settings.dispatch);
        let engine = Self {
            name: settings.name.into(),
            shards: Shards::new(timer_shards(cores()), wheel_size),
            alarm: Alarm::new(),
            rearming: Mutex::new(()),
            system_since: settings.system_since,
            counter: Self::counter(settings.system_since, settings.tick),
            clock: settings.clock,
            scale,
            max_timeout: settings.max_timeout,
            reclaim_first: settings.reclaim_first || permits.is_bounded(),
            permits,
            dispatch,
            threads,
            underway: Underway::default(),
            background: Background::default(),
            observer: None,
            phase: Phase::default(),
        };
        if settings.threads_at_once {
            let completions = engine.threads.start_completions(&engine.name);
            let started = completions.and_then(|()| engine.start_reaper());
            started.map_err(BuildError::Thread)?;
        }
        Ok(engine)
    }

    /// A clock that reads the processor's counter, counts from `since`, and replaces the system's clock. `None` in each
    /// of these cases:
    ///
    /// * `since` is `None`: the engine uses another clock than the system's.
    /// * The scheme has a horizon: a latest deadline that it accepts, counted from a present tick. With a counter,
    ///   `timing_after` takes a present tick that is one earlier (see the last case), so the horizon would be one tick
    ///   nearer.
    /// * The system has no suitable counter.
    /// * A tick is shorter than [`HOLDS`], the most that the counter's reading may be ahead of the clock.
    ///   `timing_after` needs a tick that the clock has reached, and takes the last tick before that of the reading.
    ///   With shorter ticks, the clock might not have reached the tick that `timing_after` takes.
    fn counter(since: Option<Instant>, tick: Duration) -> Option<CounterClock> {
        let is_coarse = tick >= Duration::from_nanos(HOLDS);
        CounterClock::since(since.filter(|_| is_coarse && !W::HAS_HORIZON)?)
    }

    /// From now on, reports events to the user's metrics recorder and tracing subscriber.
    pub(crate) fn observed(mut self) -> Self {
        // If the user's metrics recorder panics here, the engine gets no observer: neither the recorder nor the tracing
        // subscriber receives any report.
        self.observer = self.caught(|| Observer::new(&self.name)).ok();
        self
    }

    #[inline]
    pub(crate) fn shard(&self, number: usize) -> &Shard<P, W> {
        self.shards.at(number, || self.phase.reject_reason())
    }

    /// Starts the engine's own reaper thread. Does nothing if the thread was started before, or if the engine is shut
    /// down. `Err` if the system refuses the thread; a later call tries again.
    #[cold]
    fn start_reaper(&self) -> io::Result<()> {
        let _alone = self.shards.order.lock();
        match self.threads.reaper_is_started() || self.phase.is_closed() {
            true => Ok(()),
            false => self.threads.start(&self.name),
        }
    }

    /// Announces a deferred check (a check that is left to the thread that drives the timer). Starts the reaper if it
    /// was not started. If the [alarm](Alarm) (the tick until which that thread sleeps) is later than the tick `at`,
    /// sets the alarm to `at`, and wakes the thread. If the system refuses the reaper's thread, the check waits: the
    /// next announcement or the first deadline tries to start the reaper again.
    pub(crate) fn announce_work(&self, at: Tick) {
        if !self.threads.reaper_is_started() {
            // Ignore the error: without the thread the check waits, as the doc comment of this function says.
            let _ = self.start_reaper();
        }
        self.announce(Some(at));
    }

    /// Prepares a reschedule: starts the reaper if the deadline in `timing` needs it, and if `exists` says that there
    /// is a payload to reschedule. Call this before [`Shard::reschedule`], which starts no reaper. `Err` if the system
    /// refuses the thread.
    pub(crate) fn start_reaper_to_reschedule(
        &self,
        timing: Timing,
        exists: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        match self.needs_reaper(timing) && exists() {
            true => self.start_reaper(),
            false => Ok(()),
        }
    }

    /// Whether the deadline in `timing` needs the reaper to be started: the reaper was not started, and the deadline is
    /// finite. Callers ask this before they file the deadline in a wheel: if the system refuses the thread, a park or a
    /// reschedule usually fails, and must not leave its deadline in the wheel. Once the reaper was started, the answer
    /// costs one load of a flag that no thread writes any more.
    fn needs_reaper(&self, timing: Timing) -> bool {
        !self.threads.reaper_is_started() && timing.deadline != NEVER
    }

    #[inline]
    pub(crate) fn now(&self) -> Tick {
        self.scale.floor(self.clock.now())
    }

    /// The present time. If the engine has a counter, the result may be a moment later than the present.
    #[inline]
    pub(crate) fn soon(&self) -> Timestamp {
        match &self.counter {
            Some(counter) => counter.now(),
            None => self.clock.now(),
        }
    }

    /// The arrival and the deadline of a payload, in ticks. `arrival` is the time of the arrival on the engine's clock,
    /// if the user supplies it; with `None`, the payload arrives now.
    #[inline(always)]
    pub(crate) fn timing(&self, arrival: Option<Timestamp>, deadline: Deadline) -> Timing {
        let timeout = match deadline {
            Deadline::After(timeout) => timeout,
            Deadline::Never => Duration::MAX,
            Deadline::At(point) => return self.timing_until(arrival, point),
            Deadline::AtInstant(point) => {
                return self.timing_until(arrival, self.timestamp_of(point));
            }
        };
        self.timing_after(arrival, timeout)
    }

    /// What [`timing`](Self::timing) returns if the deadline is `point`, a reading of the engine's clock: the arrival
    /// and the deadline of a payload, in ticks. `arrival` is the reading at which the payload arrived; with `None`, it
    /// arrives now.
    #[cold]
    #[inline(never)]
    fn timing_until(&self, arrival: Option<Timestamp>, point: Timestamp) -> Timing {
        let timing = self.timing_after(arrival, Duration::ZERO);
        let timing = Timing {
            deadline: self.scale.ceil(point),
            ..timing
        };
        self.bounded(timing, timing.since)
    }

    /// Converts `point`, an instant of the system's clock, to a reading of the engine's `clock`. If `clock` is not the
    /// system's clock, the result is the present reading of `clock` plus the time that is left until `point`.
    #[cold]
    fn timestamp_of(&self, point: Instant) -> Timestamp {
        match self.system_since {
            Some(since) => Timestamp::from_origin(point.saturating_duration_since(since)),
            None => {
                // Compute `left` before `clock` is read. The time that passes between the two steps then makes the
                // deadline later. In the other order, that time would be missing from the deadline.
                let left = point.saturating_duration_since(Instant::now());
                self.clock.now().saturating_add(left)
            }
        }
    }

    /// Turns `deadline` into a point of the engine's clock. A timeout counts from now. Returns [`Deadline::Never`] if
    /// the deadline never comes, because the clock ends before it.
    #[inline]
    pub(crate) fn point(&self, deadline: Deadline) -> Deadline {
        let point = match deadline {
            Deadline::After(timeout) => self.clock.now().saturating_add(timeout),
            Deadline::AtInstant(point) => self.timestamp_of(point),
            Deadline::At(point) => point,
            Deadline::Never => Timestamp::LAST,
        };
        match self.scale.can_come(point) {
            true => Deadline::At(point),
            false => Deadline::Never,
        }
    }

    #[inline(always)]
    fn timing_after(&self, arrival: Option<Timestamp>, timeout: Duration) -> Timing {
        let timeout = timeout.min(self.max_timeout);
        let since = arrival.unwrap_or_else(|| self.soon());
        let (start, deadline) = self.scale.start_and_deadline(since, timeout);
        let present = match arrival {
            // `present` must be a tick that has certainly passed. Here the user has supplied the arrival, which may be
            // in the future. So the arrival does not show which ticks have passed, and only tick 0 is certain.
            Some(_) if !W::HAS_HORIZON => 0,
            // INVARIANT: the tick before `start` has passed on the clock. The clock may not have reached `start` yet,
            // because the counter's reading is ahead of it by up to `HOLDS`. But an engine with a counter has ticks of
            // at least `HOLDS`, so the clock has reached the tick before `start`.
            None if self.counter.is_some() => start.saturating_sub(1),
            // Here the tick `start` has passed, for one of two reasons:
            //
            // * This call has just read the clock.
            // * The scheme has a horizon: a latest deadline, counted from `present`. Only timers have such schemes, and
            //   the arrival that the caller of a timer supplies is not in the future. Tick 0 would not do as `present`:
            //   in a timer that was idle for long, the horizon would then be in the past.
            _ => start,
        };
        Timing {
            start,
            deadline,
            present,
            since,
        }
    }

    /// Limits the deadline in `timing` to at most `max_timeout` after the arrival of the operation at `address`. `None`
    /// if the operation has ended. Used for a deadline that the operation itself has asked for. For a deadline that is
    /// set by a handle, `max_timeout` counts from the call instead.
    pub(crate) fn bounded_from_arrival(&self, address: Address, timing: Timing) -> Option<Timing> {
        if self.max_timeout == Duration::MAX {
            return Some(timing);
        }
        let (arrived_at, _) = self.shard(address.shard()).times(address)?;
        Some(self.bounded(timing, arrived_at))
    }

    /// Limits the deadline in `timing` to at most `max_timeout` after `arrival`.
    pub(crate) fn bounded(&self, timing: Timing, arrival: Timestamp) -> Timing {
        let (_, limit) = self.scale.start_and_deadline(arrival, self.max_timeout);
        Timing {
            deadline: timing.deadline.min(limit),
            ..timing
        }
    }

    /// Gives `payload` a slot and a timer, and announces its deadline to the thread that drives the timer. The calling
    /// thread then holds the payload: no other thread can end it before the caller releases it. A rejected payload is
    /// returned in the error.
    #[inline(always)]
    pub(crate) fn admit(
        &self,
        payload: P,
        weight: u64,
        watches: usize,
        timing: Timing,
    ) -> Result<Held<'_, P>, Rejected<P>> {
        let (guard, held, earlier) = self.admit_locked(payload, weight, watches, timing)?;
        drop(guard);
        self.announce(earlier);
        Ok(held)
    }

    /// Gives a payload of a [`Timer`](crate::Timer) a slot, and starts its timer. The caller does not hold the payload
    /// afterwards, because such a payload is never examined. Returns the payload's address, and the deadline that the
    /// caller must [announce](Self::announce), if any.
    #[inline(always)]
    pub(crate) fn admit_released(
        &self,
        payload: P,
        weight: u64,
        timing: Timing,
    ) -> Result<(Address, Option<Tick>), Rejected<P>> {
        let (guard, held, earlier) = self.admit_locked(payload, weight, 0, timing)?;
        let address = held.address();
        // INVARIANT: the payload has no mark yet (a mark is a request by another thread to the thread that holds the
        // payload), so the release cannot fail:
        //
        // * The thread that drives the timer finds payloads under the shard's lock, which this thread has.
        // * A shutdown closes the shard under that lock before it looks for payloads. A closed shard would have
        //   rejected this payload.
        // * Every other thread needs the address, which this call has not returned yet.
        //
        // So this call never ends the payload. It must not, because an ending runs user code, and this thread may hold
        // locks of the user's.
        if held.release(false).is_err() {
            unreachable!("a mark on a payload that no other thread has heard of");
        }
        drop(guard);
        Ok((address, earlier))
    }

    /// Gives `payload` a slot and a timer in the calling thread's timer shard, or in a neighbouring shard if that shard
    /// is locked. Returns the lock of the shard, still taken; the payload, held by this thread; and the deadline to
    /// [announce](Self::announce), if any. A rejected payload is returned in the error.
    #[inline(always)]
    fn admit_locked<'a>(
        &'a self,
        payload: P,
        weight: u64,
        watches: usize,
        timing: Timing,
    ) -> Result<(Guard<'a, P, W>, Held<'a, P>, Option<Tick>), Rejected<P>> {
        if !self.permits.take(weight) {
            return Err(Rejected::new(RejectReason::Full, payload));
        }
        if self.needs_reaper(timing) && self.start_reaper().is_err() {
            return Err(self.reject(RejectReason::Thread, payload, weight));
        }
        let mine = self.shard(self.shards.wrap(thread_number() as usize));
        let (shard, mut guard) = match mine.slab.try_lock() {
            Some(guard) => (mine, guard),
            None => self.lock_near(mine),
        };
        match shard.admit(&mut guard, payload, watches, timing, SLOTS) {
            Ok((held, earlier)) => {
                // Store the payload's weight while this thread holds the payload. Later could be too late: another
                // thread could have ended the payload, and freed its place under `max_weight` without knowing the
                // weight.
                self.permits.park_at(held.address(), weight);
                Ok((guard, held, earlier))
            }
            Err((reason, payload)) => Err(self.reject(reason, payload, weight)),
        }
    }

    /// Frees the [permit](Permits) of a payload that gets no slot, and returns the payload in a rejection.
    #[cold]
    fn reject(&self, reason: RejectReason, payload: P, weight: u64) -> Rejected<P> {
        self.permits.free_unparked(weight);
        Rejected::new(reason, payload)
    }

    /// Locks a neighbour of the shard `mine`, because another thread has the lock of `mine`. If the neighbours are
    /// locked too, waits for the lock of `mine`. Returns the locked shard with its lock.
    #[cold]
    fn lock_near<'a>(&'a self, mine: &'a Shard<P, W>) -> (&'a Shard<P, W>, Guard<'a, P, W>) {
        (1..self.shards.count().min(3))
            .map(|step| self.shard(self.shards.wrap(mine.number + step)))
            .find_map(|shard| Some((shard, shard.slab.try_lock()?)))
            .unwrap_or_else(|| (mine, mine.slab.lock()))
    }

    /// Claims the payload at `address` for this thread. `None` if the payload has ended, or if another thread holds it.
    /// In the second case this call leaves `mark`, a request that the other thread carries out before it releases the
    /// payload.
    #[inline(always)]
    pub(crate) fn claim_or_mark(&self, address: Address, mark: Mark) -> Option<Held<'_, P>> {
        let slab = &self.shard(address.shard()).slab;
        slab.claim_or_mark(address, mark)
    }

    pub(crate) fn is_parked(&self, address: Address) -> bool {
        self.shard(address.shard()).slab.is_parked(address)
    }

    /// Counts the ending of a payload, stops its timer and frees its slot, which belongs to `shard`. Never waits for
    /// the lock of a shard: if `shard` is not the calling thread's own shard, or is locked, the slot goes to the remote
    /// free list of `shard` (slots that wait for a holder of its lock), and a later holder of that lock stops the timer
    /// and frees the slot. The ending is counted in the thread's own shard. If the thread uses its shard for the first
    /// time, this call makes the shard, and may wait for the one lock under which shards are made.
    #[inline(always)]
    pub(crate) fn free<'a>(
        &'a self,
        shard: &'a Shard<P, W>,
        spent: Spent<'a, P>,
        ending: Ending,
        watches: usize,
    ) {
        let mine = self.shards.wrap(thread_number() as usize);
        let count = || {
            self.count_ended(ending, 1);
            self.count(Statistic::Unwatched, watches);
        };
        if shard.number == mine {
            shard.free(spent, ending, watches, count);
        } else {
            count();
            shard.free_from_other_shard(spent.detach());
        }
    }

    /// Frees slots whose endings have been counted. Each slot comes with its number of watches, which are counted as
    /// removed. Consecutive slots of one shard are freed together, at most [`SLICE`] in one hold of the lock.
    pub(crate) fn free_counted(&self, all: impl Iterator<Item = (EndedSlot, usize)>) {
        let mut all = all.peekable();
        let mut slice = Vec::with_capacity(SLICE);
        let shard_of = |(slot, _): &(EndedSlot, usize)| slot.address().shard();
        while let Some(shard) = all.peek().map(shard_of) {
            let mut unwatched = 0;
            let same = std::iter::from_fn(|| all.next_if(|other| shard_of(other) == shard));
            slice.extend(same.take(SLICE).map(|(slot, watches)| {
                unwatched += watches;
                slot
            }));
            self.count(Statistic::Unwatched, unwatched);
            self.shard(shard).free_counted(&mut slice);
        }
    }

    /// Ends a payload that this thread holds, frees its [permit](Permits), and returns the payload without running the
    /// user's code for it.
    pub(crate) fn withdraw(&self, held: Held<'_, P>, ending: Ending) -> P {
        let address = held.address();
        let shard = self.shard(address.shard());
        let (payload, spent) = held.end();
        self.free(shard, spent, ending, 0);
        self.permits.free(address);
        payload
    }

    /// Tells the thread that drives the timer about `deadline`. If the [alarm](Alarm), the tick until which that thread
    /// sleeps, is later, lowers the alarm to `deadline` and wakes the thread. Does nothing with `None`.
    #[inline]
    pub(crate) fn announce(&self, deadline: Option<Tick>) {
        if deadline.is_some_and(|deadline| self.alarm.set(deadline)) {
            self.wake();
        }
    }

    /// Wakes the thread that drives the timer.
    pub(crate) fn wake(&self) {
        // A reactor's wake function is user code, and may panic.
        let _ = self.guarded(|| self.threads.wake());
    }

    /// Ends the threads that only this engine uses. Waits for the end of each thread, for at most `limit` if given. In
    /// a callback, does not wait.
    pub(crate) fn stop_threads(&self, limit: Option<Duration>) {
        // This wake-up tells a shared reaper, or a reactor, that the engine is shut down. `stop` does not end those
        // threads.
        self.wake();
        self.threads.stop(limit);
    }

    /// Begins a drain: from now on the engine rejects every new payload.
    fn begin_drain(&self) {
        self.phase.enter(DRAINING);
        // Close every shard even if another thread has begun a drain: that thread may not have reached every shard yet,
        // and this call must return only when no shard takes payloads.
        for shard in self.shards.settled() {
            shard.close_with(RejectReason::Draining);
        }
    }

    /// Counts an extension: the operation at `address` has asked for a later deadline when its deadline had passed.
    /// Reports this to the observer.
    pub(crate) fn count_extension(&self, address: Address) {
        self.shard(address.shard()).counters.extensions.add(1);
        self.observe(Observer::extended);
    }

    /// Adds `n` to a count of the calling thread's timer shard, without taking the lock of the shard.
    #[inline]
    fn count_in(&self, which: impl FnOnce(&Counts) -> &Count, n: usize) {
        let number = thread_number() as usize;
        let own = self.shards.wrap(number);
        let is_owner = own == number;
        self.shard(own).counters.count(is_owner, which, n);
    }

    #[inline]
    pub(crate) fn count(&self, event: Statistic, n: usize) {
        self.count_in(|counts| counts.of(event), n);
    }

    /// Counts this many endings of one kind. For endings that [`Shard::free`] does not count under the lock of a shard.
    #[inline]
    pub(crate) fn count_ended(&self, ending: Ending, endings: usize) {
        self.count_in(|counts| counts.ended(ending), endings);
    }

    /// The statistics so far: the counts of all timer shards, added up.
    pub(crate) fn stats(&self) -> Stats {
        let shards = self.shards.iter();
        let stats = Stats::of(shards.map(|shard| (&*shard.locked_counts, &shard.counters)));
        Stats {
            weight: self.permits.weight(),
            ..stats
        }
    }

    /// Runs user code. A panic is caught, counted and reported to the observer, and `Err` is returned.
    #[inline(always)]
    pub(crate) fn guarded<R>(&self, user_code: impl FnOnce() -> R) -> Result<R, UserPanic> {
        Panics::contain(user_code).ok_or_else(|| {
            self.count_panic();
            UserPanic
        })
    }

    /// Counts a panic that the caller has caught, and reports it to the observer.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_panic(&self) {
        self.count(Statistic::Panic, 1);
        self.observe(Observer::panicked);
    }

    /// Counts a panic that the caller has caught, reports it to the observer, and discards it.
    #[cold]
    pub(crate) fn end_panic(&self, panics: Panics) {
        self.count_panic();
        panics.discard();
    }

    /// Calls `tell` to report an event to the user's metrics recorder and tracing subscriber. Both are user code: a
    /// panic in them is counted, but not reported in turn. Returns the default value after a panic, or without an
    /// observer. The caller holds no lock.
    #[inline]
    pub(crate) fn observe<R: Default>(&self, tell: impl FnOnce(&Observer) -> R) -> R {
        let observer = self.observer.as_ref().filter(|_| OBSERVED);
        let told = observer.and_then(|observer| self.caught(|| tell(observer)).ok());
        told.unwrap_or_default()
    }

    fn caught<R>(&self, user_code: impl FnOnce() -> R) -> Result<R, UserPanic> {
        Panics::contain(user_code).ok_or_else(|| {
            self.count(Statistic::Panic, 1);
            UserPanic
        })
    }

    /// Ends a call of the library. First runs the calls that wait on the trampoline (the thread's queue of calls that
    /// must not run inside a callback), and counts and discards their panics. Used where a panic must not be passed on:
    /// the caller has more to do, or returns an operation, which the panic would lose.
    #[inline(always)]
    pub(crate) fn leave(&self, trampoline: Trampoline) {
        if trampoline.has_waiting() {
            self.leave_after_waiting(trampoline);
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_after_waiting(&self, trampoline: Trampoline) {
        let panics = trampoline.leave();
        if !panics.is_empty() {
            self.end_panic(panics);
        }
    }
}

/// User code has panicked. The panic hook has reported the panic, and the engine has counted it.
pub(crate) struct UserPanic;

/// The number of processors that this process may use. Computed once, because the system reads files to find the
/// number, which takes 0.1 ms.
pub(crate) fn cores() -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| available_parallelism().map_or(1, |cores| cores.get()));
    *CORES
}
