//! G24: across nodes no wait is lost. The shipped node, its driver included, against a model of a store and a feed on
//! virtual time: many seeds for each scenario, and every rule of the protocol left out once.

#![allow(unreachable_pub, reason = "a test has no users")]

mod clients;
mod engine;
mod engines;
mod run;
mod scale;
mod shipped;
mod store;
mod world;

use engine::Engine;
use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::model::{Rule, Rules};
use request_purgatory_cluster::{Cluster, ClusterWaits, Config, Feed, FeedError};
use std::time::Duration;
use world::{Backend, Outcome, Scenario};

/// How many seeds each scenario gets: 60, unless `SIMULATION_SEEDS` says otherwise.
fn seeds() -> u64 {
    let wanted = std::env::var("SIMULATION_SEEDS");
    wanted.map_or(60, |it| it.parse().expect("SIMULATION_SEEDS is a number"))
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// No audit comes to the rescue, and nothing is to be rescued.
const SOUND: Scenario = Scenario {
    audit: Duration::from_secs(3_600),
    ping: Duration::from_secs(5),
    pause: 25,
    watch: 10,
    bound: ms(300),
    loss: 0.0,
    late_interest: ms(0),
    cuts: false,
    flushes: None,
    rolls_back: false,
    mutes_at: None,
    refuses_sessions: false,
    is_unread: None,
};

const CUTS: Scenario = Scenario {
    cuts: true,
    bound: ms(700),
    ..SOUND
};

/// No next commit to the same key soon tells what was missed while a watch was begun, or between two sessions.
const SELDOM: Scenario = Scenario {
    pause: 250,
    watch: 100,
    bound: ms(800),
    ..CUTS
};

const LATE: Scenario = Scenario {
    late_interest: ms(30),
    ..SOUND
};

/// An audit of 1 s, which may come 20 % late, and what it needs for its reads.
const LOSSY: Scenario = Scenario {
    audit: ms(1_000),
    bound: ms(1_300),
    loss: 0.3,
    ..LATE
};

const FLUSHES: Scenario = Scenario {
    flushes: Some((1_000, 3_000)),
    audit: ms(300),
    bound: ms(1_000),
    ..SOUND
};

/// Soon enough that new commits overtake what was lost.
const FLUSHES_EARLY: Scenario = Scenario {
    flushes: Some((60, 200)),
    ..FLUSHES
};

const ROLLS_BACK: Scenario = Scenario {
    rolls_back: true,
    bound: ms(700),
    ..SOUND
};

/// The subscription falls silent at 500 ms; 3.2 s is many audits later. (An audit finds something only if a key was
/// committed to since it was read, and keys come and go here; so two audits in a row may take a while.)
const MUTE: Scenario = Scenario {
    mutes_at: Some(ms(500)),
    audit: ms(250),
    bound: ms(500),
    ..SOUND
};

/// No session at all. An audit of 1 s, which may come 20 % late and spreads its slices over half a second.
const NO_FEED: Scenario = Scenario {
    audit: ms(1_000),
    bound: ms(1_900),
    refuses_sessions: true,
    ..SOUND
};

/// For 700 ms no read is answered; sessions are cut as well, and the pause between two of them may grow to 800 ms.
const UNREAD: Scenario = Scenario {
    is_unread: Some((1_000, 1_700)),
    cuts: true,
    bound: ms(1_800),
    ..SELDOM
};

fn run<B: Backend>(scenario: Scenario, rules: Rules, seeds: u64) -> Total {
    let mut total = Total::default();
    for seed in 0..seeds {
        let outcome = run::run::<B>(seed, scenario, rules);
        total.sum.add(&outcome);
    }
    println!("{total:?}");
    total
}

#[derive(Debug, Default)]
struct Total {
    sum: Outcome,
}

/// The protocol loses nothing, and has something to lose.
fn holds(scenario: Scenario) -> Total {
    holds_on::<Engine>(scenario, seeds())
}

fn holds_on<B: Backend>(scenario: Scenario, seeds: u64) -> Total {
    let total = run::<B>(scenario, Rules::default(), seeds);
    assert_eq!(total.sum.lost, 0, "{total:?}");
    assert_eq!(
        total.sum.wrong, 0,
        "an answer is a version of its history: {total:?}"
    );
    assert!(total.sum.answered > seeds * 50, "{total:?}");
    assert_eq!(total.sum.left, 0, "a key without waits is forgotten");
    // A session that is there at the end is none yet.
    let gaps = total.sum.sessions.saturating_sub(seeds)..=total.sum.sessions;
    assert!(gaps.contains(&total.sum.gaps), "{total:?}");
    if scenario.flushes.is_none() && !scenario.rolls_back {
        assert_eq!(total.sum.resets, 0, "no data is lost: {total:?}");
    }
    total
}

/// Without the rule, waits are lost in some run. (`docs/notes/cluster.md` lists the rules; one run is enough here.)
fn loses(scenario: Scenario, rule: Rule) {
    let rules = Rules::default().without(rule);
    let seed = (0..seeds()).find(|&seed| run::run::<Engine>(seed, scenario, rules).lost > 0);
    let seed = seed.unwrap_or_else(|| panic!("without {rule:?}, {} runs lost nothing", seeds()));
    println!("without {rule:?}, the run with seed {seed} lost waits");
}

#[test]
fn g24_nothing_is_lost_on_a_sound_feed() {
    holds(SOUND);
}

#[test]
fn g24_nothing_is_lost_when_sessions_are_cut() {
    let total = holds(CUTS);
    assert!(total.sum.sessions > 2 * seeds());
}

#[test]
fn g24_nothing_is_lost_when_commits_are_few() {
    holds(SELDOM);
}

#[test]
fn g24_nothing_is_lost_when_interest_spreads_late() {
    holds(LATE);
}

#[test]
fn g24_an_audit_heals_lost_messages_within_its_period() {
    let total = holds(LOSSY);
    assert!(total.sum.late > 0, "some were late: {total:?}");
}

#[test]
fn g24_a_flushed_store_ends_waits_with_reset() {
    let total = holds(FLUSHES);
    assert!(total.sum.resets > seeds());
}

#[test]
fn g24_an_older_copy_ends_waits_with_reset() {
    let total = holds(ROLLS_BACK);
    assert!(total.sum.resets > seeds() / 4);
}

#[test]
fn g24_a_silent_subscription_is_replaced() {
    let total = holds(MUTE);
    assert_eq!(total.sum.sessions, 2 * seeds(), "{total:?}");
    assert!(
        total.sum.late > 0 && total.sum.late_at_end < seeds(),
        "{total:?}"
    );
}

#[test]
fn g24_without_a_feed_waits_end_by_reads_within_an_audit() {
    let total = holds(NO_FEED);
    assert_eq!(total.sum.sessions, 0);
    assert!(total.sum.late > 0, "{total:?}");
}

/// The event was committed before the wait began, and no audit comes.
#[tokio::test(start_paused = true)]
async fn g24_without_a_feed_new_keys_are_read_at_once() {
    let engine = MemoryEngine::new();
    let node = Cluster::start(
        engine.clone(),
        Refusing,
        Config {
            audit: SOUND.audit,
            ..Config::default()
        },
    );
    let waits = ClusterWaits::new(&node.expect("in a runtime")).expect("there is a thread");
    engine.commit(7);
    let begun = tokio::time::Instant::now();
    let wait = waits.wait_past(7, 0, Duration::MAX);
    let told = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert_eq!(told.expect("it is told"), Ok(1));
    assert!(begun.elapsed() < ms(100), "{:?}", begun.elapsed());
}

struct Refusing;

impl Feed<u64> for Refusing {
    type Interests = <MemoryEngine<u64> as Feed<u64>>::Interests;
    type Changes = <MemoryEngine<u64> as Feed<u64>>::Changes;

    async fn open(&self, _: &Config) -> Result<(Self::Interests, Self::Changes), FeedError> {
        Err(FeedError::Refused("this user may not subscribe".into()))
    }
}

#[test]
fn g24_reads_that_failed_are_made_again() {
    let total = holds(UNREAD);
    assert!(total.sum.late > 0, "{total:?}");
}

#[test]
fn without_reads_while_there_is_no_session() {
    loses(NO_FEED, Rule::ReadWithoutSession);
}

#[test]
fn without_a_feed_and_an_audit() {
    loses(NO_FEED, Rule::Audit);
}

#[test]
fn news_on_the_way_is_no_fault() {
    let total = holds(Scenario {
        audit: ms(100),
        ..SOUND
    });
    assert_eq!(
        total.sum.sessions,
        seeds(),
        "no session was ended by an audit"
    );
}

#[test]
fn without_orders_in_step() {
    loses(SOUND, Rule::OrdersInStep);
}

#[test]
fn without_another_look_before_forgetting() {
    loses(SOUND, Rule::LookAgain);
}

#[test]
fn with_the_read_before_the_watch() {
    loses(SELDOM, Rule::ReadAfterWatch);
}

#[test]
fn with_the_check_before_the_mark() {
    loses(SOUND, Rule::MarkBeforeCheck);
}

#[test]
fn without_watching_at_a_new_session() {
    loses(CUTS, Rule::WatchAtNewSession);
}

#[test]
fn without_reading_at_a_new_session() {
    loses(SELDOM, Rule::ReadAtNewSession);
}

#[test]
fn without_reading_again_after_settle() {
    loses(LATE, Rule::ReadAfterSettle);
}

#[test]
fn without_an_audit() {
    loses(LOSSY, Rule::Audit);
}

#[test]
fn g24_a_store_that_was_flushed_and_filled_again_ends_waits_with_reset() {
    let total = holds(FLUSHES_EARLY);
    assert!(total.sum.resets > seeds());
}

/// Lost data also shows as versions that went back, unless new commits have overtaken them: then clients get versions
/// that the history they know never had.
#[test]
fn without_a_reset_on_another_epoch() {
    let total = run::<Engine>(
        FLUSHES_EARLY,
        Rules::default().without(Rule::ResetOnEpoch),
        seeds(),
    );
    assert!(total.sum.wrong > 0, "{total:?}");
}

#[test]
fn without_a_reset_when_versions_went_back() {
    loses(ROLLS_BACK, Rule::ResetWhenBack);
}

#[test]
fn without_verifying_what_clients_have_seen() {
    loses(ROLLS_BACK, Rule::VerifySeen);
}

/// Every audit heals, so nothing is lost; but everything is late for ever.
#[test]
fn without_ending_a_session_that_hears_nothing() {
    let total = run::<Engine>(
        MUTE,
        Rules::default().without(Rule::EndWhenUnheard),
        seeds(),
    );
    assert!(total.sum.late_at_end > 10 * seeds(), "{total:?}");
}
