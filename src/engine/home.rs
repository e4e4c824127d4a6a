//! A home: the slab and the timer of what some threads park.
//!
//! Each thread parks in the home that its number names, so threads rarely meet at a lock, whatever the keys and the
//! timeouts are. One hold of the lock takes a slot and starts its timer; one stops the timer and frees the slot.

use super::Span;
use crate::address::Address;
use crate::cell::slab::{Begin, Ended, Fields, FieldsView, Held, Slab, SlabGuard, SlotRef};
use crate::cell::state::Mark;
use crate::scheme::{HorizonError as BeyondSpan, Position, Records, Scheme, Step, Tick};
use crate::stats::{Ending, Events, Ledger};
use crate::sync::{CachePadded, SLICE};
use crate::time::ticks::NEVER;

/// What lies beside the slots, under the same lock.
pub(crate) struct Schedule<W> {
    timer: W,
    /// After the shutdown nobody parks here.
    closed: bool,
}

impl<W: Scheme> Schedule<W> {
    /// Starts the timer of the slot at `index`, unless it is never due. Returns where it is filed, and a deadline that
    /// is earlier than any before.
    #[inline(always)]
    fn start(
        &mut self,
        records: &mut impl Records,
        index: u32,
        span: Span,
    ) -> Result<(Position, Option<Tick>), BeyondSpan> {
        if span.deadline == NEVER {
            return Ok((Position::NONE, None));
        }
        let started = self
            .timer
            .start(records, index, span.deadline, span.present)?;
        Ok((started.position, started.earliest))
    }
}

type Guard<'a, P, W> = SlabGuard<'a, P, Schedule<W>>;

pub(crate) struct Home<P, W> {
    pub(crate) number: usize,
    slab: Slab<P, Schedule<W>>,
    /// Kept under the slab's lock.
    ledger: CachePadded<Ledger>,
    /// For those who do not wait for the lock.
    unlocked: CachePadded<Ledger>,
    pub(crate) events: CachePadded<Events>,
}

/// Answer of [`Home::park`].
pub(crate) enum Admission<'a, P> {
    /// It has a slot; the caller holds it. An earlier deadline than any before may have to be announced.
    Admitted(Held<'a, P>, Option<Tick>),
    Full(P),
    Closed(P),
    TooLong(P),
}

/// Answer of [`Home::reschedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rescheduled {
    /// It has the new deadline, which may have to be announced.
    Done(Option<Tick>),
    /// It has ended, or its timer has fired.
    Gone,
    /// The scheme cannot hold the new deadline: it keeps the old one.
    TooLong,
}

impl<P, G> Records for FieldsView<'_, P, G> {
    #[inline(always)]
    fn deadline(&self, id: u32) -> Tick {
        self.read(id).deadline
    }

    #[inline(always)]
    fn set_position(&mut self, id: u32, position: Position) {
        self.update(id, |fields| fields.position = position.number());
    }
}

impl<P, W: Scheme> Home<P, W> {
    pub(crate) fn new(number: usize, slots: u32) -> Self {
        Self {
            number,
            slab: Slab::new(Schedule {
                timer: W::new(slots, 0),
                closed: false,
            }),
            ledger: CachePadded::default(),
            unlocked: CachePadded::default(),
            events: CachePadded::default(),
        }
    }

    /// The name of what is in a slot of this home.
    #[inline(always)]
    pub(crate) fn address(&self, at: SlotRef) -> Address {
        Address::new(self.number, at.index, at.generation)
    }

    pub(crate) fn try_lock(&self) -> Option<Guard<'_, P, W>> {
        self.slab.try_lock()
    }

    pub(crate) fn lock(&self) -> Guard<'_, P, W> {
        self.slab.lock()
    }

    /// Gives `payload` a slot, of which at most `limit` exist, and starts its timer. `guard` is this home's lock;
    /// `watches` is for the books.
    #[inline(always)]
    pub(crate) fn park<'a>(
        &'a self,
        guard: &mut Guard<'a, P, W>,
        payload: P,
        watches: usize,
        span: Span,
        limit: u32,
    ) -> Admission<'a, P> {
        self.return_deferred(guard);
        if guard.split().0.closed {
            return Admission::Closed(payload);
        }
        let mut earlier = None;
        let inserted = guard.insert(payload, limit, |schedule, mut records, index| {
            let (position, earliest) = schedule.start(&mut records, index, span)?;
            earlier = earliest;
            Ok(Fields {
                deadline: span.deadline,
                parked_at: span.start,
                position: position.number(),
            })
        });
        match inserted {
            Ok(held) => {
                self.ledger.admitted.add_exclusively(1);
                self.ledger.watches_added.add_exclusively(watches as u64);
                Admission::Admitted(held, earlier)
            }
            Err((payload, None)) => Admission::Full(payload),
            Err((payload, Some(BeyondSpan { .. }))) => Admission::TooLong(payload),
        }
    }

    /// Takes an ended slot back, with its timer, and books the ending; `watches` entries are gone from the lists.
    ///
    /// Never waits: if the lock is taken, whoever gets it next does the rest.
    #[inline(always)]
    pub(crate) fn give_back(&self, ended: Ended, ending: Ending, watches: usize) {
        if let Some(mut guard) = self.slab.try_lock() {
            self.ledger.ended(ending).add_exclusively(1);
            self.ledger.watches_removed.add_exclusively(watches as u64);
            Self::release(&mut guard, ended);
            self.return_deferred(&mut guard);
        } else {
            self.book(ending, 1);
            self.book_unwatched(watches);
            self.slab.defer(ended);
            self.try_return_deferred();
        }
    }

    /// Takes a slot of another home back whose ending is booked in one's own.
    ///
    /// It does not even ask for the lock, but once in a while: what lies under it would go back and forth between the
    /// two processors with every life. Whoever parks here, or drives the timer, does the rest.
    pub(crate) fn give_back_from_afar(&self, ended: Ended) {
        if self.slab.defer(ended) >= SLICE {
            self.try_return_deferred();
        }
    }

    /// Books so many endings, without the lock.
    #[inline(always)]
    pub(crate) fn book(&self, ending: Ending, count: usize) {
        if count > 0 {
            self.unlocked.ended(ending).add(count as u64);
        }
    }

    /// Books that so many entries are gone from the watch lists.
    #[inline(always)]
    pub(crate) fn book_unwatched(&self, watches: usize) {
        if watches > 0 {
            self.unlocked.watches_removed.add(watches as u64);
        }
    }

    /// Takes a slice of slots back whose endings are booked, in one hold of the lock if that is free.
    pub(crate) fn give_back_booked(&self, slice: &mut Vec<(Ended, usize)>) {
        let watches: usize = slice.iter().map(|&(_, watches)| watches).sum();
        self.book_unwatched(watches);
        self.slab
            .look_ahead(slice.iter().map(|(ended, _)| ended.index()));
        let slots = slice.drain(..).map(|(ended, _)| ended);
        match self.slab.try_lock() {
            Some(mut guard) => {
                slots.for_each(|ended| Self::release(&mut guard, ended));
                self.return_deferred(&mut guard);
            }
            None => {
                slots.for_each(|ended| _ = self.slab.defer(ended));
                self.try_return_deferred();
            }
        }
    }

    /// For whoever has just deferred a slot because the lock was taken: it may have been released just before, and then
    /// nobody else is on the way.
    fn try_return_deferred(&self) {
        if let Some(mut guard) = self.slab.try_lock() {
            self.return_deferred(&mut guard);
        }
    }

    /// Gives back a slice of what was deferred, in the hold of the lock that the caller has anyway. Returns whether
    /// there may be more, for the next one.
    #[inline(always)]
    fn return_deferred(&self, guard: &mut Guard<'_, P, W>) -> bool {
        for _ in 0..SLICE {
            match guard.next_deferred() {
                Some(ended) => Self::release(guard, ended),
                None => return false,
            }
        }
        true
    }

    #[inline(always)]
    fn release(guard: &mut Guard<'_, P, W>, ended: Ended) {
        guard.free(ended, |schedule, fields, mut others| {
            schedule
                .timer
                .stop(&mut others, Position::new(fields.position));
        });
    }

    /// Begins to drain what is due at `now`. Returns how many timers there are at all.
    pub(crate) fn begin_pass(&self, now: Tick) -> usize {
        let mut guard = self.slab.lock();
        let timer = &mut guard.split().0.timer;
        timer.begin_pass(now);
        timer.len()
    }

    /// Takes out of the wheel what is due at `now`: one slice of it, so that nobody waits long for the lock. Adds it to
    /// `fired`, and says whether more may be due.
    pub(crate) fn drain(&self, now: Tick, fired: &mut Vec<(SlotRef, Tick)>) -> bool {
        let mut guard = self.slab.lock();
        self.return_deferred(&mut guard);
        let (schedule, mut fields) = guard.split();
        self.slab.look_ahead(schedule.timer.upcoming().take(SLICE));
        for _ in 0..SLICE {
            match schedule.timer.step(&mut fields, now) {
                Step::Fired(index, deadline) => {
                    // INVARIANT: a slot is freed only with its timer stopped, under this lock. So the timer that
                    // fired belongs to the present tenant, unless that has ended and is about to be returned.
                    if let Some(at) = fields.tenant(index) {
                        fired.push((at, deadline));
                    }
                }
                Step::Bookkeeping => {}
                Step::Idle => return false,
            }
        }
        true
    }

    /// When the next bucket is due.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        loop {
            let mut guard = self.slab.lock();
            // (Of timers that were stopped and are still there, nobody wants to hear.)
            if !self.return_deferred(&mut guard) {
                return guard.split().0.timer.next_deadline();
            }
        }
    }

    /// Gives the payload at `at` another deadline.
    pub(crate) fn reschedule(&self, at: SlotRef, span: Span) -> Rescheduled {
        let mut guard = self.slab.lock();
        let (schedule, mut fields) = guard.split();
        if fields.tenant(at.index) != Some(at) {
            return Rescheduled::Gone;
        }
        let before = fields.read(at.index);
        let fired = before.position == Position::NONE.number() && before.deadline != NEVER;
        if fired {
            return Rescheduled::Gone;
        }
        // Asked first: a timer that is stopped and started again is for the next pass, even with its old deadline.
        if span.deadline != NEVER && span.deadline > schedule.timer.latest(span.present) {
            return Rescheduled::TooLong;
        }
        let old = Position::new(before.position);
        schedule.timer.stop(&mut fields, old);
        let started = schedule.start(&mut fields, at.index, span);
        let (started, deadline, answer) = match started {
            Ok((position, earlier)) => (Some(position), span.deadline, Rescheduled::Done(earlier)),
            // (A scheme that promised more. The old deadline could be held before, so it can be held now.)
            Err(BeyondSpan { .. }) => {
                let old = Span {
                    deadline: before.deadline,
                    ..span
                };
                let again = schedule.start(&mut fields, at.index, old);
                let position = again.ok().map(|(position, _)| position);
                (position, before.deadline, Rescheduled::TooLong)
            }
        };
        fields.update(at.index, |fields| {
            fields.deadline = deadline;
            fields.position = started.unwrap_or(Position::NONE).number();
        });
        answer
    }

    /// When the operation at `at` was parked, and its deadline.
    pub(crate) fn times(&self, at: SlotRef) -> Option<(Tick, Tick)> {
        let mut guard = self.slab.lock();
        let (_, fields) = guard.split();
        (fields.tenant(at.index) == Some(at)).then(|| {
            let fields = fields.read(at.index);
            (fields.parked_at, fields.deadline)
        })
    }

    /// From now on nobody parks here.
    pub(crate) fn close(&self) {
        self.slab.lock().split().0.closed = true;
    }

    /// The operations that are here now.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = SlotRef> + '_ {
        (0..self.slab.used()).filter_map(|index| self.slab.tenant(index))
    }

    #[inline(always)]
    pub(crate) fn begin(&self, at: SlotRef, mark: Mark) -> Begin<'_, P> {
        self.slab.begin(at, mark)
    }

    #[inline(always)]
    pub(crate) fn is_parked(&self, at: SlotRef) -> bool {
        self.slab.is_parked(at)
    }

    /// An ending may stand in the books of another home than the arrival.
    pub(crate) fn ledgers(&self) -> [&Ledger; 2] {
        [&self.ledger, &self.unlocked]
    }
}
