//! Calls for the property test.

use crate::interpreter::call::{Act, Answer, Arriving, By, Call, DEEP, Deed, HASHINGS, ITSELF};
use crate::interpreter::call::{On, Pick, Reach, Reading, Setup, Way};
use crate::support::spans::{Choices, Span, choices, jump, span};
use proptest::prelude::*;
use proptest::sample::select;
use std::sync::Arc;

prop_compose! {
    pub(crate) fn setup()(
        choices in choices(),
        // Often so few that they are soon reached, and soon free again.
        few in prop::option::weighted(0.4, 1..6_usize),
        executor in prop::bool::weighted(0.3),
        // (It takes time to look through many.)
        map_shards in prop_oneof![
            20 => (0..6_usize).prop_map(Some),
            2 => Just(Some(64)),
            1 => Just(None),
        ],
        max_watchers in prop::option::weighted(0.4, 0..6_usize),
        hashing in select(&HASHINGS[..]),
    ) -> Setup {
        let max_parked = few.or(choices.max_parked);
        let choices = Choices { max_parked, ..choices };
        Setup { choices, executor, map_shards, max_watchers, hashing }
    }
}

/// How long the purgatories are idle at first: often none, or up to where numbers of ticks grow into another bit.
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
    prop_oneof![4 => 0..3_u8, 3 => 0..6_u8]
}

/// Mostly the first of the two.
fn side() -> impl Strategy<Value = usize> {
    prop_oneof![7 => Just(0), 1 => Just(1_usize)]
}

fn rank() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..4_u64, 1 => Just(u64::MAX)]
}

fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![3 => any::<Pick>(), 1 => Just(ITSELF)]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        2 => Just(Answer::No),
        7 => Just(Answer::Yes),
        2 => Just(Answer::Panic),
    ]
}

fn reach() -> impl Strategy<Value = Reach> {
    let parts = (
        prop::option::weighted(0.6, 0..4_usize),
        prop::option::weighted(0.4, rank()),
        prop::bool::weighted(0.3),
    );
    let bounded = parts.prop_map(|(at_most, up_to, until_refused)| Reach {
        at_most,
        up_to,
        until_refused,
    });
    prop_oneof![1 => Just(Reach::ALL), 1 => bounded]
}

fn seldom(yes: u32) -> impl Strategy<Value = Answer> {
    prop_oneof![
        18 => Just(Answer::No),
        yes => Just(Answer::Yes),
        1 => Just(Answer::Panic),
    ]
}

prop_compose! {
    fn arriving(deep: u32)(
        on in keys(),
        timeout in span(),
        first in seldom(1),
        then in seldom(3),
        reading in prop_oneof![
            4 => Just(Reading::Unsaid),
            2 => span().prop_map(Reading::Ago),
            1 => span().prop_map(Reading::Ahead),
        ],
        awaited in prop::bool::weighted(0.2),
        fragile in prop::bool::weighted(0.1),
        asked in prop_oneof![5 => Just(Vec::new()), 3 => prop::collection::vec(asked(), 1..4)],
        ended in ended(deep),
    ) -> Arriving {
        Arriving { on, timeout, first, then, reading, awaited, fragile, asked, ended }
    }
}

fn ended(deep: u32) -> BoxedStrategy<Vec<Act>> {
    let none = Just(Vec::new());
    match deep {
        0 => none.boxed(),
        _ => prop_oneof![2 => none, 1 => prop::collection::vec(act(deep - 1), 1..3)].boxed(),
    }
}

fn keys() -> impl Strategy<Value = Vec<On>> {
    let few = prop::collection::vec(key().prop_map(On::plain), 1..5);
    let many = prop::collection::vec((0..40_u8).prop_map(On::plain), 20..40);
    let way = prop_oneof![
        4 => Just(Way::Plain),
        4 => Just(Way::Resolved),
        1 => Just(Way::Foreign),
    ];
    let on = (key(), prop::option::of(rank()), way);
    let on = on.prop_map(|(key, rank, way)| On { key, rank, way });
    prop_oneof![
        1 => Just(Vec::new()),
        16 => few,
        2 => many,
        24 => prop::collection::vec(on, 1..6),
    ]
}

/// What an operation does while it is asked, in both purgatories. Mostly it makes checks, and the same ones.
fn asked() -> impl Strategy<Value = Act> {
    let few = || 0..2_u8;
    let check = (few(), by(), reach()).prop_map(|(key, by, reach)| Deed::Check(key, by, reach));
    let all = prop::collection::vec(few(), 1..4).prop_map(Deed::CheckAll);
    let with = key().prop_map(|key| Deed::ForceWith(key, Arc::new([])));
    let itself = prop_oneof![
        2 => Just(Deed::ForceHandle(ITSELF)),
        1 => Just(Deed::CancelHandle(ITSELF)),
        1 => Just(Deed::CheckHandle(ITSELF)),
    ];
    let mostly = prop_oneof![
        6 => check,
        2 => all,
        1 => with,
        4 => itself,
    ];
    let mostly = (0..2_usize, mostly).prop_map(|(side, deed)| Act { side, deed });
    prop_oneof![2 => mostly, 1 => act(0)]
}

fn by() -> impl Strategy<Value = By> {
    prop_oneof![
        3 => Just(By::Key),
        2 => Just(By::Resolved),
        1 => Just(By::ResolvedAfterLock),
    ]
}

/// What is done; by an operation as well. It parks others as long as it is not too deep.
fn act(deep: u32) -> BoxedStrategy<Act> {
    let check = (key(), by(), reach()).prop_map(|(key, by, reach)| Deed::Check(key, by, reach));
    let check_all = prop::collection::vec(key(), 0..4).prop_map(Deed::CheckAll);
    let answer_one = (pick(), answer()).prop_map(|(pick, answer)| Deed::Answer(pick, answer));
    let reschedule = (pick(), span()).prop_map(|(pick, timeout)| Deed::Reschedule(pick, timeout));
    let (advances, parks) = if deep == DEEP { (7, 18) } else { (1, 10) };
    let mut deeds = vec![
        (9, check.boxed()),
        (1, key().prop_map(Deed::Resolve).boxed()),
        (1, key().prop_map(Deed::Release).boxed()),
        (4, answer_one.boxed()),
        (3, answer().prop_map(Deed::AnswerRecent).boxed()),
        (2, key().prop_map(Deed::CheckLater).boxed()),
        (2, pick().prop_map(Deed::CheckHandle).boxed()),
        (1, check_all.boxed()),
        (1, any::<u64>().prop_map(Deed::CheckWhere).boxed()),
        (1, key().prop_map(Deed::CancelKey).boxed()),
        (2, pick().prop_map(Deed::CancelHandle).boxed()),
        (1, key().prop_map(Deed::ForceKey).boxed()),
        (1, pick().prop_map(Deed::ForceHandle).boxed()),
        (3, reschedule.boxed()),
        (1, pick().prop_map(Deed::DropHandle).boxed()),
        (advances, Just(Deed::Advance).boxed()),
    ];
    if deep > 0 {
        let with = (key(), prop::collection::vec(asked(), 0..2));
        let with = with.prop_map(|(key, acts)| Deed::ForceWith(key, acts.into()));
        deeds.push((2, with.boxed()));
        let park = arriving(deep - 1).prop_map(|op| Deed::Park(Arc::new(op)));
        deeds.push((parks, park.boxed()));
    }
    let act = (side(), prop::strategy::Union::new_weighted(deeds));
    act.prop_map(|(side, deed)| Act { side, deed }).boxed()
}

pub(crate) fn call() -> impl Strategy<Value = Call> {
    let last = (side(), prop_oneof![Just(Deed::Drain), Just(Deed::Shutdown)]);
    prop_oneof![
        450 => act(DEEP).prop_map(Call::Do),
        100 => jump().prop_map(Call::Pass),
        2 => last.prop_map(|(side, deed)| Call::Do(Act { side, deed })),
    ]
}

/// The last that is done while all is open; then some calls more.
pub(crate) fn end() -> impl Strategy<Value = Call> {
    let deed = prop_oneof![Just(Deed::Shutdown), Just(Deed::Drain), Just(Deed::Advance)];
    deed.prop_map(Call::first)
}
