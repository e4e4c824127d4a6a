//! Stretches of time for the property tests, and the arithmetic of ticks that they expect.

use proptest::prelude::*;
use request_purgatory::time::Timestamp;
use std::time::Duration;

/// What a property test chooses for the builder.
#[derive(Debug, Clone)]
pub struct Choices {
    pub tick: Duration,
    pub wheel_size: usize,
    pub max_parked: Option<usize>,
    pub max_timeout: Duration,
    /// The clock's first reading: tick zero.
    pub start: Duration,
}

/// The last reading that a clock has.
pub const LAST_READING: Duration = Duration::from_nanos(u64::MAX);

/// A builder of whatever kind as the [`Choices`] want it, without threads; and the clock by which it goes.
#[macro_export]
macro_rules! chosen {
    ($builder:expr, $choices:expr) => {{
        let choices: &$crate::spans::Choices = &$choices;
        let clock = request_purgatory::time::ManualClock::starting_at(choices.start);
        let builder = $builder
            .tick(choices.tick)
            .wheel_size(choices.wheel_size)
            .max_timeout(choices.max_timeout)
            .clock(clock.clone())
            .reaper(request_purgatory::threads::Reaper::Manual);
        let builder = match choices.max_parked {
            Some(max) => builder.max_parked(max),
            None => builder,
        };
        (builder, clock)
    }};
}

pub use crate::chosen;

/// What a builder does that is told nothing, from the reading zero.
impl Default for Choices {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(1),
            wheel_size: 64,
            max_parked: None,
            max_timeout: Duration::MAX,
            start: Duration::ZERO,
        }
    }
}

impl Choices {
    /// The last tick at or before `reading`, which may lie before tick zero.
    pub fn tick_at(&self, reading: Duration) -> u64 {
        let since = reading.saturating_sub(self.start).as_nanos();
        u64::try_from(since / self.tick.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The tick at which what is to wait for `timeout` from `reading` is due. `None` is never.
    pub fn deadline(&self, reading: Duration, timeout: Duration) -> Option<u64> {
        let timeout = timeout.min(self.max_timeout);
        let at = reading.as_nanos() + timeout.as_nanos();
        let at = at.saturating_sub(self.start.as_nanos());
        let tick = at.div_ceil(self.tick.as_nanos());
        let comes_at = self.start.as_nanos() + tick * self.tick.as_nanos();
        (comes_at < LAST_READING.as_nanos()).then_some(tick as u64)
    }

    pub fn ticks(&self, ticks: u64) -> Duration {
        duration(u128::from(ticks) * self.tick.as_nanos()).min(LAST_READING)
    }

    pub fn timestamp(&self, tick: u64) -> Timestamp {
        Timestamp::from_origin(self.start).saturating_add(self.ticks(tick))
    }
}

/// A stretch of time: a number of ticks and nanoseconds, or a duration.
#[derive(Debug, Clone, Copy)]
pub enum Span {
    Ticks(u64, u64),
    Exactly(Duration),
}

impl Span {
    pub fn of(self, tick: Duration) -> Duration {
        match self {
            Self::Exactly(duration) => duration,
            Self::Ticks(ticks, nanos) => {
                let total = tick.as_nanos().saturating_mul(u128::from(ticks)) + u128::from(nanos);
                duration(total)
            }
        }
    }
}

/// This many nanoseconds, or the longest duration.
fn duration(nanos: u128) -> Duration {
    match u64::try_from(nanos / 1_000_000_000) {
        Ok(secs) => Duration::new(secs, (nanos % 1_000_000_000) as u32),
        Err(_) => Duration::MAX,
    }
}

/// Timeouts: short ones, borders of levels, absurd ones, never.
pub fn span() -> impl Strategy<Value = Span> {
    let nanos = prop_oneof![Just(0), Just(1), 0..2_000_000_u64];
    let borders = (1..64_u32, 0..3_u64).prop_map(|(bits, by)| (1_u64 << bits) - 1 + by);
    let exact = (any::<u64>(), 0..1_000_000_000_u32);
    prop_oneof![
        8 => (0..20_u64, nanos.clone()).prop_map(|(ticks, nanos)| Span::Ticks(ticks, nanos)),
        4 => (0..5_000_u64, nanos).prop_map(|(ticks, nanos)| Span::Ticks(ticks, nanos)),
        3 => borders.prop_map(|ticks| Span::Ticks(ticks, 0)),
        1 => any::<u64>().prop_map(|ticks| Span::Ticks(ticks, 0)),
        1 => exact.prop_map(|(secs, nanos)| Span::Exactly(Duration::new(secs, nanos))),
        1 => Just(Span::Exactly(Duration::MAX)),
        1 => Just(Span::Exactly(Duration::MAX - Duration::from_nanos(1))),
    ]
}

/// In seconds.
const CENTURY: u64 = 100 * 365 * 24 * 3_600;

/// Mostly modest: a jump to the end of time leaves little to test.
pub fn jump() -> impl Strategy<Value = Span> {
    prop_oneof![
        20 => (0..200_u64, 0..2_000_000_u64).prop_map(|(t, nanos)| Span::Ticks(t, nanos)),
        6 => (0..100_000_u64).prop_map(|ticks| Span::Ticks(ticks, 0)),
        2 => (1..60_u32).prop_map(|bits| Span::Ticks(1 << bits, 0)),
        1 => (0..=CENTURY).prop_map(|secs| Span::Exactly(Duration::from_secs(secs))),
        1 => span(),
    ]
}

pub fn choices() -> impl Strategy<Value = Choices> {
    let nanos = prop_oneof![
        4 => Just(1_000_000_u64),
        1 => Just(1),
        2 => 1..10_000_000_u64,
        1 => Just(3_600_000_000_000),
        1 => 1..=u64::MAX,
    ];
    let wheel_size = prop_oneof![Just(64), 2..12_usize, 2..200_usize, Just(1 << 16)];
    let max_timeout = prop_oneof![
        3 => Just(Duration::MAX),
        1 => (0..10_000_000_u64).prop_map(Duration::from_micros),
    ];
    let start = prop_oneof![
        3 => Just(Duration::ZERO),
        1 => any::<u64>().prop_map(Duration::from_nanos),
        1 => (1..100_u64).prop_map(|secs| LAST_READING - Duration::from_secs(secs)),
    ];
    let max_parked = prop::option::weighted(0.3, 0..8_usize);
    (nanos, wheel_size, max_parked, max_timeout, start).prop_map(
        |(nanos, wheel_size, max_parked, max_timeout, start)| Choices {
            tick: Duration::from_nanos(nanos),
            wheel_size,
            max_parked,
            max_timeout,
            start,
        },
    )
}
