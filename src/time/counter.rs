//! A clock for deadlines that reads the processor's time stamp counter. Its readings are a little ahead of the system's
//! clock. The head of [`anchor`](super::anchor) explains why, and by how much.

use super::Timestamp;
use super::anchor::{Anchor, Reading};
use super::tsc::Tsc;
use std::sync::LazyLock;
use std::time::Instant;

thread_local! {
    static ANCHOR: Anchor = const { Anchor::new() };
}

/// The origin of the times that [`renew`] reads from the system's clock, on all threads: they are nanoseconds since
/// this instant.
static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A clock that replaces the system's clock where deadlines are computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CounterClock {
    tsc: Tsc,
    /// The time from the clock's origin to [`BASE`], in nanoseconds: added to the time since `BASE`. Negative if the
    /// origin is later.
    offset: i64,
}

impl CounterClock {
    /// A clock that counts from `origin`. `None` if the counter cannot replace the system's clock.
    pub(crate) fn since(origin: Instant) -> Option<Self> {
        let base = *BASE;
        let nanos = |later: Instant, earlier: Instant| {
            i64::try_from(later.saturating_duration_since(earlier).as_nanos()).ok()
        };
        let offset = nanos(base, origin)? - nanos(origin, base)?;
        Tsc::detect().map(|tsc| Self { tsc, offset })
    }

    /// The time since the origin, or some microseconds more. The head of [`anchor`](super::anchor) says
    /// in which cases the reading is further ahead, or behind.
    #[inline(always)]
    pub(crate) fn now(&self) -> Timestamp {
        ANCHOR.with(
            #[inline(always)]
            |anchor| {
                let now = self.tsc.read();
                let time = anchor.time(now);
                let time = time.unwrap_or_else(|| renew(anchor, self.tsc, now));
                // A reading may be behind the clock. If the origin was read just now, the reading may then lie before
                // the origin. Such a reading counts as the origin: the sum saturates at zero, because a sum that wraps
                // would be a time that never comes.
                Timestamp::from_nanos(time.saturating_add_signed(self.offset))
            },
        )
    }
}

/// Reads the real clock, and renews the `anchor` (the readings from which this thread computes the time for the next
/// millisecond). `now` is a reading of the counter that was made just before this call.
#[cold]
#[inline(never)]
fn renew(anchor: &Anchor, tsc: Tsc, now: Reading) -> u64 {
    // The cast loses nothing: 64 bits hold the nanoseconds of 584 years.
    let nanos = BASE.elapsed().as_nanos() as u64;
    anchor.renew(now, nanos, || tsc.read_in_order())
}

#[cfg(all(test, not(any(request_purgatory_loom, miri))))]
mod tests {
    use super::super::anchor::LATE;
    use super::*;
    use std::thread;
    use std::time::Duration;

    /// The environment variable that says for how many seconds a test compares the counter with the clock. Default:
    /// two.
    const SECONDS: &str = "CLOCK_SECONDS";

    /// The results of one thread.
    #[derive(Debug, Default)]
    struct Found {
        readings: u64,
        /// Readings that were computed from the counter: the system's clock was not read.
        fast: u64,
        early: u64,
        most_early: u64,
        most_ahead: u64,
        total_ahead: u64,
    }

    impl Found {
        /// Makes two readings of the system's clock, and one of the counter's clock between them.
        fn look(&mut self, clock: &CounterClock, origin: Instant) {
            let holds = ANCHOR.with(|anchor| anchor.time(clock.tsc.read()).is_some());
            let real = || origin.elapsed().as_nanos() as u64;
            let before = real();
            let reading = clock.now().nanos_since(Timestamp::default());
            let after = real();
            self.readings += 1;
            self.fast += u64::from(holds);
            self.early += u64::from(reading < before);
            self.most_early = self.most_early.max(before.saturating_sub(reading));
            self.most_ahead = self.most_ahead.max(reading.saturating_sub(after));
            self.total_ahead += reading.saturating_sub(after);
        }
    }

    /// Compares the counter's clock with the system's clock, on two threads, one of which sleeps now and then.
    /// `CLOCK_SECONDS=600` makes a long run.
    #[test]
    fn g10_no_reading_is_before_one_of_the_clock() {
        let seconds = std::env::var(SECONDS).map_or(2, |text| text.parse().expect("a number"));
        let origin = Instant::now();
        let Some(clock) = CounterClock::since(origin) else {
            println!("here the counter does not stand in for the clock");
            return;
        };
        let end = Duration::from_secs(seconds);
        let look_on = |rests: bool| {
            let mut found = Found::default();
            while origin.elapsed() < end {
                for _ in 0..1_000 {
                    found.look(&clock, origin);
                }
                if rests {
                    thread::sleep(Duration::from_micros(found.readings % 3_000));
                }
            }
            found
        };
        let all = thread::scope(|scope| {
            let threads = [false, true].map(|rests| scope.spawn(move || look_on(rests)));
            threads.map(|thread| thread.join().expect("it only reads"))
        });
        for found in all {
            println!("{found:?}");
            assert_eq!(found.early, 0, "{found:?}");
            assert!(found.most_ahead <= LATE, "{found:?}");
            assert!(found.fast > 0, "no anchor held: {found:?}");
        }
    }

    /// The counter has lost time, and a reading lies before the origin of the clock. It counts as the origin.
    #[test]
    fn g10_a_reading_before_the_origin_is_the_origin() {
        let later = Instant::now() + Duration::from_secs(60);
        if let Some(clock) = CounterClock::since(later) {
            assert_eq!(clock.now(), Timestamp::default());
        }
    }

    /// The counter works for a clock with an arbitrary origin, long ago or just now.
    #[test]
    fn g10_a_counter_counts_from_any_instant() {
        let now = Instant::now();
        let day = Duration::from_secs(86_400);
        let origins = [now.checked_sub(day).unwrap_or(now), now, Instant::now()];
        for origin in origins {
            let Some(clock) = CounterClock::since(origin) else {
                return;
            };
            for _ in 0..10_000 {
                let before = origin.elapsed();
                let reading = clock.now().since_origin();
                let after = origin.elapsed() + Duration::from_nanos(LATE);
                assert!((before..=after).contains(&reading), "{reading:?}");
            }
        }
    }
}
