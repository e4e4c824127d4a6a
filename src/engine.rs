//! What every facility of this crate stands on: records with a deadline, in homes, and someone who fires them.
//!
//! An engine knows neither keys nor user code. It files payloads in [`home`]s, whose cells decide who may end each of
//! them, tells the sleeper of earlier deadlines, and hands what is due to its [`Facility`](drive::Facility): the
//! purgatory, the timer or the tracker. [`drive`] is what the passing of time does; [`deliver`] runs what the user
//! wants to be told.

pub(crate) mod deliver;
pub(crate) mod drive;
pub(crate) mod home;
mod limit;
pub(crate) mod owner;
pub(crate) mod pass;
pub(crate) mod settings;
#[cfg(all(test, not(loom)))]
mod tests;
mod threads;

use crate::address::{Address, HOME_BITS, SLOTS};
use crate::alarm::Alarm;
use crate::cell::slab::{Begin, Ended, Held, Released, SlotRef};
use crate::cell::state::Mark;
use crate::completions::Completions;
use crate::error::{BuildError, Rejected};
use crate::observe::{OBSERVED, Observer, Since};
use crate::scheme::{Scheme, Tick};
use crate::stats::{Ending, Stats};
use crate::sync::{
    Arc, AtomicBool, CachePadded, HOMES, Mutex, Ordering, SLICE, fence, thread_token,
};
use crate::time::ticks::{NEVER, TickScale};
use crate::time::{Clock, Timestamp};
use home::{Admission, Home, Rescheduled};
use limit::Limit;
use settings::Settings;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use threads::Threads;

pub(crate) struct Engine<P, W> {
    pub(crate) name: String,
    pub(crate) homes: Box<[CachePadded<Home<P, W>>]>,
    pub(crate) alarm: Alarm,
    /// Held by callers who set the alarm anew.
    pub(crate) rearming: Mutex<()>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) scale: TickScale,
    max_timeout: Duration,
    limit: Option<Limit>,
    completions: Completions,
    pub(crate) threads: Threads,
    observer: Observer,
    closed: AtomicBool,
}

/// How long a payload is to wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// When it came.
    pub(crate) start: Tick,
    pub(crate) deadline: Tick,
    /// A tick that has surely come: a wheel that lags behind may go on to it. (A reading that is only said to be one
    /// could be of the future, and lead past deadlines.)
    pub(crate) present: Tick,
    /// What was read of the clock.
    pub(crate) since: Since,
}

/// A payload in the hands of this thread, with its home.
pub(crate) struct Tenant<'a, P, W> {
    pub(crate) home: &'a Home<P, W>,
    pub(crate) held: Held<'a, P>,
}

impl<P, W: Scheme> Tenant<'_, P, W> {
    #[inline(always)]
    pub(crate) fn address(&self) -> Address {
        self.home.address(self.held.at())
    }
}

/// A slot whose payload was taken out, to be [given back](Engine::give_back).
#[must_use]
pub(crate) struct Vacated {
    home: usize,
    ended: Ended,
}

impl<P, W: Scheme> Engine<P, W> {
    /// Checks the settings, and starts the threads that they ask for.
    pub(crate) fn new(settings: Settings) -> Result<Self, BuildError> {
        let slots = settings.slots()?;
        let scale = settings.scale()?;
        let (threads, completions) =
            Threads::start(&settings.name, settings.reaper, settings.completions)
                .map_err(BuildError::Thread)?;
        let homes = cores().clamp(*HOMES.start(), *HOMES.end());
        Ok(Self {
            name: settings.name,
            homes: (0..homes.next_power_of_two().min(1 << HOME_BITS))
                .map(|number| CachePadded::new(Home::new(number, slots)))
                .collect(),
            alarm: Alarm::new(),
            rearming: Mutex::new(()),
            clock: settings.clock,
            scale,
            max_timeout: settings.max_timeout,
            limit: settings.max_parked.map(Limit::new),
            completions,
            threads,
            observer: Observer::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// From now on the user's recorder and subscriber are told of what happens.
    pub(crate) fn observed(mut self) -> Self {
        // A recorder that panics here hears nothing more.
        let observer = self.caught(|| Observer::new(&self.name));
        self.observer = observer.unwrap_or_default();
        self
    }

    #[inline(always)]
    pub(crate) fn home(&self, number: usize) -> &Home<P, W> {
        &self.homes[number & (self.homes.len() - 1)]
    }

    /// The calling thread's home.
    #[inline(always)]
    pub(crate) fn my_home(&self) -> &Home<P, W> {
        self.home(thread_token() as usize)
    }

    #[inline(always)]
    pub(crate) fn now(&self) -> Tick {
        self.scale.floor(self.clock.now())
    }

    /// From now until `timeout` has passed.
    #[inline(always)]
    pub(crate) fn span(&self, timeout: Duration) -> Span {
        let span = self.span_from(self.clock.now(), timeout);
        Span {
            present: span.start,
            ..span
        }
    }

    /// From a reading of the clock that the caller has made, or says so.
    #[inline(always)]
    pub(crate) fn span_from(&self, reading: Timestamp, timeout: Duration) -> Span {
        let (start, deadline) = self.scale.span(reading, timeout.min(self.max_timeout));
        Span {
            start,
            deadline,
            present: 0,
            since: Since::at(reading),
        }
    }

    pub(crate) fn timestamp(&self, tick: Tick) -> Timestamp {
        self.scale.timestamp(tick)
    }

    /// Gives `payload` a slot and a timer, and tells the sleeper. The caller holds it, and so decides when others may
    /// end it.
    #[inline(always)]
    pub(crate) fn admit(
        &self,
        payload: P,
        watches: usize,
        span: Span,
    ) -> Result<Tenant<'_, P, W>, Rejected<P>> {
        let (tenant, earlier) = self.place(payload, watches, span, |tenant| tenant)?;
        self.announce(earlier);
        Ok(tenant)
    }

    /// Gives `payload`, of which nothing is ever asked, a slot and a timer. Returns where it is, and a deadline to
    /// [announce](Self::announce).
    #[inline(always)]
    pub(crate) fn keep(
        &self,
        payload: P,
        span: Span,
    ) -> Result<(Address, Option<Tick>), Rejected<P>> {
        self.place(payload, 0, span, |tenant| {
            let address = tenant.address();
            // INVARIANT: a mark is left by those who drive the timer and those who shut down, after they had the lock
            // that this thread still has. So nobody expires a payload on the thread that brings it, whose locks are
            // not ours to know.
            match tenant.held.release(false) {
                Released::Parked { .. } => address,
                _ => unreachable!("a mark on a payload that nobody has heard of"),
            }
        })
    }

    /// Gives `payload` a slot and a timer, in the calling thread's home or in a neighbour of it if that is locked.
    /// `then` has it while the home is locked. Beside its answer comes a deadline to [announce](Self::announce).
    #[inline(always)]
    fn place<'a, R>(
        &'a self,
        payload: P,
        watches: usize,
        span: Span,
        then: impl FnOnce(Tenant<'a, P, W>) -> R,
    ) -> Result<(R, Option<Tick>), Rejected<P>> {
        if self.limit.as_ref().is_some_and(|limit| !limit.take()) {
            return Err(Rejected::Full(payload));
        }
        let mine = self.my_home();
        let neighbours = (1..self.homes.len().min(3)).map(|step| self.home(mine.number + step));
        let (home, mut guard) = std::iter::once(mine)
            .chain(neighbours)
            .find_map(|home| Some((home, home.try_lock()?)))
            .unwrap_or_else(|| (mine, mine.lock()));
        let rejected = match home.park(&mut guard, payload, watches, span, SLOTS) {
            Admission::Admitted(held, earlier) => {
                return Ok((then(Tenant { home, held }), earlier));
            }
            Admission::Full(payload) => Rejected::Full(payload),
            Admission::Closed(payload) => Rejected::ShutDown(payload),
            Admission::TooLong(payload) => Rejected::TooLong(payload),
        };
        drop(guard);
        self.free_place();
        Err(rejected)
    }

    /// Takes hold of the payload at `address`, or leaves `mark` for whoever has it.
    #[inline(always)]
    pub(crate) fn begin(&self, address: Address, mark: Mark) -> Option<Tenant<'_, P, W>> {
        let home = self.home(address.home());
        match home.begin(slot_of(address), mark) {
            Begin::Held(held) => Some(Tenant { home, held }),
            Begin::Marked | Begin::Gone => None,
        }
    }

    #[inline(always)]
    pub(crate) fn is_parked(&self, address: Address) -> bool {
        self.home(address.home()).is_parked(slot_of(address))
    }

    /// The one ending of a payload: it moves out, and every reference to it goes stale. Its slot has no other tenant
    /// before the caller gives that back.
    #[inline(always)]
    pub(crate) fn vacate(&self, tenant: Tenant<'_, P, W>) -> (P, Vacated) {
        let home = tenant.home.number;
        let (payload, ended) = tenant.held.end();
        (payload, Vacated { home, ended })
    }

    /// Stops the timer, frees the slot and books the ending. Never waits for a lock.
    #[inline(always)]
    pub(crate) fn give_back(&self, vacated: Vacated, ending: Ending, watches: usize) {
        let Vacated { home, ended } = vacated;
        let (home, mine) = (self.home(home), self.my_home());
        if home.number == mine.number {
            home.give_back(ended, ending, watches);
        } else {
            mine.book(ending, 1);
            mine.book_unwatched(watches);
            home.give_back_from_afar(ended);
        }
        self.free_place();
    }

    /// The same for several whose endings are booked, those of one home together. With each come its watch entries.
    pub(crate) fn give_back_booked(&self, all: impl Iterator<Item = (Vacated, usize)>) {
        let mut all = all.peekable();
        let mut slice = Vec::with_capacity(SLICE);
        while let Some(&(Vacated { home, .. }, _)) = all.peek() {
            let same = std::iter::from_fn(|| all.next_if(|(other, _)| other.home == home));
            let slots = same.map(|(vacated, watches)| (vacated.ended, watches));
            slice.extend(slots.take(SLICE));
            let places = slice.len();
            self.home(home).give_back_booked(&mut slice);
            (0..places).for_each(|_| self.free_place());
        }
    }

    /// Both, for payloads without keys.
    pub(crate) fn end(&self, tenant: Tenant<'_, P, W>, ending: Ending) -> P {
        let (payload, vacated) = self.vacate(tenant);
        self.give_back(vacated, ending, 0);
        payload
    }

    /// Whether there is a bound on what is parked.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Gives back a place under the limit.
    #[inline(always)]
    fn free_place(&self) {
        if let Some(limit) = &self.limit {
            limit.give_back();
        }
    }

    /// Gives one payload another deadline, `timeout` from now.
    pub(crate) fn reschedule(&self, address: Address, timeout: Duration) -> Rescheduled {
        let span = self.span(timeout);
        let home = self.home(address.home());
        let rescheduled = home.reschedule(slot_of(address), span);
        if let Rescheduled::Done(earlier) = rescheduled {
            self.announce(earlier);
        }
        rescheduled
    }

    /// Announces a deadline to the sleeper.
    #[inline(always)]
    pub(crate) fn announce(&self, deadline: Option<Tick>) {
        if deadline.is_some_and(|deadline| self.alarm.set(deadline)) {
            self.wake();
        }
    }

    /// Wakes whoever drives the timer.
    pub(crate) fn wake(&self) {
        // A reactor's waker is the user's code.
        let _ = self.guarded(|| self.threads.wake());
    }

    /// Ends the threads that nobody else uses, and waits for them unless this is called from a callback.
    pub(crate) fn stop_threads(&self) {
        // A shared reaper finds out that it is done here, and so does a reactor.
        self.wake();
        self.threads.stop();
    }

    /// When the payload at `address` was parked, and its deadline.
    pub(crate) fn times(&self, address: Address) -> Option<(Tick, Tick)> {
        self.home(address.home()).times(slot_of(address))
    }

    /// The deadline of the payload at `address`, rounded up to the tick. `None` if it has ended or never expires.
    pub(crate) fn deadline(&self, address: Address) -> Option<Timestamp> {
        let (_, deadline) = self.times(address)?;
        (deadline != NEVER).then(|| self.timestamp(deadline))
    }

    /// The time until then, zero if it has passed.
    pub(crate) fn remaining(&self, address: Address) -> Option<Duration> {
        let deadline = self.deadline(address)?;
        Some(deadline.saturating_since(self.clock.now()))
    }

    pub(crate) fn is_closed(&self) -> bool {
        // ORDERING: Acquire pairs with the swap in `close`. Only a shortcut: the homes' own flags decide.
        self.closed.load(Ordering::Acquire)
    }

    /// The same for a caller who has just put something off: if this says no, whoever closes the engine finds that.
    pub(crate) fn is_closed_meanwhile(&self) -> bool {
        // ORDERING: SeqCst pairs with the fence in `close`: of two threads that each write one place and then read the
        // other's, one sees the other's write.
        fence(Ordering::SeqCst);
        self.is_closed()
    }

    /// Returns whether this call closed it.
    fn close(&self) -> bool {
        // ORDERING: AcqRel pairs with the Acquire in `is_closed`; a swap, so that one caller does the work.
        let first = !self.closed.swap(true, Ordering::AcqRel);
        // ORDERING: SeqCst, see `is_closed_meanwhile`.
        fence(Ordering::SeqCst);
        first
    }

    /// What happened so far.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        stats.count_ledgers(self.homes.iter().flat_map(|home| home.ledgers()));
        for home in &self.homes {
            stats.count_events(&home.events);
        }
        stats
    }

    /// Runs user code; a panic is caught, counted and told.
    #[inline(always)]
    pub(crate) fn guarded<R>(&self, user_code: impl FnOnce() -> R) -> Result<R, UserPanic> {
        self.caught(user_code).inspect_err(|UserPanic| {
            self.observe(Observer::panicked);
        })
    }

    /// Tells the user's recorder and subscriber. They are user code as well, but of their panics nobody is told.
    /// To be called with no lock held.
    #[inline]
    pub(crate) fn observe<R: Default>(&self, tell: impl FnOnce(&Observer) -> R) -> R {
        if OBSERVED {
            self.caught(|| tell(&self.observer)).unwrap_or_default()
        } else {
            tell(&self.observer)
        }
    }

    #[inline(always)]
    fn caught<R>(&self, user_code: impl FnOnce() -> R) -> Result<R, UserPanic> {
        catch_unwind(AssertUnwindSafe(user_code)).map_err(|payload| {
            self.my_home().events.panics.add(1);
            // The payload is the user's too, and dropping it may panic.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
            if let Err(again) = dropped {
                std::mem::forget(again);
            }
            UserPanic
        })
    }
}

/// User code panicked. The panic hook has reported it, and it has been counted.
#[derive(Debug)]
pub(crate) struct UserPanic;

#[inline(always)]
fn slot_of(address: Address) -> SlotRef {
    SlotRef {
        index: address.index(),
        generation: address.generation(),
    }
}

/// Processors that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}
