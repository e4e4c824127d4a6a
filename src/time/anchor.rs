//! The arithmetic by which the processor's time stamp counter replaces the real clock. This module reads neither the
//! counter nor the clock: callers pass readings as numbers, so that a test can use counters of any kind.
//!
//! Each thread has an *anchor*: a reading of the real clock, with a reading of the counter before it and one after it.
//! The anchor *holds* for a millisecond, measured by the counter. While it holds, the time is the sum of the clock's
//! reading in the anchor, a [`MARGIN`], and the time since the anchor, which is computed from the counter at a rate
//! that is 1/512 too fast. After that millisecond the real clock is read again.
//!
//! # What a reading is for
//!
//! A deadline is a reading plus a timeout. The thread that drives the timer asks the real clock whether the deadline
//! has passed. So a reading that is ahead of the clock makes the expiry later. A reading that is behind would make the
//! expiry too early. Therefore readings are meant to be ahead. Where the library needs a time that has certainly
//! passed, it subtracts a tick, which is a millisecond or more (`Engine::timing`).
//!
//! # Why a reading is not behind
//!
//! In an anchor the counter is read before the clock, and later readings count from that reading of the counter. The
//! rate (nanoseconds for each tick of the counter) is measured between two anchors of this thread: the nanoseconds
//! between their readings of the clock, divided by the ticks in that time. That number of ticks is not known exactly,
//! because clock and counter are not read at the same instant. The least possible number is taken, so the measured rate
//! is at least the true rate during that time. Then 1/512 is added to it.
//!
//! So a reading is behind the true time only if the counter, measured by the real clock, runs more than 1/512 slower in
//! the present millisecond than it ran between the two anchors. The counter seems to slow down when the real clock is
//! steered to run faster (its rate is changed). NTP steers by less than 1/512: by up to 1/2,000, or 1/1,000 while
//! `adjtime` makes up for an offset. But chrony steers by up to 1/12 while it corrects a clock that is wrong by
//! seconds. If chrony begins within the millisecond, a reading is up to 0.08 ms behind.
//!
//! A processor may read the counter early, while preceding instructions still wait for memory. Such a reading is some
//! nanoseconds old when the instructions have ended; the margin of a microsecond covers that.
//!
//! # How far a reading is ahead
//!
//! While the counter runs evenly, a reading is ahead by at most about 5,900 ns (5,000 were measured; the tests allow
//! `LATE`, 7,000), the sum of:
//!
//! * the margin: 1,000 ns;
//! * the time between the two counter readings of the anchor: at most [1,000 ns](APART), 40 measured;
//! * the error of the rate over a millisecond: the added 512th (1,953 ns), the uncertainty of a measurement, because
//!   counter and clock are not read at the same instant (at most 977 ns), and the permitted [difference](AGREE) of two
//!   measurements (at most 977 ns).
//!
//! Whatever the counter does, a reading lies between the anchor's reading of the real clock and a millisecond after
//! that. So after a jump of the counter, a reading is at most a millisecond ahead. If the counter stops or jumps back,
//! a reading is behind by at most the time that the counter has lost since the anchor.
//!
//! # What ends an anchor
//!
//! * The millisecond is over by the counter: it has passed, the counter jumped ahead, or the system was suspended while
//!   the counter went on.
//! * The counter reads less than in the anchor: the counter jumped back, or restarted after a suspension.
//! * The thread is on another processor. Counters of two processors are not compared.
//!
//! When the anchor has ended, the real clock is read. This reading is the time, and a new anchor is made from it. The
//! new anchor holds only if both conditions are met:
//!
//! * The readings of the new anchor lie close together. If the thread was stopped between them, the anchor is inexact.
//! * The rate since the last anchor agrees with the rate measured before. A jump of the counter between two anchors, or
//!   a change of the steering, makes one measurement wrong.
//!
//! Until an anchor holds, each reading is a reading of the real clock. A new thread does this for about a millisecond,
//! in which it measures the rate.
//!
//! The readings of one thread never go back, because the greatest reading so far is kept.

use std::cell::Cell;

/// How long readings are computed from one [`Anchor`] (it *holds*) before the clock is read again, in nanoseconds. No
/// reading is further ahead of the real clock than this.
pub(crate) const HOLDS: u64 = 1_000_000;

/// Added to each reading, in nanoseconds, because a processor may read the counter early, while preceding instructions
/// wait for memory. The margin also covers the rounding of ticks and nanoseconds.
const MARGIN: u64 = 1_000;

/// The rate of the counter is measured over at least this many nanoseconds of the real clock. This is less than
/// [`HOLDS`], the time for which readings are computed from one [`Anchor`]. So when that time is over, the rate since
/// the anchor can be measured.
const MEASURE: u64 = HOLDS / 2;

/// The rate of the counter is measured over at most this many nanoseconds of the real clock. NTP may change the rate of
/// the clock, and a measurement over a longer time would still include rates that the clock had long ago.
const RECENT: u64 = 1_000_000_000;

/// An [`Anchor`] holds (later times are computed from it) only if its two readings of the counter, just before and
/// after its reading of the clock, lie at most this many nanoseconds apart.
const APART: u64 = 1_000;

/// Two measurements of the counter's rate agree if they differ by at most 1/1,024 of the earlier one. A measurement is
/// used only if its own error is at most 1/1,024.
const AGREE: u64 = 1_024;

/// The measured rate of the counter is raised by one part in this many before readings are computed by it. This is on
/// purpose: with too high a rate, a reading is ahead of the real clock, which is allowed; with too low a rate it would
/// be behind.
const FASTER: u64 = 512;

/// A reading (a time that is computed from the processor's counter) is ahead of the real clock by less than this many
/// nanoseconds, while the counter runs at a steady rate.
#[cfg(test)]
pub(super) const LATE: u64 = 7_000;

/// A reading of the counter, and the number of the processor whose counter it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) counter: u64,
    pub(super) processor: u32,
}

/// The anchor of one thread: a reading of the real clock, and readings of the counter just before and after it. The
/// time is computed from these. Has a cache line of its own, to avoid false sharing with another thread's anchor.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Anchor {
    /// The reading of the counter just before the clock was read.
    counter: Cell<u64>,
    /// The time is computed from this anchor until the counter has advanced by this many ticks. If this is 0, no time
    /// is computed from the anchor. It is then only the start of the next measurement of the rate.
    holds: Cell<u64>,
    /// The reading of the real clock, in nanoseconds.
    nanos: Cell<u64>,
    /// The rate by which [`Anchor::time`] computes readings, in nanoseconds for 2^32 ticks: the measured rate,
    /// multiplied by 1 + 1 / [`FASTER`].
    rate: Cell<u64>,
    /// The greatest time that this thread has got so far, in nanoseconds.
    last: Cell<u64>,
    /// The last measured rate: nanoseconds in 2^32 ticks, rounded up. 0: there was no measurement.
    measured: Cell<u64>,
    /// The number of ticks between the two readings of the counter: one just before the clock was read, and one after.
    apart: Cell<u32>,
    processor: Cell<u32>,
}

impl Anchor {
    /// An anchor that does not hold (no time is computed from it) and belongs to no processor.
    pub(super) const fn new() -> Self {
        Self {
            counter: Cell::new(0),
            holds: Cell::new(0),
            nanos: Cell::new(0),
            rate: Cell::new(0),
            last: Cell::new(0),
            measured: Cell::new(0),
            apart: Cell::new(u32::MAX),
            processor: Cell::new(u32::MAX),
        }
    }

    /// The time at the counter's reading `now`, in nanoseconds. `None` if no time may be computed from the anchor, for
    /// one of these reasons:
    ///
    /// * `holds` is 0: the anchor is new, or only serves to measure the rate.
    /// * Since the anchor was made, the counter has advanced by `holds` ticks (about a millisecond) or more, or has
    ///   jumped back.
    /// * The thread is on another processor than when the anchor was made.
    ///
    /// The caller then reads the clock and calls [`renew`](Self::renew).
    #[inline(always)]
    pub(super) fn time(&self, now: Reading) -> Option<u64> {
        let passed = now.counter.wrapping_sub(self.counter.get());
        if passed >= self.holds.get() || now.processor != self.processor.get() {
            return None;
        }
        // The product does not overflow: it is below 2^52 (`holds_at`).
        let since = (passed * self.rate.get()) >> 32;
        Some(self.not_back(self.nanos.get() + MARGIN + since))
    }

    /// Called when the time cannot be computed from the anchor. The caller has read the counter (`now`), and then the
    /// clock (`nanos`). Returns the time: `nanos`, or the last time that this thread got if that is later. Also calls
    /// `read`, which reads the counter again, and makes these three readings the new anchor. But if it is too early to
    /// measure the rate of the counter, does not call `read`, and keeps the old readings for the measurement.
    pub(super) fn renew(&self, now: Reading, nanos: u64, read: impl FnOnce() -> Reading) -> u64 {
        self.holds.set(0);
        let ticks = now.counter.wrapping_sub(self.counter.get());
        let passed = nanos.saturating_sub(self.nanos.get());
        let comparable = now.processor == self.processor.get() && ticks <= u64::MAX / 2;
        // Until enough time has passed to measure, skip the second reading of the counter: this call then costs no more
        // than a reading of the clock.
        let waits = comparable && passed < MEASURE;
        if !waits {
            let after = read();
            let apart = u32::try_from(after.counter.wrapping_sub(now.counter)).ok();
            // Make an anchor of the reading of the clock and the two readings of the counter around it. But make none
            // if the thread was stopped for long between these two, or moved to another processor: then the next call
            // tries again.
            if let Some(apart) = apart.filter(|_| after.processor == now.processor) {
                let measured = comparable
                    .then(|| self.measure(ticks, passed, apart))
                    .flatten();
                self.set(now, nanos, apart, measured);
            }
        }
        self.not_back(nanos)
    }

    /// The rate of the counter since the last anchor (a reading of the clock between two readings of the counter), in
    /// nanoseconds for 2^32 ticks. The result is the true rate, or is greater by at most about one part in [`AGREE`].
    /// `None` if the time since the last anchor is too short or too long. Also `None` if the two readings of the
    /// counter in an anchor lie so far apart that the error could be greater.
    fn measure(&self, ticks: u64, passed: u64, apart: u32) -> Option<u64> {
        if !(MEASURE..=RECENT).contains(&passed) {
            return None;
        }
        // `passed` is the time between the two readings of the clock, and `ticks` is the difference of two readings of
        // the counter, each made shortly before one of these. So `ticks` is not exactly the number of ticks in that
        // time: `unknown` bounds the error. `unknown` is at least 1, so that a counter that stands still is not
        // measured.
        let unknown = u64::from(self.apart.get()) + u64::from(apart) + 1;
        if unknown > ticks / AGREE {
            return None;
        }
        // `ticks` counts from the counter's reading in the last anchor, and the clock was read at most `self.apart`
        // ticks later. So between that reading of the clock and the present one lie at least `fewest` ticks. One tick
        // is taken off and one nanosecond is added, because counter and clock are read in whole numbers.
        let fewest = ticks - u64::from(self.apart.get()) - 1;
        let rate = (u128::from(passed + 1) << 32).div_ceil(u128::from(fewest));
        u64::try_from(rate).ok()
    }

    /// Makes these readings the anchor, from which later times are computed as long as it *holds*. The anchor holds if
    /// `measured`, the rate since the last anchor, agrees with the rate measured before, and if the readings of the
    /// counter lie close together. Without `measured` it does not hold, and only starts the next measurement of the
    /// rate.
    fn set(&self, now: Reading, nanos: u64, apart: u32, measured: Option<u64>) {
        self.counter.set(now.counter);
        self.processor.set(now.processor);
        self.nanos.set(nanos);
        self.apart.set(apart);
        let Some(measured) = measured else {
            return;
        };
        let before = self.measured.replace(measured);
        if measured.abs_diff(before) > before / AGREE {
            return;
        }
        let rate = measured.max(before);
        let rate = rate + rate.div_ceil(FASTER);
        if u128::from(apart) * u128::from(rate) <= u128::from(APART) << 32 {
            self.rate.set(rate);
            self.holds.set(holds_at(rate));
        }
    }

    /// The later of `nanos` and the last time that this thread got.
    #[inline(always)]
    fn not_back(&self, nanos: u64) -> u64 {
        let nanos = nanos.max(self.last.get());
        self.last.set(nanos);
        nanos
    }
}

/// For how many ticks of the counter an [`Anchor`] holds (times are computed from it). `rate` is in nanoseconds for
/// 2^32 ticks.
///
/// A computed time is the sum of the anchor's reading of the clock, the [`MARGIN`], and the time of the ticks since the
/// anchor. The computed time must be at most [`HOLDS`] nanoseconds after the reading of the clock. So `HOLDS - MARGIN`
/// nanoseconds are left for the time of the ticks.
///
/// The result times `rate` is below 2^52, because `HOLDS` is below 2^20. So the product in [`Anchor::time`] does not
/// overflow.
fn holds_at(rate: u64) -> u64 {
    ((HOLDS - MARGIN) << 32) / rate
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests;
