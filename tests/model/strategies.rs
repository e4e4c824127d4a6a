//! Calls for the property test.

use crate::interpreter::call::{Answer, Arriving, By, Call, On, Reading, Way};
use crate::support::spans::{Span, jump, span};
use proptest::prelude::*;

/// How long the purgatory is idle at first: often none, or up to where numbers of ticks grow into another bit.
pub(crate) fn uptime() -> impl Strategy<Value = Span> {
    let ticks = prop_oneof![
        4 => Just(0),
        1 => Just(1 << 30),
        1 => Just(1 << 36),
        1 => Just(u64::MAX),
        1 => (0..64_u32).prop_map(|bits| 1 << bits),
    ];
    let near = (ticks, 0..300_u64);
    near.prop_map(|(ticks, short_by): (u64, u64)| Span::Ticks(ticks.saturating_sub(short_by), 0))
}

fn key() -> impl Strategy<Value = u8> {
    0..6_u8
}

fn rank() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, Just(u64::MAX)]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        2 => Just(Answer::No),
        7 => Just(Answer::Yes),
        1 => Just(Answer::Panic),
    ]
}

fn arriving() -> impl Strategy<Value = Arriving> {
    let seldom = || {
        prop_oneof![
            18 => Just(Answer::No),
            1 => Just(Answer::Yes),
            1 => Just(Answer::Panic),
        ]
    };
    let reading = prop_oneof![
        4 => Just(Reading::Unsaid),
        2 => span().prop_map(Reading::Ago),
        1 => span().prop_map(Reading::Ahead),
    ];
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    (span(), seldom(), seldom(), reading, flags).prop_map(
        |(timeout, first, then, reading, (awaited, fragile))| Arriving {
            timeout,
            first,
            then,
            reading,
            awaited,
            fragile,
        },
    )
}

fn on() -> impl Strategy<Value = On> {
    let way = prop_oneof![
        4 => Just(Way::Plain),
        4 => Just(Way::Resolved),
        1 => Just(Way::Foreign),
    ];
    let on = (key(), prop::option::of(rank()), way);
    on.prop_map(|(key, rank, way)| On { key, rank, way })
}

pub(crate) fn call() -> impl Strategy<Value = Call> {
    let keys = prop::collection::vec(key(), 0..5);
    let many = prop::collection::vec(0..40_u8, 20..40);
    let keys = prop_oneof![15 => keys, 1 => many];
    let on = prop::collection::vec(on(), 0..6);
    let by = prop_oneof![
        3 => Just(By::Key),
        2 => Just(By::Resolved),
        1 => Just(By::ResolvedAfterLock),
    ];
    let pick = any::<u16>;
    prop_oneof![
        6 => (keys, arriving()).prop_map(|(keys, op)| Call::Park(keys, op)),
        8 => (on, arriving()).prop_map(|(on, op)| Call::ParkOn(on, op)),
        1 => key().prop_map(Call::Resolve),
        1 => key().prop_map(Call::Release),
        4 => (pick(), answer()).prop_map(|(pick, answer)| Call::Answer(pick, answer)),
        7 => (key(), by, prop::option::of(rank()))
            .prop_map(|(key, by, rank)| Call::Check(key, by, rank)),
        2 => key().prop_map(Call::CheckLater),
        2 => pick().prop_map(Call::CheckHandle),
        1 => key().prop_map(Call::CancelKey),
        2 => pick().prop_map(Call::CancelHandle),
        1 => key().prop_map(Call::ForceKey),
        1 => pick().prop_map(Call::ForceHandle),
        1 => (key(), span()).prop_map(|(key, timeout)| Call::RescheduleKey(key, timeout)),
        3 => (pick(), span()).prop_map(|(pick, timeout)| Call::RescheduleHandle(pick, timeout)),
        1 => pick().prop_map(Call::DropHandle),
        2 => jump().prop_map(Call::Pass),
        6 => jump().prop_map(Call::Advance),
    ]
}
