//! The log of arrivals: timers in the order in which they were started, before they are filed in a wheel.
//!
//! A timer is appended to a *segment*: its id, and its deadline as an offset from the segment's base. A timer that is
//! stopped leaves a hole, and no other timer moves. Each segment is queued by a lower bound of its deadlines, and is
//! *visited* [`LEAD`] ticks before that. A visit takes out the timers whose deadlines are near, for the wheel, and
//! queues the segment again by the earliest deadline that is left. So what is stopped before is never filed.
//!
//! Timers are told apart by how far ahead their deadlines are, as in a wheel: by the number of base-64 digits (the
//! *level*), and by the last bits of the slot of the deadline. Each of these *strands* has an open segment of its own,
//! and a visit takes what is due within the width of a slot of the level. So a near deadline does not file far ones,
//! and a segment is visited four times at most.
//!
//! INVARIANT: a segment with timers, unless it is being visited, has an entry in the queue with its `bound`, and no
//! timer in it has an earlier deadline. An entry with another bound means nothing. A segment that is not in use has the
//! bound `Tick::MAX`, which no deadline is.

use crate::record::{Position, Tick};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Timers in a segment. In a model it is full soon.
const SEGMENT: usize = if cfg!(any(request_purgatory_loom, request_purgatory_shuttle)) {
    2
} else {
    256
};
/// A segment is visited this number of ticks before its first deadline. (At a tick of 1 ms that is time enough to file
/// a million timers whose deadlines lie close together.)
const LEAD: Tick = 256;
/// Nearer timers are not for the log.
const NEAR: Tick = 2 * LEAD;
/// Bits in a digit of a distance.
const DIGIT: u32 = 6;
/// Levels 1 to 4 have open segments: their offsets fit 32 bits for long. (At a tick of 1 ms, 512 ms to 12 days.)
const LEVELS: std::ops::RangeInclusive<u32> = 1..=4;
/// Open segments of a level, each for the deadlines in every sixteenth slot.
const STRANDS: usize = 16;
/// Levels that a distance can have.
const ALL: usize = 11;
/// The offset at a place without a timer.
const HOLE: u32 = u32::MAX;
/// No segment has this number.
const NONE: u32 = u32::MAX;
/// Set in every position here, while the highest bit is not.
const LOGGED: u32 = 1 << 30;
/// This many segments without timers are kept.
const SPARE: usize = 4;
/// Beside what the timers need, the log has at most this many segments, full of holes.
const SPARSE: usize = 16;
/// Offsets that are looked at together.
const LANES: usize = 16;

#[derive(Debug)]
struct Segment {
    /// Offsets count from here.
    base: Tick,
    /// No timer here has an earlier deadline.
    bound: Tick,
    /// No timer has been stopped since `bound` was the earliest deadline.
    exact: bool,
    /// A visit takes what is due within this number of ticks.
    reach: Tick,
    /// Where it stands in `open`, if it does.
    strand: usize,
    /// Places used.
    len: usize,
    /// Timers that are left.
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

    /// Whether a timer with this deadline can be appended, which the segment's base and length decide.
    #[inline(always)]
    fn has_room(&self, deadline: Tick) -> bool {
        self.len < SEGMENT && deadline.wrapping_sub(self.base) < Tick::from(HOLE)
    }

    /// Appends a timer for which there is [room](Self::has_room). Returns its place.
    #[inline(always)]
    fn append(&mut self, id: u32, deadline: Tick) -> usize {
        let place = self.len;
        self.offsets[place] = (deadline - self.base) as u32;
        self.ids[place] = id;
        self.len = place + 1;
        self.live += 1;
        place
    }

    /// The first place from `from` on with an offset up to `most`.
    fn find(&self, from: usize, most: u32) -> Option<usize> {
        let mut start = from;
        while start < self.len {
            let end = self.len.min((start / LANES + 1) * LANES);
            let lanes = &self.offsets[start..end];
            // Without a branch for each, so the compiler compares several at once.
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

    /// The earliest deadline, of a segment that has a timer.
    fn earliest(&self) -> Tick {
        let first = self
            .offsets
            .iter()
            .fold(HOLE, |first, &offset| first.min(offset));
        self.base + Tick::from(first)
    }

    /// Makes the earliest deadline the bound, and returns it.
    fn make_bound_exact(&mut self) -> Tick {
        self.bound = self.earliest();
        self.exact = true;
        self.bound
    }
}

/// The segment that is being visited.
#[derive(Debug, Clone, Copy)]
struct Visit {
    number: u32,
    /// Places before this one have been looked at.
    place: usize,
    /// Offsets up to this one are taken.
    most: u32,
    has_taken: bool,
}

/// What a step of a pass finds in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// This timer has left the log; and its deadline.
    Timer(u32, Tick),
    /// A visit has come to its end.
    Nothing,
    /// No segment is to be visited yet.
    Idle,
}

/// Timers in order of arrival.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// By number. `None` where there are no timers.
    segments: Vec<Option<Box<Segment>>>,
    vacant: Vec<u32>,
    #[expect(
        clippy::vec_box,
        reason = "a segment moves between its place and here by its pointer"
    )]
    spare: Vec<Box<Segment>>,
    /// For each number of digits that a distance can have, the segment that timers are appended to.
    open: [u32; ALL * STRANDS],
    /// Segments by their bounds.
    queue: BinaryHeap<Reverse<(Tick, u32)>>,
    visit: Option<Visit>,
    /// Timers in all segments.
    len: usize,
    /// Where to look next for a segment with many holes.
    hand: usize,
}

/// The level of a distance: the number of its digits, less one.
#[inline(always)]
fn level_of(ahead: Tick) -> u32 {
    let highest = 63 - (ahead | 1).leading_zeros();
    highest / DIGIT
}

/// The number of the open segment for a deadline that lies `ahead`.
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

    /// Appends a timer to an open segment, which does not make [`next`](Self::next) earlier. `None` if that takes more:
    /// see [`push_slowly`](Self::push_slowly).
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

    /// Appends a timer that is the first or the earliest of its segment. Returns as well whether a segment was opened
    /// for it. `None` if it is too near or too far for the log.
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
                // Its bound stays, as long as it is one, and so does its entry in the queue.
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

    /// A segment without timers.
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

    /// Queues each segment once, by its bound.
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

    /// Whether `position` is one of a timer in the log.
    #[inline(always)]
    pub(crate) fn owns(position: Position) -> bool {
        position.number().wrapping_sub(LOGGED) < LOGGED
    }

    /// Removes the timer at `position`, if there is one here.
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

    /// The last timer of a segment has left. An open one stays, for timers to come.
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

    /// No timer is appended to this segment any more.
    fn close(&mut self, number: u32) {
        if let Some(strand) = self.open_strand(number) {
            self.open[strand] = NONE;
        }
    }

    /// The strand of a segment that is open.
    fn open_strand(&self, number: u32) -> Option<usize> {
        let segment = self.segments.get(number as usize)?.as_deref()?;
        Some(segment.strand).filter(|&strand| self.open[strand] == number)
    }

    /// The bound and the number of the segment whose turn comes first.
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

    /// No timer in the log has an earlier deadline.
    pub(crate) fn first_deadline(&mut self) -> Option<Tick> {
        let visited = self
            .visit
            .and_then(|visit| Some(self.segment(visit.number)?.bound));
        let first = self.first().map(|(bound, _)| bound);
        visited.into_iter().chain(first).min()
    }

    /// When the next visit is due. The bound of that segment is made exact before, so that a stopped timer brings no
    /// visit.
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

    /// Takes out a timer that is due or nearly so at `now`.
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

    /// Whether a visit has begun and not come to its end.
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

    /// Queues what is left of a segment.
    fn end_visit(&mut self, number: u32) {
        self.visit = None;
        if let Some(segment) = self.segment(number) {
            let earliest = segment.make_bound_exact();
            self.enqueue(earliest, number);
        }
    }

    /// If holes take too much memory, takes the timers out of a segment that is full of them. `now` is the latest
    /// present that is known: what is to be visited by then is left to the visit.
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
                .filter(|segment| segment.live <= SEGMENT / 4)
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

    /// The timers that the next steps will take.
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

/// When a segment with this bound is visited.
fn lead(bound: Tick) -> Tick {
    bound.saturating_sub(LEAD)
}

#[inline(always)]
fn position(number: u32, place: usize) -> Position {
    Position::new(LOGGED | (number * SEGMENT as u32 + place as u32))
}

#[cfg(test)]
mod tests;
