//! The arithmetic by which the processor's time stamp counter stands in for the real clock. It reads neither: a reading
//! of each comes in as a number, so that a test can drive it over counters of any kind.
//!
//! Each thread has an *anchor*: a reading of the real clock, with a reading of the counter before and after it. For a
//! millisecond by the counter the time is that of the anchor, a [`MARGIN`], and what the counter says has passed since,
//! by a rate that is taken 1/512 too fast. Then the real clock is read again.
//!
//! # What a reading is for
//!
//! A deadline is a reading and a timeout. Whether it has passed, the thread that drives the timer asks the real clock.
//! So a reading that is ahead makes an expiry later, and a reading that is behind would make it early: readings lean
//! ahead. Where the library needs a time that has passed for certain, it takes a millisecond off (`Engine::timing`).
//!
//! # Never early
//!
//! The counter of the anchor was read before its clock, and what is read later counts from there. The rate is the real
//! nanoseconds that passed between two anchors of this thread, divided by the fewest ticks that can lie between their
//! readings of the clock, so the true rate of that time was not higher. One 512th is added. So a reading is not before
//! the true time unless the counter, measured by the real clock, runs slower within the millisecond than it did between
//! the two anchors, and by more than 1/512: a clock that is kept by NTP is steered by up to 1/2,000 (1/1,000 while it
//! makes up for an offset by `adjtime`). A daemon that makes up for seconds by up to 1/12 (chrony) can begin to within
//! a millisecond; a reading of that millisecond is then up to 0.08 ms early.
//!
//! A processor may read the counter while earlier instructions still wait for memory. What such an instruction waits
//! for is a matter of nanoseconds, and the margin is a microsecond.
//!
//! # Hardly late
//!
//! A reading is ahead by the margin (1,000 ns), by what the readings of the anchor lay [apart](APART) (1,000 at most,
//! 40 measured), and by what the rate is too fast for a millisecond: the 512th (1,953), what it cannot tell because the
//! readings lay apart, and what two measurements may [differ](AGREE) (977 each at most): together less than 7,000
//! (`LATE`; 5,000 were measured).
//!
//! Whatever the counter does, a reading lies between the reading of the real clock in its anchor, and a millisecond
//! after that. So a counter that jumps ahead makes it a millisecond late at most; one that stops or jumps back makes it
//! early by no more than the counter lost since the anchor.
//!
//! # What ends an anchor
//!
//! * The millisecond is over by the counter: also after a suspension in which the counter went on, and after a jump
//!   ahead.
//! * The counter is behind that of the anchor: it jumped back, or began anew after a suspension.
//! * The thread is on another processor: its counter is not compared with that of the anchor.
//!
//! Then the real clock is read, and the time by which an anchor is made is what it says. An anchor holds only if its
//! readings lie close together (a thread that was stopped between them makes a bad anchor), and if the rate that it
//! measures agrees with the one measured before: a jump between two anchors spoils one measurement, and so do two
//! clocks of different steering. Until then each reading is one of the real clock. A new thread measures while it reads
//! that, for about a millisecond.
//!
//! The readings of one thread never go back: the greatest so far is kept.

use std::cell::Cell;

/// How long an anchor holds, in nanoseconds. No reading is further ahead of the real clock.
pub(crate) const HOLDS: u64 = 1_000_000;

/// What is added to each reading, in nanoseconds: a processor may read the counter while earlier instructions wait. It
/// covers the rounding of ticks and nanoseconds too.
const MARGIN: u64 = 1_000;

/// The rate is measured over at least so many nanoseconds of the real clock: less than an anchor holds.
const MEASURE: u64 = HOLDS / 2;

/// And over at most so many: what is steered is steered at the rate of the last second.
const RECENT: u64 = 1_000_000_000;

/// The two readings of the counter in an anchor that holds lie at most so many nanoseconds apart.
const APART: u64 = 1_000;

/// Two measurements agree if they differ by at most this part, and one is good if it is known to this part.
const AGREE: u64 = 1_024;

/// By this part the rate is taken too fast.
const FASTER: u64 = 512;

/// How far ahead of the real clock a reading is at most while the counter runs evenly, in nanoseconds.
#[cfg(test)]
pub(super) const LATE: u64 = 7_000;

/// A reading of the counter, and the number of the processor whose counter it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) counter: u64,
    pub(super) processor: u32,
}

/// The anchor of one thread. In a cache line of its own, as another thread's may lie beside it.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Anchor {
    /// The counter, just before the clock was read.
    counter: Cell<u64>,
    /// For so many ticks of the counter the anchor holds. 0: it does not, and is only there to measure from.
    holds: Cell<u64>,
    /// The clock, in nanoseconds.
    nanos: Cell<u64>,
    /// Nanoseconds in 2^32 ticks, [`FASTER`] than measured.
    rate: Cell<u64>,
    /// The greatest reading so far.
    last: Cell<u64>,
    /// Nanoseconds in 2^32 ticks, rounded up: the last measurement. 0: there was none.
    measured: Cell<u64>,
    /// How many ticks the counter had gone on when it was read after the clock.
    apart: Cell<u32>,
    processor: Cell<u32>,
}

impl Anchor {
    /// One that does not hold, of no processor.
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

    /// The time, in nanoseconds, if the anchor holds.
    #[inline(always)]
    pub(super) fn time(&self, now: Reading) -> Option<u64> {
        let passed = now.counter.wrapping_sub(self.counter.get());
        if passed >= self.holds.get() || now.processor != self.processor.get() {
            return None;
        }
        // It does not overflow: see `holds_at`.
        let since = (passed * self.rate.get()) >> 32;
        Some(self.not_back(self.nanos.get() + MARGIN + since))
    }

    /// The time where the anchor does not hold: `nanos`, which the clock said after `now` was read. Makes an anchor of
    /// it if that is worth another reading of the counter, by `read`.
    pub(super) fn renew(&self, now: Reading, nanos: u64, read: impl FnOnce() -> Reading) -> u64 {
        self.holds.set(0);
        let ticks = now.counter.wrapping_sub(self.counter.get());
        let passed = nanos.saturating_sub(self.nanos.get());
        let comparable = now.processor == self.processor.get() && ticks <= u64::MAX / 2;
        // Until there is something to measure, a reading costs what one of the clock does.
        let waits = comparable && passed < MEASURE;
        if !waits {
            let after = read();
            let apart = u32::try_from(after.counter.wrapping_sub(now.counter)).ok();
            // Otherwise the thread was stopped between the readings: the next call tries again.
            if let Some(apart) = apart.filter(|_| after.processor == now.processor) {
                let measured = comparable
                    .then(|| self.measure(ticks, passed, apart))
                    .flatten();
                self.set(now, nanos, apart, measured);
            }
        }
        self.not_back(nanos)
    }

    /// Nanoseconds in 2^32 ticks since the last anchor, at least, if that is known well enough.
    fn measure(&self, ticks: u64, passed: u64, apart: u32) -> Option<u64> {
        if !(MEASURE..=RECENT).contains(&passed) {
            return None;
        }
        // Never 0: a counter that stands still is not measured.
        let unknown = u64::from(self.apart.get()) + u64::from(apart) + 1;
        if unknown > ticks / AGREE {
            return None;
        }
        // The clock was read at the last anchor after as many ticks as that lay apart, at the latest. One tick and one
        // nanosecond may have been rounded away.
        let fewest = ticks - u64::from(self.apart.get()) - 1;
        let rate = (u128::from(passed + 1) << 32).div_ceil(u128::from(fewest));
        u64::try_from(rate).ok()
    }

    /// Anchors the time here. It holds if the rate has been measured twice, and not too differently.
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

    /// `nanos`, but not before an earlier reading.
    #[inline(always)]
    fn not_back(&self, nanos: u64) -> u64 {
        let nanos = nanos.max(self.last.get());
        self.last.set(nanos);
        nanos
    }
}

/// In how many ticks an anchor reaches [`HOLDS`] at a rate, with the margin. Their product is below 2^52.
fn holds_at(rate: u64) -> u64 {
    ((HOLDS - MARGIN) << 32) / rate
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests;
