//! A home: the slab and the wheel of the operations that some threads park.
//!
//! Each thread parks in the home that its number names, so threads rarely meet at a lock, whatever the keys and the
//! timeouts are. One hold of the lock takes a slot and starts its timer; one stops the timer and frees the slot.

use super::Parked;
use crate::cell::slab::{Begin, Ended, Fields, FieldsView, Held, Slab, SlabGuard, SlotRef};
use crate::cell::state::Mark;
use crate::operation::DelayedOperation;
use crate::stats::{Ending, Events, Ledger};
use crate::sync::SLICE;
use crate::time::ticks::{NEVER, Tick};
use crate::timer::wheel::{Step, Wheel};
use crate::timer::{Position, Records};

/// What lies beside the slots, under the same lock.
pub(crate) struct Schedule {
    wheel: Wheel,
    /// After the shutdown nobody parks here.
    closed: bool,
}

impl Schedule {
    /// Starts the timer of the slot at `index`, unless it is never due. Returns its record, and a deadline that is
    /// earlier than any before.
    #[inline(always)]
    fn start(&mut self, index: u32, deadline: Tick, now: Tick) -> (Position, Option<Tick>) {
        if deadline == NEVER {
            return (Position::NONE, None);
        }
        let started = self.wheel.start(index, deadline, now);
        (started.position, started.earliest)
    }
}

type Guard<'a, Op> = SlabGuard<'a, Parked<Op>, Schedule>;

pub(crate) struct Home<Op: DelayedOperation> {
    pub(crate) number: usize,
    slab: Slab<Parked<Op>, Schedule>,
    /// Kept under the slab's lock.
    ledger: Ledger,
    /// For those who do not wait for the lock.
    unlocked: Ledger,
    pub(crate) events: Events,
}

/// Answer of [`Home::park`].
pub(crate) enum Admission<'a, Op: DelayedOperation> {
    /// It has a slot; the caller holds it. An earlier deadline than any before may have to be announced.
    Admitted(Held<'a, Parked<Op>>, Option<Tick>),
    Full(Parked<Op>),
    Closed(Parked<Op>),
}

/// What one hold of the lock took out of the wheel.
pub(crate) struct Due {
    pub(crate) fired: Vec<(SlotRef, Tick)>,
    /// Whether more may be due.
    pub(crate) more: bool,
}

impl<P, G> Records for FieldsView<'_, P, G> {
    #[inline(always)]
    fn deadline(&self, id: u32) -> Tick {
        self.read(id).deadline
    }

    #[inline(always)]
    fn set_position(&mut self, id: u32, position: Position) {
        self.update(id, |fields| fields.position = position.0);
    }
}

impl<Op: DelayedOperation> Home<Op> {
    pub(crate) fn new(number: usize, wheel_size: u32) -> Self {
        Self {
            number,
            slab: Slab::new(Schedule {
                wheel: Wheel::new(wheel_size, 0),
                closed: false,
            }),
            ledger: Ledger::default(),
            unlocked: Ledger::default(),
            events: Events::default(),
        }
    }

    pub(crate) fn try_lock(&self) -> Option<Guard<'_, Op>> {
        self.slab.try_lock()
    }

    pub(crate) fn lock(&self) -> Guard<'_, Op> {
        self.slab.lock()
    }

    /// Gives `parked` a slot, of which at most `limit` exist, and starts its timer. `guard` is this home's lock.
    #[inline(always)]
    pub(crate) fn park<'a>(
        &'a self,
        mut guard: Guard<'a, Op>,
        parked: Parked<Op>,
        now: Tick,
        deadline: Tick,
        limit: u32,
    ) -> Admission<'a, Op> {
        self.return_deferred(&mut guard);
        if guard.split().0.closed {
            return Admission::Closed(parked);
        }
        let watches = parked.keys.as_slice().len();
        let mut earlier = None;
        let inserted = guard.insert(parked, limit, |schedule, index| {
            let (position, earliest) = schedule.start(index, deadline, now);
            earlier = earliest;
            Fields {
                deadline,
                parked_at: now,
                position: position.0,
            }
        });
        match inserted {
            Ok(held) => {
                self.ledger.admitted.add_exclusively(1);
                self.ledger.watches_added.add_exclusively(watches as u64);
                Admission::Admitted(held, earlier)
            }
            Err(parked) => Admission::Full(parked),
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
            self.unlocked.ended(ending).add(1);
            self.unlocked.watches_removed.add(watches as u64);
            self.slab.defer(ended);
            // The lock may have been released just before: then nobody else is on the way.
            if let Some(mut guard) = self.slab.try_lock() {
                self.return_deferred(&mut guard);
            }
        }
    }

    #[inline(always)]
    fn return_deferred(&self, guard: &mut Guard<'_, Op>) {
        for ended in guard.take_deferred() {
            Self::release(guard, ended);
        }
    }

    #[inline(always)]
    fn release(guard: &mut Guard<'_, Op>, ended: Ended) {
        guard.free(ended, |schedule, fields, mut others| {
            schedule.wheel.stop(&mut others, Position(fields.position));
        });
    }

    /// Begins to drain what is due at `now`. Returns how many timers there are at all.
    pub(crate) fn begin_pass(&self, now: Tick) -> usize {
        let mut guard = self.slab.lock();
        let wheel = &mut guard.split().0.wheel;
        wheel.begin_pass(now);
        wheel.len()
    }

    /// Takes out of the wheel what is due at `now`: one slice of it, so that nobody waits long for the lock.
    pub(crate) fn drain(&self, now: Tick) -> Due {
        let mut guard = self.slab.lock();
        self.return_deferred(&mut guard);
        let (schedule, mut fields) = guard.split();
        let mut fired = Vec::new();
        for _ in 0..SLICE {
            match schedule.wheel.step(&mut fields, now) {
                Step::Fired(index, deadline) => {
                    // INVARIANT: a slot is freed only with its timer stopped, under this lock. So the timer that
                    // fired belongs to the present tenant, unless that has ended and is about to be returned.
                    if let Some(at) = fields.tenant(index) {
                        fired.push((at, deadline));
                    }
                }
                Step::Cascaded => {}
                Step::Idle => return Due { fired, more: false },
            }
        }
        Due { fired, more: true }
    }

    /// When the next bucket is due.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        let mut guard = self.slab.lock();
        self.return_deferred(&mut guard);
        guard.split().0.wheel.next_deadline()
    }

    /// Gives the operation at `at` another deadline. `None` if it has ended or its timer has fired already; else the
    /// deadline to announce, if any.
    pub(crate) fn reschedule(
        &self,
        at: SlotRef,
        now: Tick,
        deadline: Tick,
    ) -> Option<Option<Tick>> {
        let mut guard = self.slab.lock();
        let (schedule, mut fields) = guard.split();
        if fields.tenant(at.index) != Some(at) {
            return None;
        }
        let before = fields.read(at.index);
        let fired = before.position == Position::NONE.0 && before.deadline != NEVER;
        if fired {
            return None;
        }
        schedule.wheel.stop(&mut fields, Position(before.position));
        let (position, earlier) = schedule.start(at.index, deadline, now);
        fields.update(at.index, |fields| {
            fields.deadline = deadline;
            fields.position = position.0;
        });
        Some(earlier)
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
    pub(crate) fn begin(&self, at: SlotRef, mark: Mark) -> Begin<'_, Parked<Op>> {
        self.slab.begin(at, mark)
    }

    #[inline(always)]
    pub(crate) fn is_parked(&self, at: SlotRef) -> bool {
        self.slab.is_parked(at)
    }

    pub(crate) fn ledgers(&self) -> [&Ledger; 2] {
        [&self.ledger, &self.unlocked]
    }
}
