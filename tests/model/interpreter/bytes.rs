//! Scripts from bytes, for a fuzzer: as many calls as there are bytes for.

use super::call::{Answer, Arriving, By, Call, On, Reading, Script, Way};
use crate::support::spans::{Choices, Span};
use arbitrary::{Result, Unstructured};
use std::time::Duration;

/// More calls find nothing that these do not, and take the fuzzer's time.
const CALLS: usize = 400;

pub(super) fn script(bytes: &[u8]) -> Result<Script> {
    let u = &mut Unstructured::new(bytes);
    let choices = choices(u)?;
    let executor = u.arbitrary()?;
    let mut calls = vec![Call::Pass(uptime(u)?)];
    while !u.is_empty() && calls.len() < CALLS {
        calls.push(call(u)?);
    }
    Ok(Script {
        choices,
        executor,
        calls,
    })
}

fn choices(u: &mut Unstructured<'_>) -> Result<Choices> {
    let nanos = match u.int_in_range(0..=7)? {
        0..=3 => 1_000_000,
        4 => 1,
        5 => 3_600_000_000_000,
        6 => u.int_in_range(1..=10_000_000)?,
        _ => u.arbitrary::<u64>()?.max(1),
    };
    let wheel_size = match u.int_in_range(0..=3)? {
        0 => 64,
        1 => 2,
        2 => 1 << 16,
        _ => u.int_in_range(2..=200)?,
    };
    let max_timeout = match u.ratio(1, 4)? {
        false => Duration::MAX,
        true => Duration::from_micros(u.int_in_range(0..=10_000_000)?),
    };
    let max_parked = match u.ratio(1, 4)? {
        false => None,
        true => Some(u.int_in_range(0..=8)?),
    };
    let start = match u.int_in_range(0..=3)? {
        0 | 1 => Duration::ZERO,
        2 => Duration::from_nanos(u.arbitrary()?),
        _ => Duration::MAX - Duration::from_secs(u.int_in_range(0..=100)?),
    };
    Ok(Choices {
        tick: Duration::from_nanos(nanos),
        wheel_size,
        max_parked,
        max_timeout,
        start,
    })
}

/// How long the purgatory is idle at first.
fn uptime(u: &mut Unstructured<'_>) -> Result<Span> {
    let ticks = match u.int_in_range(0..=7)? {
        0..=3 => 0,
        4 => 1 << 30,
        5 => 1 << 36,
        6 => u64::MAX,
        _ => 1 << u.int_in_range(0..=63)?,
    };
    let short_by = u64::from(u.arbitrary::<u8>()?);
    Ok(Span::Ticks(ticks.saturating_sub(short_by), 0))
}

/// Mostly short: a few bytes.
fn span(u: &mut Unstructured<'_>) -> Result<Span> {
    const CENTURY: u64 = 100 * 365 * 24 * 3_600;
    Ok(match u.arbitrary::<u8>()? {
        ticks @ 0..=191 => Span::Ticks(ticks.into(), 0),
        192..=207 => Span::Ticks(u.arbitrary::<u8>()?.into(), u.int_in_range(0..=2_000_000)?),
        208..=223 => Span::Ticks(u.arbitrary::<u16>()?.into(), 0),
        224..=239 => {
            let border = (1_u64 << u.int_in_range(1..=63)?) - 1;
            Span::Ticks(border + u.int_in_range(0..=2)?, 0)
        }
        240..=245 => Span::Exactly(Duration::from_secs(u.int_in_range(0..=CENTURY)?)),
        246..=249 => Span::Ticks(u.arbitrary()?, 0),
        250..=252 => Span::Exactly(Duration::from_secs(u.arbitrary()?)),
        253 | 254 => Span::Exactly(Duration::MAX),
        255 => Span::Exactly(Duration::MAX - Duration::from_nanos(1)),
    })
}

fn key(u: &mut Unstructured<'_>) -> Result<u8> {
    u.int_in_range(0..=5)
}

fn rank(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=4_u64)? {
        4 => u64::MAX,
        rank => rank,
    })
}

fn answer(u: &mut Unstructured<'_>) -> Result<Answer> {
    Ok(match u.int_in_range(0..=7)? {
        0..=4 => Answer::No,
        5 | 6 => Answer::Yes,
        _ => Answer::Panic,
    })
}

fn arriving(u: &mut Unstructured<'_>) -> Result<Arriving> {
    let plain = Arriving {
        timeout: span(u)?,
        ..Arriving::plain(Duration::ZERO)
    };
    if u.ratio(1, 2)? {
        return Ok(plain);
    }
    Ok(Arriving {
        first: answer(u)?,
        then: answer(u)?,
        reading: match u.int_in_range(0..=3)? {
            0 | 1 => Reading::Unsaid,
            2 => Reading::Ago(span(u)?),
            _ => Reading::Ahead(span(u)?),
        },
        awaited: u.arbitrary()?,
        fragile: u.arbitrary()?,
        ..plain
    })
}

fn on(u: &mut Unstructured<'_>) -> Result<On> {
    let ways = [Way::Plain, Way::Resolved, Way::Resolved, Way::Foreign];
    Ok(On {
        key: key(u)?,
        way: *u.choose(&ways)?,
        rank: u.ratio(1, 2)?.then(|| rank(u)).transpose()?,
    })
}

fn call(u: &mut Unstructured<'_>) -> Result<Call> {
    Ok(match u.int_in_range(0..=31)? {
        0..=3 => {
            let count = u.int_in_range(0..=4)?;
            let keys = (0..count).map(|_| key(u)).collect::<Result<_>>()?;
            Call::Park(keys, arriving(u)?)
        }
        4..=8 => {
            let count = u.int_in_range(0..=5)?;
            let on = (0..count).map(|_| on(u)).collect::<Result<_>>()?;
            Call::ParkOn(on, arriving(u)?)
        }
        // More keys than are compared one by one.
        9 => {
            let first = u.arbitrary::<u8>()?;
            let keys = (0..u.int_in_range(16..=40)?).map(|step| first.wrapping_add(step) % 40);
            Call::Park(keys.collect(), arriving(u)?)
        }
        10 => Call::Resolve(key(u)?),
        11 => Call::Release(key(u)?),
        12..=14 => Call::Answer(u.arbitrary()?, answer(u)?),
        15 | 16 => Call::Check(key(u)?, By::Key, None),
        17 => Call::Check(key(u)?, By::Key, Some(rank(u)?)),
        18 => Call::Check(key(u)?, By::Resolved, None),
        19 => Call::Check(key(u)?, By::ResolvedAfterLock, None),
        20 => Call::Check(key(u)?, By::Resolved, Some(rank(u)?)),
        21 => Call::CheckLater(key(u)?),
        22 => Call::CheckHandle(u.arbitrary()?),
        23 => Call::CancelKey(key(u)?),
        24 => Call::CancelHandle(u.arbitrary()?),
        25 => Call::ForceKey(key(u)?),
        26 => Call::ForceHandle(u.arbitrary()?),
        27 => Call::RescheduleKey(key(u)?, span(u)?),
        28 => Call::RescheduleHandle(u.arbitrary()?, span(u)?),
        29 => Call::DropHandle(u.arbitrary()?),
        30 => Call::Pass(span(u)?),
        _ => match u.int_in_range(0..=63)? {
            0 => Call::Shutdown,
            _ => Call::Advance(span(u)?),
        },
    })
}
