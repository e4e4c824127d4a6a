//! The log of arrivals: new timers, in the order in which they were started. A timer stays in the log until shortly
//! before its deadline, and then moves to a wheel. Most timers are stopped before that, and never cost the wheel any
//! work.
//!
//! The log consists of *segments*, arrays of [`SEGMENT`] places. A timer takes the next place of a segment, with its
//! id, and its deadline as an offset from the segment's `base` tick. A timer that is stopped leaves a *hole*, and no
//! other timer moves.
//!
//! The *bound* of a segment is a tick that is not later than any of its deadlines. A queue orders the segments by their
//! bounds. [`LEAD`] ticks before its bound, a segment is *visited*: the visit takes out the timers whose deadlines are
//! near, and queues the segment again by the earliest deadline that is left.
//!
//! Each timer belongs to a *strand*, and each strand has one *open* segment, to which its new timers are appended. So a
//! segment has timers of one strand only. The strand of a timer depends on its level and its slot, as in a wheel:
//!
//! * The level is the number of base-64 digits of the distance to the deadline, minus one.
//! * A slot is a window of deadlines, 64^level ticks wide. All deadlines of a level lie in the next 64 slots or so.
//! * A level has 16 strands: every sixteenth slot belongs to the same strand. So a segment has deadlines in about four
//!   slots.
//!
//! A visit takes the timers that are due within the width of a slot. So a visit moves no far timers to the wheel, and a
//! few visits empty a segment.
//!
//! INVARIANT: a segment with timers has an entry in the queue with its `bound`, unless the segment is being visited. No
//! timer of the segment has an earlier deadline than `bound`, so no visit comes too late. An entry with any other bound
//! is stale, and is ignored. A segment that is not in use has the bound `Tick::MAX`, which is the deadline of no timer.

use crate::record::{Position, Tick};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The number of places in a segment. Only two in tests under loom and shuttle, so that few timers fill a segment.
const SEGMENT: usize = if cfg!(any(request_purgatory_loom, request_purgatory_shuttle)) {
    2
} else {
    256
};
/// A segment is visited this number of ticks before its bound (a tick at or before its earliest deadline). In a visit,
/// a pass moves the timers with near deadlines to the wheel. At a tick of 1 ms, this is enough time for a million
/// timers whose deadlines lie close together.
const LEAD: Tick = 256;
/// A timer whose deadline is nearer than this number of ticks goes to the wheel at once.
const NEAR: Tick = 2 * LEAD;
/// The number of bits in a base-64 digit.
const DIGIT: u32 = 6;
/// Timers of these [levels](level_of) go to the log, the others to the wheel. At a tick of 1 ms, the log gets timers
/// with deadlines 512 ms to 12 days ahead. From level 5 on, many deadlines would not fit the 32-bit offset from a
/// segment's `base` tick.
const LEVELS: std::ops::RangeInclusive<u32> = 1..=4;
/// The slots of a level form this number of groups, the strands: every sixteenth slot belongs to the same strand.
const STRANDS: usize = 16;
/// The number of levels that exist: a distance of 64 bits has at most 11 base-64 digits.
const ALL: usize = 11;
/// The value in `Segment::offsets` at a place without a timer.
const HOLE: u32 = u32::MAX;
/// Means "no segment": no segment has this number.
const NONE: u32 = u32::MAX;
/// This bit is set in the [`Position`] of every timer in the log. The highest bit, which marks overdue timers, is not
/// set.
const LOGGED: u32 = 1 << 30;
/// At most this many segments without timers are kept for reuse.
const SPARE: usize = 4;
/// The log keeps its timers in segments (arrays of places), and a stopped timer leaves a hole. The log may use four
/// times as many segments as its timers would fill without holes, plus this number. If it uses more,
/// [`thin_out`](Arrivals::thin_out) frees a segment with many holes: takes the remaining timers out of it.
const SPARSE: usize = 16;
/// The number of offsets that [`Segment::find`] compares together.
const LANES: usize = 16;

#[derive(Debug)]
struct Segment {
    /// The offset of a timer is its deadline minus this tick.
    base: Tick,
    /// A tick at or before every deadline in the segment. `Arrivals::queue` orders the segments by this tick, the
    /// earliest first.
    bound: Tick,
    /// Whether `bound` is known to be the earliest deadline: no timer has left the segment since `bound` was set.
    exact: bool,
    /// A pass (round of expiry) visits the segment (this array of timers) shortly before its earliest deadline. A visit
    /// that begins at tick `now` takes the timers with deadlines up to `now + reach` out of the segment. Later timers
    /// stay.
    reach: Tick,
    /// The strand of all timers in this segment, as an index in `Arrivals::open`. A strand is a group of timers that
    /// share an open segment. While `open[strand]` is the number of this segment, the segment is open: new timers of
    /// the strand are appended to it.
    strand: usize,
    /// The number of places in use, including holes.
    len: usize,
    /// The number of timers: places in use that are not holes.
    live: usize,
    offsets: [u32; SEGMENT],
    ids: [u32; SEGMENT],
}

impl Segment {
    fn new() -> Self {
        Self {
            base: 0,
            bound: Tick::MAX,
            exact: true,
            reach: 0,
            strand: 0,
            len: 0,
            live: 0,
            offsets: [HOLE; SEGMENT],
            ids: [0; SEGMENT],
        }
    }

    /// Whether a timer with this deadline can be appended: a place is left, and the deadline's offset from `base` is
    /// below [`HOLE`], the value of an offset that marks a place without a timer.
    #[inline(always)]
    fn has_room(&self, deadline: Tick) -> bool {
        self.len < SEGMENT && deadline.wrapping_sub(self.base) < Tick::from(HOLE)
    }

    /// Appends a timer, and returns its place. The segment must [have room](Self::has_room) for the timer.
    #[inline(always)]
    fn append(&mut self, id: u32, deadline: Tick) -> usize {
        let place = self.len;
        self.offsets[place] = (deadline - self.base) as u32;
        self.ids[place] = id;
        self.len = place + 1;
        self.live += 1;
        place
    }

    /// The first place, at `from` or later, with a timer whose deadline is at most `base + most`. `None` if there is no
    /// such place.
    fn find(&self, from: usize, most: u32) -> Option<usize> {
        let mut start = from;
        while start < self.len {
            let end = self.len.min((start / LANES + 1) * LANES);
            let lanes = &self.offsets[start..end];
            // Compare without a branch for each offset, so that the compiler compares several offsets with one
            // instruction.
            if lanes
                .iter()
                .fold(false, |any, &offset| any | (offset <= most))
            {
                let first = lanes.iter().position(|&offset| offset <= most);
                return first.map(|first| start + first);
            }
            start = end;
        }
        None
    }

    /// The earliest deadline in the segment, which must have a timer.
    fn earliest(&self) -> Tick {
        let first = self
            .offsets
            .iter()
            .fold(HOLE, |first, &offset| first.min(offset));
        self.base + Tick::from(first)
    }

    /// Sets `bound` to the earliest deadline, and returns it. The segment must have a timer.
    fn make_bound_exact(&mut self) -> Tick {
        self.bound = self.earliest();
        self.exact = true;
        self.bound
    }
}

/// A visit in progress: passes take the timers with near deadlines out of a segment.
#[derive(Debug, Clone, Copy)]
struct Visit {
    number: u32,
    /// The places before this place have been examined.
    place: usize,
    /// The visit takes the timers of the segment whose deadlines are at most this number of ticks after
    /// `Segment::base`.
    most: u32,
    has_taken: bool,
}

/// What [`Arrivals::take`] finds in the log, in one step (unit of work) of a pass (round of expiry).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// A timer, which has left the log: its id and its deadline.
    Timer(u32, Tick),
    /// A visit (a search of one segment for timers with near deadlines) has ended without taking a timer.
    Nothing,
    /// No segment is due for a visit (the removal of its timers with near deadlines).
    Idle,
}

/// The log of arrivals.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// The segments by number. `None` at a number that is in `vacant`, the list of free numbers.
    segments: Vec<Option<Box<Segment>>>,
    vacant: Vec<u32>,
    #[expect(
        clippy::vec_box,
        reason = "a segment moves between `segments` and `spare` as a pointer"
    )]
    spare: Vec<Box<Segment>>,
    /// For each strand (a group of timers that share an open segment), the number of its open segment, to which its new
    /// timers are appended.
    open: [u32; ALL * STRANDS],
    /// An entry for each segment: its bound (a tick at or before every deadline in the segment) and its number. The
    /// earliest bound comes first. An entry is stale if the segment has got another bound since.
    queue: BinaryHeap<Reverse<(Tick, u32)>>,
    visit: Option<Visit>,
    /// The number of timers in all segments.
    len: usize,
    /// The segment at which the last search of [`thin_out`](Self::thin_out) has stopped. The next search begins behind
    /// it.
    hand: usize,
}

/// The level of a timer whose deadline is `ahead` ticks away: the number of base-64 digits of `ahead`, minus one.
#[inline(always)]
fn level_of(ahead: Tick) -> u32 {
    let highest = 63 - (ahead | 1).leading_zeros();
    highest / DIGIT
}

/// The strand of a timer whose deadline is `ahead` ticks away: an index in `Arrivals::open`. A strand has every
/// sixteenth slot (window of deadlines) of one level.
#[inline(always)]
fn strand_of(deadline: Tick, ahead: Tick) -> usize {
    let level = level_of(ahead);
    let slot = (deadline >> (DIGIT * level)) as usize;
    level as usize * STRANDS + slot % STRANDS
}

impl Arrivals {
    pub(crate) fn new() -> Self {
        Self {
            segments: Vec::new(),
            vacant: Vec::new(),
            spare: Vec::new(),
            open: [NONE; ALL * STRANDS],
            queue: BinaryHeap::new(),
            visit: None,
            len: 0,
            hand: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn segment(&mut self, number: u32) -> Option<&mut Segment> {
        self.segments.get_mut(number as usize)?.as_deref_mut()
    }

    /// Appends a timer to the open segment of its strand (the group of timers that share this segment), without a
    /// change to the queue. Returns `None` if this is not possible: the deadline is near, or the strand has no open
    /// segment with room, or the deadline is earlier than the segment's `bound`, by which the queue orders the
    /// segments. Then call [`push_slowly`](Self::push_slowly).
    #[inline(always)]
    pub(crate) fn push(&mut self, id: u32, deadline: Tick, now: Tick) -> Option<Position> {
        let ahead = deadline.wrapping_sub(now);
        if ahead < NEAR {
            return None;
        }
        let number = self.open[strand_of(deadline, ahead)];
        let segment = self.segments.get_mut(number as usize)?.as_deref_mut()?;
        if deadline < segment.bound || !segment.has_room(deadline) {
            return None;
        }
        let place = segment.append(id, deadline);
        self.len += 1;
        Some(position(number, place))
    }

    /// Appends a timer, even if it is the first or the earliest timer of its segment. Returns the timer's position, and
    /// whether a new segment was opened for the timer. Returns `None` if the log cannot take the timer: the deadline is
    /// too near or too far, or earlier than `base`, the tick from which the open segment counts its offsets.
    pub(crate) fn push_slowly(
        &mut self,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Option<(Position, bool)> {
        let ahead = deadline.saturating_sub(now);
        let level = level_of(ahead);
        if ahead < NEAR || !LEVELS.contains(&level) {
            return None;
        }
        let strand = strand_of(deadline, ahead);
        let number = self.open[strand];
        let (number, opened) = match self.segment(number) {
            Some(segment) if segment.live == 0 => {
                // The open segment is empty: fill it again from its first place. It keeps its entry in `queue` and its
                // `bound`, the tick by which `queue` orders the segments. If the new deadline is earlier than `bound`,
                // the code below replaces both.
                segment.len = 0;
                (number, false)
            }
            Some(segment) if deadline < segment.base => return None,
            Some(segment) if segment.has_room(deadline) => (number, false),
            _ => (self.take_fresh(), true),
        };
        self.open[strand] = number;
        let segment = self.segment(number)?;
        if segment.len == 0 {
            segment.base = now;
            segment.reach = LEAD + (1 << (DIGIT * level));
            segment.strand = strand;
        }
        let place = segment.append(id, deadline);
        if deadline < segment.bound {
            segment.bound = deadline;
            segment.exact = true;
            self.enqueue(deadline, number);
        }
        self.len += 1;
        Some((position(number, place), opened))
    }

    /// Takes a segment without timers into use. Returns its number.
    fn take_fresh(&mut self) -> u32 {
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.segments.push(None);
            (self.segments.len() - 1) as u32
        });
        let fresh = self.spare.pop().unwrap_or_else(|| Box::new(Segment::new()));
        self.segments[number as usize] = Some(fresh);
        number
    }

    fn enqueue(&mut self, bound: Tick, number: u32) {
        self.queue.push(Reverse((bound, number)));
        if self.queue.len() > 4 * self.segments.len() + SPARSE {
            self.forget_former_bounds();
        }
    }

    /// Builds the queue anew: one entry for each segment (an array of timers) that waits for a visit, in which a pass
    /// takes timers out. An entry has the segment's bound, a tick at or before all deadlines in the segment. When the
    /// bound changes, a new entry is queued, and the entry with the former bound stays. This call drops all such stale
    /// entries.
    #[cold]
    fn forget_former_bounds(&mut self) {
        let visited = self.visit.map(|visit| visit.number);
        let segments = (0..).zip(&self.segments);
        let bounds = segments
            .filter_map(|(number, segment)| Some(Reverse((segment.as_ref()?.bound, number))));
        let bounds = bounds
            .filter(|Reverse((bound, number))| *bound < Tick::MAX && Some(*number) != visited);
        self.queue = bounds.collect();
    }

    /// Whether a timer with this position lies in the log, and not in the wheel.
    #[inline(always)]
    pub(crate) fn owns(position: Position) -> bool {
        position.number().wrapping_sub(LOGGED) < LOGGED
    }

    /// Removes the timer at `position`. Does nothing if no timer of the log has this position.
    #[inline(always)]
    pub(crate) fn remove(&mut self, position: Position) {
        let place = position.number().wrapping_sub(LOGGED) as usize;
        let (number, place) = (place / SEGMENT, place % SEGMENT);
        let Some(Some(segment)) = self.segments.get_mut(number) else {
            return;
        };
        if segment.offsets[place] == HOLE {
            return;
        }
        segment.offsets[place] = HOLE;
        segment.exact = false;
        segment.live -= 1;
        self.len -= 1;
        if segment.live == 0 {
            self.empty(number as u32);
        }
    }

    /// Handles a segment whose last timer has left: recycles the segment, unless it is open and waits for new timers.
    #[inline(never)]
    fn empty(&mut self, number: u32) {
        if self.open_strand(number).is_none() {
            self.recycle(number);
        }
    }

    fn recycle(&mut self, number: u32) {
        self.visit = self.visit.filter(|visit| visit.number != number);
        let Some(mut segment) = self.segments[number as usize].take() else {
            return;
        };
        self.vacant.push(number);
        if self.spare.len() < SPARE {
            segment.len = 0;
            segment.bound = Tick::MAX;
            self.spare.push(segment);
        }
    }

    /// Closes a segment: no timer is appended to it any more. The next timer of its strand (the timers that share an
    /// open segment) opens another segment.
    fn close(&mut self, number: u32) {
        if let Some(strand) = self.open_strand(number) {
            self.open[strand] = NONE;
        }
    }

    /// The strand (group of timers that share an open segment) of segment `number`. `None` if the segment is not open:
    /// new timers of its strand are not appended to it.
    fn open_strand(&self, number: u32) -> Option<usize> {
        let segment = self.segments.get(number as usize)?.as_deref()?;
        Some(segment.strand).filter(|&strand| self.open[strand] == number)
    }

    /// The entry of the segment that is to be visited first: its bound (a tick at or before every deadline in the
    /// segment), and its number. Removes two kinds of entries from the head of the queue: stale entries (whose segment
    /// has another bound now), and entries of empty segments. `None` if no segment in the queue has a timer.
    fn first(&mut self) -> Option<(Tick, u32)> {
        while let Some(&Reverse(entry)) = self.queue.peek() {
            if means_something(&self.segments, entry) {
                if self
                    .segment(entry.1)
                    .is_some_and(|segment| segment.live > 0)
                {
                    return Some(entry);
                }
                self.close(entry.1);
                self.recycle(entry.1);
            }
            self.queue.pop();
        }
        None
    }

    /// A tick at or before every deadline in the log. `None` if the log has no timers.
    pub(crate) fn first_deadline(&mut self) -> Option<Tick> {
        let visited = self
            .visit
            .and_then(|visit| Some(self.segment(visit.number)?.bound));
        let first = self.first().map(|(bound, _)| bound);
        visited.into_iter().chain(first).min()
    }

    /// The tick at which the next visit is due (a visit takes the timers with near deadlines out of a segment). `None`
    /// if the log has no timers. The deadline of a stopped timer must cause no visit. So if a timer has left the
    /// segment at the head of the queue, this call first queues the segment by the earliest deadline that is left in
    /// it.
    pub(crate) fn next(&mut self) -> Option<Tick> {
        while let Some((bound, number)) = self.first() {
            let Some(segment) = self.segment(number).filter(|segment| !segment.exact) else {
                break;
            };
            let earliest = segment.make_bound_exact();
            if earliest != bound {
                self.queue.pop();
                self.enqueue(earliest, number);
            }
        }
        self.first_deadline().map(lead)
    }

    /// Takes one timer with a near deadline out of the log. Continues the visit in progress (the search of one segment,
    /// an array of timers, for such timers). If no visit is in progress, begins the visit that is due at `now`.
    pub(crate) fn take(&mut self, now: Tick) -> Taken {
        loop {
            let Some(mut visit) = self.visit.or_else(|| self.begin_visit(now)) else {
                return Taken::Idle;
            };
            let Some(segment) = self.segment(visit.number) else {
                return Taken::Idle;
            };
            let Some(place) = segment.find(visit.place, visit.most) else {
                self.end_visit(visit.number);
                if visit.has_taken {
                    continue;
                }
                return Taken::Nothing;
            };
            let deadline = segment.base + Tick::from(segment.offsets[place]);
            let id = segment.ids[place];
            visit.place = place + 1;
            visit.has_taken = true;
            self.visit = Some(visit);
            self.remove(position(visit.number, place));
            return Taken::Timer(id, deadline);
        }
    }

    /// Whether the visit of a segment is in progress: steps are taking the timers with near deadlines out of it.
    pub(crate) fn is_visited(&self) -> bool {
        self.visit.is_some()
    }

    fn begin_visit(&mut self, now: Tick) -> Option<Visit> {
        let (_, number) = self.first().filter(|&(bound, _)| lead(bound) <= now)?;
        self.queue.pop();
        self.close(number);
        let segment = self.segment(number)?;
        let most = now
            .saturating_sub(segment.base)
            .saturating_add(segment.reach);
        let visit = Visit {
            number,
            place: 0,
            most: most.min(Tick::from(HOLE - 1)) as u32,
            has_taken: false,
        };
        self.visit = Some(visit);
        Some(visit)
    }

    /// Ends the visit of segment `number` (the search for timers with near deadlines). If timers are left, queues the
    /// segment for another visit, by their earliest deadline.
    fn end_visit(&mut self, number: u32) {
        self.visit = None;
        if let Some(segment) = self.segment(number) {
            let earliest = segment.make_bound_exact();
            self.enqueue(earliest, number);
        }
    }

    /// Frees memory if holes (places of timers that were stopped) take too much of it. Looks for a segment (an array of
    /// timers) with many holes, takes all its timers out, and passes them to `file`, which puts them into the wheel.
    /// Examines at most eight segments. Skips a segment that is due for a visit at `now`, because the visit takes its
    /// timers out. `now` is the latest present that the caller knows.
    pub(crate) fn thin_out(&mut self, now: Tick, mut file: impl FnMut(u32, Tick)) {
        let used = self.segments.len() - self.vacant.len();
        if used <= 4 * self.len / SEGMENT + SPARSE {
            return;
        }
        for _ in 0..8 {
            self.hand = (self.hand + 1) % self.segments.len();
            let number = self.hand as u32;
            let is_visited = self.visit.is_some_and(|visit| visit.number == number);
            if is_visited || self.open_strand(number).is_some() {
                continue;
            }
            let Some(segment) = self
                .segment(number)
                .filter(|segment| 4 * segment.live <= SEGMENT)
            else {
                continue;
            };
            if lead(segment.bound) <= now {
                continue;
            }
            let base = segment.base;
            let timers = segment.ids.iter().zip(&mut segment.offsets);
            for (&id, offset) in timers.filter(|(_, offset)| **offset != HOLE) {
                file(id, base + Tick::from(std::mem::replace(offset, HOLE)));
            }
            self.len -= std::mem::take(&mut segment.live);
            self.recycle(number);
            return;
        }
    }

    /// The timers that the next steps examine: those that are left in the segment that is being visited. If there is no
    /// such segment, those of the segment that is visited next.
    pub(crate) fn upcoming(&self) -> impl Iterator<Item = u32> {
        let first = self.queue.peek().map(|&Reverse((_, number))| (number, 0));
        let visited = self.visit.map(|visit| (visit.number, visit.place));
        let (number, from) = visited.or(first).unwrap_or((NONE, 0));
        let segment = self
            .segments
            .get(number as usize)
            .and_then(Option::as_deref);
        segment.into_iter().flat_map(move |segment| {
            let places = (from..segment.len).filter(|&place| segment.offsets[place] != HOLE);
            places.map(|place| segment.ids[place])
        })
    }
}

fn means_something(segments: &[Option<Box<Segment>>], (bound, number): (Tick, u32)) -> bool {
    let segment = segments[number as usize].as_deref();
    segment.is_some_and(|segment| segment.bound == bound)
}

/// The tick at which a visit of a segment is due: a pass then takes the near timers out of this array of timers. No
/// timer in the segment is due before the tick `bound`.
fn lead(bound: Tick) -> Tick {
    bound.saturating_sub(LEAD)
}

#[inline(always)]
fn position(number: u32, place: usize) -> Position {
    Position::new(LOGGED | (number * SEGMENT as u32 + place as u32))
}

#[cfg(test)]
mod tests;
