//! The time stamp counter as a clock that leans ahead, for deadlines. Why it may, and by how much it does, stands at the
//! head of [`anchor`](super::anchor).

use super::anchor::{Anchor, Reading};
use super::tsc::Tsc;
use std::sync::LazyLock;
use std::time::Instant;

thread_local! {
    static ANCHOR: Anchor = const { Anchor::new() };
}

/// All anchors count from here.
static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What stands in for the system's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CounterClock {
    tsc: Tsc,
    /// What is added to the time since [`BASE`], in nanoseconds; it wraps.
    offset: u64,
}

impl CounterClock {
    /// One that counts from `origin`. `None` where the counter cannot stand in for the clock.
    pub(crate) fn since(origin: Instant) -> Option<Self> {
        let base = *BASE;
        let nanos = |later: Instant, earlier: Instant| {
            u64::try_from(later.saturating_duration_since(earlier).as_nanos()).ok()
        };
        let (after, before) = (nanos(base, origin)?, nanos(origin, base)?);
        Tsc::detect().map(|tsc| Self {
            tsc,
            offset: after.wrapping_sub(before),
        })
    }

    /// The time since the origin in nanoseconds, or some microseconds more; never less, as far as the counter can be
    /// relied on.
    #[inline(always)]
    pub(crate) fn nanos(&self) -> u64 {
        ANCHOR.with(
            #[inline(always)]
            |anchor| {
                let now = self.tsc.read();
                let time = anchor.time(now);
                let time = time.unwrap_or_else(|| renew(anchor, self.tsc, now));
                time.wrapping_add(self.offset)
            },
        )
    }
}

/// Reads the real clock. `now` was read before it.
#[cold]
#[inline(never)]
fn renew(anchor: &Anchor, tsc: Tsc, now: Reading) -> u64 {
    // 584 years fit.
    let nanos = BASE.elapsed().as_nanos() as u64;
    anchor.renew(now, nanos, || tsc.read_in_order())
}
