//! Scripts from bytes, for a fuzzer: as many calls as there are bytes for.

use super::call::{Act, Answer, Arriving, By, Call, DEEP, Deed, HASHINGS, ITSELF, On, Pick};
use super::call::{Reach, Reading, Script, Setup, Way};
use crate::support::spans::{Choices, LAST_READING, Span};
use arbitrary::{Result, Unstructured};
use std::sync::Arc;
use std::time::Duration;

/// More calls find nothing that these do not, and take the fuzzer's time.
const CALLS: usize = 400;

pub(super) fn script(bytes: &[u8]) -> Result<Script> {
    let u = &mut Unstructured::new(bytes);
    let setup = Setup {
        choices: choices(u)?,
        executor: u.arbitrary()?,
        map_shards: u.ratio(1, 2)?.then(|| u.int_in_range(0..=64)).transpose()?,
        max_watchers: u.ratio(1, 4)?.then(|| u.int_in_range(0..=6)).transpose()?,
        hashing: *u.choose(&HASHINGS)?,
    };
    // Four bytes of the seeds have no meaning now.
    u.arbitrary::<u32>()?;
    let mut calls = vec![Call::Pass(uptime(u)?)];
    while !u.is_empty() && calls.len() < CALLS {
        calls.push(call(u)?);
    }
    Ok(Script { setup, calls })
}

fn choices(u: &mut Unstructured<'_>) -> Result<Choices> {
    Ok(Choices {
        tick: Duration::from_nanos(match u.int_in_range(0..=7)? {
            0..=3 => 1_000_000,
            4 => 1,
            5 => 3_600_000_000_000,
            6 => u.int_in_range(1..=10_000_000)?,
            _ => u.arbitrary::<u64>()?.max(1),
        }),
        wheel_size: match u.int_in_range(0..=3)? {
            0 => 64,
            1 => 2,
            2 => 1 << 16,
            _ => u.int_in_range(2..=200)?,
        },
        max_timeout: match u.ratio(1, 4)? {
            false => Duration::MAX,
            true => Duration::from_micros(u.int_in_range(0..=10_000_000)?),
        },
        max_parked: u.ratio(1, 4)?.then(|| u.int_in_range(0..=8)).transpose()?,
        start: match u.int_in_range(0..=3)? {
            0 | 1 => Duration::ZERO,
            2 => Duration::from_nanos(u.int_in_range(0..=u64::MAX - 1)?),
            _ => LAST_READING - Duration::from_secs(u.int_in_range(1..=100)?),
        },
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

fn arriving(u: &mut Unstructured<'_>, on: Vec<On>, deep: u32) -> Result<Arriving> {
    let plain = Arriving::plain(on, span(u)?);
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
        asked: acts(u, 0)?,
        ended: match deep {
            0 => Vec::new(),
            _ => acts(u, deep - 1)?,
        },
        ..plain
    })
}

/// Draws between zero and `most` values.
fn several<T>(
    u: &mut Unstructured<'_>,
    most: usize,
    draw: impl Fn(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let count = u.int_in_range(0..=most)?;
    (0..count).map(|_| draw(u)).collect()
}

fn acts(u: &mut Unstructured<'_>, deep: u32) -> Result<Vec<Act>> {
    let count = u.int_in_range(0..=5)?.max(2) - 2;
    (0..count).map(|_| act(u, deep)).collect()
}

fn pick(u: &mut Unstructured<'_>) -> Result<Pick> {
    Ok(match u.arbitrary::<u8>()? {
        0..=63 => ITSELF,
        pick => pick.into(),
    })
}

fn reach(u: &mut Unstructured<'_>) -> Result<Reach> {
    if u.ratio(1, 2)? {
        return Ok(Reach::ALL);
    }
    Ok(Reach {
        at_most: u.ratio(1, 2)?.then(|| u.int_in_range(0..=3)).transpose()?,
        up_to: u.ratio(1, 2)?.then(|| rank(u)).transpose()?,
        until_refused: u.ratio(1, 3)?,
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

/// More keys than are compared one by one.
fn many(u: &mut Unstructured<'_>) -> Result<Vec<On>> {
    let (first, count) = (u.arbitrary::<u8>()?, u.int_in_range(16..=40)?);
    let keys = (0..count).map(|step| first.wrapping_add(step) % 40);
    Ok(keys.map(On::plain).collect())
}

/// What is done; by an operation as well. It parks others as long as it is not too deep.
fn act(u: &mut Unstructured<'_>, deep: u32) -> Result<Act> {
    let side = usize::from(u.ratio(1, 8)?);
    let last = if deep == 0 { 19 } else { 31 };
    let deed = match u.int_in_range(0..=last)? {
        0..=3 => {
            let by = [By::Key, By::Resolved, By::ResolvedAfterLock];
            Deed::Check(key(u)?, *u.choose(&by)?, reach(u)?)
        }
        4 => Deed::Resolve(key(u)?),
        5 => Deed::Release(key(u)?),
        6 => Deed::Answer(pick(u)?, answer(u)?),
        7 => Deed::AnswerRecent(answer(u)?),
        8 => Deed::CheckLater(key(u)?),
        9 => Deed::CheckHandle(pick(u)?),
        10 => Deed::CheckAll(several(u, 3, key)?),
        11 => Deed::CheckWhere(u.arbitrary::<u8>()?.into()),
        12 => Deed::CancelKey(key(u)?),
        13 => Deed::CancelHandle(pick(u)?),
        14 => Deed::ForceKey(key(u)?),
        15 => Deed::ForceHandle(pick(u)?),
        16 | 17 => Deed::Reschedule(pick(u)?, span(u)?),
        18 => Deed::DropHandle(pick(u)?),
        19 => match u.int_in_range(0..=63)? {
            0 => Deed::Shutdown,
            1 => Deed::Drain,
            _ => Deed::Advance,
        },
        20 => Deed::ForceWith(key(u)?, acts(u, 0)?.into()),
        which => {
            let keys = match which {
                21 => many(u)?,
                22..=25 => several(u, 4, |u| key(u).map(On::plain))?,
                _ => several(u, 5, on)?,
            };
            Deed::Park(Arc::new(arriving(u, keys, deep - 1)?))
        }
    };
    Ok(Act { side, deed })
}

fn call(u: &mut Unstructured<'_>) -> Result<Call> {
    Ok(match u.int_in_range(0..=7)? {
        0 => Call::Pass(span(u)?),
        _ => Call::Do(act(u, DEEP)?),
    })
}
