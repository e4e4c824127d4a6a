//! The shipped driver with a feed and a store that do what a test says, on tokio's paused clock: how it goes on when
//! they fail, and what it says of that.

#![allow(unreachable_pub, reason = "a test has no users")]

mod engine;
mod panics;
mod streams;
mod watches;

use engine::{AUDIT, Engine, FIRST, LONGEST};
use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::{
    Cluster, ClusterWaits, Config, Epoch, InterestError, Position, Stats, WaitError,
};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const LONG: Duration = Duration::from_secs(30);

/// The stats, when they are as wanted.
async fn until(node: &Cluster<u64>, is_so: impl Fn(&Stats) -> bool) -> Stats {
    let begun = Instant::now();
    loop {
        let stats = node.stats();
        if is_so(&stats) {
            return stats;
        }
        assert!(begun.elapsed() < LONG, "{stats:?}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// With a pause that doubles from 10 ms to 1 s there are some 15 attempts in 10 s; without one there is no end of them.
fn assert_paused(attempts: u64) {
    assert!((10..=40).contains(&attempts), "{attempts} attempts in 10 s");
}

#[tokio::test(start_paused = true)]
async fn g24_sessions_that_fail_again_and_again_pause_and_say_why() {
    let engine = Engine::default();
    engine.set(|it| it.refuses = true);
    let node = engine.node();
    sleep(Duration::from_secs(10)).await;
    let stats = node.stats();
    assert_paused(stats.failed);
    let trouble = stats.feed_trouble.expect("it fails");
    assert_eq!(&*trouble.cause, "the node may not subscribe");
    assert_eq!((trouble.word, trouble.times), ("refused", stats.failed));
    assert_eq!((stats.sessions, stats.gaps), (0, 0));
    // And when it is mended, the trouble is over as soon as a session has lasted.
    engine.set(|it| it.refuses = false);
    let stats = until(&node, |it| it.feed_trouble.is_none()).await;
    assert_eq!((stats.sessions, stats.gaps), (1, 0));
}

/// What the feed advises may be what keeps it from opening a session.
#[tokio::test(start_paused = true)]
async fn g24_the_advice_of_a_feed_that_cannot_be_opened_is_told() {
    let engine = Engine::default();
    engine.set(|it| (it.refuses, it.advice) = (true, Some("let the node subscribe".into())));
    let node = engine.node();
    let stats = until(&node, |it| it.failed == 1).await;
    assert_eq!(stats.advice.as_deref(), Some("let the node subscribe"));
    engine.set(|it| (it.refuses, it.advice) = (false, None));
    let stats = until(&node, |it| it.sessions == 1).await;
    assert_eq!(stats.advice, None);
}

/// The pauses begin with the first one of the settings, a part of which is left out.
#[tokio::test(start_paused = true)]
async fn g24_the_first_pause_is_no_longer_than_was_asked_for() {
    for _ in 0..10 {
        let engine = Engine::default();
        engine.set(|it| it.refuses = true);
        let node = engine.node();
        until(&node, |it| it.failed == 1).await;
        let begun = Instant::now();
        until(&node, |it| it.failed == 2).await;
        // And up to a millisecond until the stats are asked for.
        let pause = begun.elapsed();
        assert!(pause <= FIRST + Duration::from_millis(1), "{pause:?}");
    }
}

/// Two causes that take turns are each told as one that comes again.
#[tokio::test(start_paused = true)]
async fn g24_causes_that_take_turns_are_told_as_troubles() {
    let engine = Engine::default();
    engine.set(|it| (it.refuses, it.takes_turns) = (true, true));
    let node = engine.node();
    sleep(Duration::from_secs(10)).await;
    let stats = node.stats();
    let trouble = stats.feed_trouble.expect("it fails");
    assert!(trouble.times.abs_diff(stats.failed / 2) <= 1, "{trouble:?}");
    let is_other = |stats: &Stats| {
        let now = stats.feed_trouble.as_ref();
        now.is_some_and(|it| it.word != trouble.word)
    };
    let other = until(&node, is_other).await.feed_trouble;
    let other = other.expect("as seen");
    assert!(other.times.abs_diff(trouble.times) <= 1, "{other:?}");
    // All of it is over at once.
    engine.set(|it| it.refuses = false);
    until(&node, |it| it.feed_trouble.is_none()).await;
    engine.set(|it| it.refuses = true);
    engine.cut();
    let begun = node.stats().failed;
    let stats = until(&node, |it| it.failed > begun).await;
    assert_eq!(stats.feed_trouble.expect("it fails again").times, 1);
}

/// Where no audit ever comes, none is waited for.
#[tokio::test(start_paused = true)]
async fn g24_without_audits_a_trouble_is_over_when_a_session_has_lasted() {
    let engine = Engine::default();
    engine.set(|it| it.refuses = true);
    let node = engine.node_with(Duration::MAX);
    until(&node, |it| it.failed == 3).await;
    engine.set(|it| it.refuses = false);
    until(&node, |it| it.sessions == 1).await;
    let begun = Instant::now();
    until(&node, |it| it.feed_trouble.is_none()).await;
    assert!(begun.elapsed() > LONGEST, "{:?}", begun.elapsed());
}

/// As long as none lasts for longer than the longest pause, the pauses grow though each session was live.
#[tokio::test(start_paused = true)]
async fn g24_sessions_that_end_again_and_again_pause() {
    let engine = Engine::default();
    engine.set(|it| it.lasts = Some(2 * FIRST));
    let node = engine.node();
    sleep(Duration::from_secs(10)).await;
    assert_paused(node.stats().gaps);
    // Nor is the trouble over.
    engine.set(|it| it.lasts = Some(LONGEST * 9 / 10));
    sleep(LONG).await;
    let stats = node.stats();
    let trouble = stats.feed_trouble.as_ref().map(|it| it.times);
    assert_eq!(trouble, Some(stats.gaps));
    // One that lasts is followed by a short pause. (Not one that had begun before.)
    engine.set(|it| it.lasts = Some(2 * LONGEST));
    let next = until(&node, |it| it.gaps > stats.gaps && it.lag.is_zero()).await;
    let gaps = next.gaps;
    until(&node, |it| it.gaps == gaps + 1).await;
    let begun = Instant::now();
    until(&node, |it| it.lag.is_zero()).await;
    assert!(begun.elapsed() <= 2 * FIRST, "{:?}", begun.elapsed());
    // Not one that lasts as long and never catches up.
    engine.set(|it| it.failing = u64::MAX);
    let _interest = node.interest([7]).unwrap();
    for gaps in gaps + 2..gaps + 12 {
        until(&node, |it| it.gaps == gaps).await;
    }
    let (sessions, begun) = (node.stats().sessions, Instant::now());
    until(&node, |it| it.sessions > sessions).await;
    assert!(begun.elapsed() >= LONGEST / 3, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn g24_each_session_that_ends_is_a_gap() {
    let engine = Engine::default();
    engine.set(|it| it.lasts = Some(Duration::from_millis(50)));
    let node = engine.node();
    let stats = until(&node, |it| it.gaps == 3).await;
    assert!((3..=4).contains(&stats.sessions), "{stats:?}");
    assert_eq!(stats.feed_trouble.expect("sessions end").word, "lagged");
    engine.set(|it| it.lasts = None);
    until(&node, |it| it.sessions > 3 && it.lag.is_zero()).await;
    let gaps = node.stats().gaps;
    node.shutdown();
    sleep(LONG).await;
    assert_eq!(node.stats().gaps, gaps, "the shutdown is no gap");
}

/// (Several nodes: when the first audit of each begins is a matter of chance.)
#[tokio::test(start_paused = true)]
async fn g24_a_node_runs_on_times_without_end() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let never = Duration::MAX;
    for _ in 0..16 {
        let config = Config {
            audit: never,
            linger: never,
            settle: never,
            backoff: (never, never),
            ping: never,
            ..Config::default()
        };
        let node = Cluster::start(engine.clone(), engine.clone(), config).unwrap();
        // The second one when the node has lasted for a while.
        for key in [7, 8] {
            let interest = node.interest([key]).unwrap();
            until(&node, |it| it.lag.is_zero() && interest.version(&key) == 5).await;
            sleep(LONG).await;
        }
    }
}

/// Nor in a key that is watched still: no version of it would come.
#[tokio::test(start_paused = true)]
async fn g24_a_node_that_was_shut_down_takes_no_interest() {
    let node = Engine::default().node();
    let _interest = node.interest([7]).unwrap();
    node.shutdown();
    for key in [7, 8] {
        let refused = node.interest([key]).err();
        assert_eq!(refused, Some(InterestError::ShutDown), "in {key}");
    }
}

#[tokio::test(start_paused = true)]
async fn g24_a_store_that_answers_for_too_few_keys_is_not_believed() {
    let engine = Engine::default();
    engine.set(|it| (it.short, it.version) = (true, 1));
    let node = engine.node();
    let waits = ClusterWaits::new(&node).unwrap();
    let wait = waits.wait_past(7, 0, Duration::MAX);
    let stats = until(&node, |it| it.store_trouble.is_some()).await;
    let trouble = stats.store_trouble.expect("as seen");
    assert!(trouble.cause.contains("another number of versions"));
    assert_eq!((trouble.word, stats.sessions), ("unread", 1));
    engine.set(|it| it.short = false);
    assert_eq!(wait.await, Ok(1));
    assert_eq!(node.stats().store_trouble, None);
}

#[tokio::test(start_paused = true)]
async fn g24_reads_that_fail_pause_and_an_outage_is_forgotten() {
    let engine = Engine::default();
    engine.set(|it| (it.failing, it.version) = (u64::MAX, 1));
    let node = engine.node();
    let waits = ClusterWaits::new(&node).unwrap();
    let wait = waits.wait_past(7, 0, Duration::MAX);
    sleep(Duration::from_secs(10)).await;
    assert_paused(engine.reads().len() as u64);
    let trouble = node.stats().store_trouble.expect("it fails");
    assert_eq!(&*trouble.cause, "the disk is on fire");
    assert_eq!(trouble.times, engine.reads().len() as u64);
    // An alert stands on it: a node that watches keys, and reads nothing.
    assert_eq!(node.stats().reads, 0);
    engine.set(|it| it.failing = 0);
    assert_eq!(wait.await, Ok(1));
    let stats = node.stats();
    assert!(stats.reads > 0 && stats.store_trouble.is_none());
    // The next failure is the first of its kind, and does not wait for the longest pause. (An audit of one key reads twice
    // in its period.)
    engine.set(|it| it.failing = 1);
    let before = engine.reads().len();
    while engine.reads().len() < before + 2 {
        sleep(Duration::from_millis(1)).await;
    }
    let reads = engine.reads();
    let pause = reads[before + 1] - reads[before];
    assert!(pause <= AUDIT / 2 + 2 * FIRST, "{pause:?}");
}

/// While the store cannot be read, keys come and go. What is read afterwards is what is watched then.
#[tokio::test(start_paused = true)]
async fn g24_after_an_outage_no_key_is_read_that_is_watched_no_more() {
    const KEYS: u64 = 100_000;
    let engine = Engine::default();
    engine.set(|it| (it.failing, it.version) = (u64::MAX, 1));
    let config = Config {
        audit: LONG * 100,
        linger: FIRST,
        backoff: (FIRST, LONGEST),
        ..Config::default()
    };
    let node = Cluster::start(engine.clone(), engine.clone(), config).unwrap();
    let waits = ClusterWaits::new(&node).unwrap();
    for first in (0..KEYS).step_by(1_000) {
        drop(node.interest(first..first + 1_000).unwrap());
        until(&node, |it| it.watched_keys == 0).await;
    }
    let wait = waits.wait_past(KEYS, 0, Duration::MAX);
    sleep(FIRST).await;
    engine.set(|it| (it.failing, it.keys_read) = (0, 0));
    assert_eq!(wait.await, Ok(1));
    let read = engine.0.lock().unwrap().keys_read;
    // (Those that were on their way are read again, if they are watched still.)
    assert!(read < 10, "{read} keys were read");
}

/// News on its way is no fault of a session; but a feed that stays deaf is.
#[tokio::test(start_paused = true)]
async fn g24_two_audits_in_a_row_that_find_what_was_not_heard_end_a_session() {
    let engine = Engine::default();
    let node = engine.node();
    let _interest = node.interest([7]).unwrap();
    until(&node, |it| it.reads > 2 && it.lag.is_zero()).await;
    engine.set(|it| it.version = 1);
    sleep(LONG / 3).await;
    let stats = node.stats();
    assert_eq!((stats.healed, stats.sessions, stats.gaps), (1, 1, 0));
    engine.set(|it| it.rises = true);
    let stats = until(&node, |it| it.gaps == 1).await;
    assert_eq!(stats.feed_trouble.expect("it is deaf").word, "unheard");
}

/// Each session is live, and ends of the same: it is deaf, or ends before the second audit, or before the longest pause.
#[tokio::test(start_paused = true)]
async fn g24_a_trouble_lasts_until_two_audits_have_passed() {
    for (lasts, audit) in [
        (None, 2 * LONGEST),
        (Some(3 * LONGEST), 2 * LONGEST),
        (Some(LONGEST * 9 / 10), LONGEST / 10),
    ] {
        let engine = Engine::default();
        engine.set(|it| (it.rises, it.lasts) = (lasts.is_none(), lasts));
        let node = engine.node_with(audit);
        let _interest = node.interest([7]).unwrap();
        let stats = until(&node, |it| it.gaps == 4).await;
        let trouble = stats.feed_trouble.expect("sessions end");
        assert_eq!((trouble.times, stats.failed), (4, 0), "{}", trouble.cause);
        engine.set(|it| (it.rises, it.lasts) = (false, None));
        // (A session that is about to end may do so still.)
        sleep(4 * LONGEST).await;
        let before = until(&node, |it| it.lag.is_zero()).await;
        let stats = until(&node, |it| it.feed_trouble.is_none()).await;
        assert_eq!(stats.gaps, before.gaps);
    }
}

/// A key that the node forgets before it could hear of what an audit has found is no fault of the session.
#[tokio::test(start_paused = true)]
async fn g24_a_key_that_is_forgotten_need_not_be_heard_of() {
    let engine = Engine::default();
    let config = Config {
        audit: AUDIT,
        linger: FIRST,
        ..Config::default()
    };
    let node = Cluster::start(engine.clone(), engine.clone(), config).unwrap();
    until(&node, |it| it.lag.is_zero()).await;
    for key in 1..=4 {
        let interest = node.interest([key]).unwrap();
        until(&node, |_| {
            interest.version(&key) == key - 1 && interest.position(&key).is_some()
        })
        .await;
        sleep(FIRST).await;
        engine.set(|it| it.version = key);
        until(&node, |it| it.healed == key).await;
        drop(interest);
        until(&node, |it| it.watched_keys == 0).await;
    }
    sleep(LONG).await;
    assert_eq!((node.stats().sessions, node.stats().gaps), (1, 0));
}

/// In a session, the read of a new key follows its watch at once, whenever the driver would have looked next.
#[tokio::test(start_paused = true)]
async fn g24_a_key_is_read_as_soon_as_it_is_watched() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let node = engine.node_with(LONG * 100);
    until(&node, |it| it.lag.is_zero()).await;
    for key in 1..=3 {
        let begun = Instant::now();
        let interest = node.interest([key]).unwrap();
        until(&node, |_| interest.version(&key) == 5).await;
        assert!(begun.elapsed() <= FIRST, "{:?}", begun.elapsed());
    }
}

/// What the last audit of a session found is forgotten with it: news on its way then and news on its way now are no two
/// faults in a row.
#[tokio::test(start_paused = true)]
async fn g24_a_fault_of_one_session_is_not_held_against_the_next() {
    let engine = Engine::default();
    let node = engine.node();
    let _interest = node.interest([7]).unwrap();
    for session in 1..=2 {
        until(&node, |it| it.sessions == session && it.lag.is_zero()).await;
        engine.set(|it| it.version += 1);
        until(&node, |it| it.healed == session).await;
        // It has been looked at once more, and the next audit is not over.
        sleep(Config::default().settle + FIRST).await;
        if session == 1 {
            engine.cut();
        }
    }
    sleep(LONG / 3).await;
    let stats = node.stats();
    assert_eq!((stats.healed, stats.sessions, stats.gaps), (2, 2, 1));
}

const ANEW: Position = Position {
    epoch: Epoch(2),
    version: 0,
};

/// A read of one key shows that the store lost its data. There is no session, and no audit within the test, to have the
/// others read.
#[tokio::test(start_paused = true)]
async fn g24_a_store_that_lost_its_data_has_all_keys_read_again() {
    let engine = Engine::default();
    engine.set(|it| (it.refuses, it.version) = (true, 5));
    let node = engine.node_with(LONG * 100);
    let waits = ClusterWaits::new(&node).unwrap();
    let interest = node.interest([7, 8]).unwrap();
    until(&node, |_| {
        [7, 8].iter().all(|key| interest.version(key) == 5)
    })
    .await;
    // More often than there are reads at once.
    for lost in 1..=2 * Config::default().concurrent_reads as u64 {
        engine.set(|it| it.lost = lost);
        node.read_again(&7);
        until(&node, |it| it.resets == lost).await;
        sleep(FIRST).await;
        assert_eq!([7, 8].map(|key| interest.version(&key)), [5, 5]);
        let anew = Position {
            epoch: Epoch(1 + lost),
            version: 0,
        };
        let wait = waits.wait_past_position(8, anew, LONG);
        assert_eq!(wait.await, Ok(Position { version: 5, ..anew }));
    }
}

/// While a session opens, its read of the history is overtaken by a read of a key, which finds the next one: the session
/// does not bring back the one that is over.
#[tokio::test(start_paused = true)]
async fn g24_a_session_that_begins_in_a_history_that_has_ended_is_given_up() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let node = engine.node_with(LONG * 100);
    let waits = ClusterWaits::new(&node).unwrap();
    let interest = node.interest([7]).unwrap();
    until(&node, |it| it.lag.is_zero() && interest.version(&7) == 5).await;
    let seen = Position {
        epoch: Epoch(1),
        version: 5,
    };
    let wait = waits.wait_past_position(7, seen, LONG);
    engine.set(|it| it.slow = Duration::from_millis(50));
    engine.cut();
    until(&node, |_| engine.0.lock().unwrap().openings == 2).await;
    engine.set(|it| it.lost = 1);
    node.read_again(&7);
    assert_eq!(wait.await, Err(WaitError::Reset(ANEW)));
    let stats = until(&node, |it| it.lag.is_zero()).await;
    assert_eq!((stats.resets, stats.sessions, stats.gaps), (1, 3, 2));
    assert_eq!(node.epoch(), Some(ANEW.epoch));
    let found = waits.wait_past_position(7, ANEW, LONG).await;
    assert_eq!(found, Ok(Position { version: 5, ..ANEW }));
}

/// When a session has read the history, and before it begins, a read of a key shows that this history has ended: no
/// session is there yet that the read could end. (On threads, and so not on the paused clock.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g24_a_session_whose_history_ends_before_it_begins_is_given_up() {
    let engine = Engine::default();
    engine.set(|it| (it.version, it.stalls) = (5, true));
    let node = engine.node_with(LONG * 100);
    let interest = node.interest([7]).unwrap();
    until(&node, |_| {
        engine.0.lock().unwrap().is_stalled && interest.version(&7) == 5
    })
    .await;
    engine.set(|it| it.lost = 1);
    node.read_again(&7);
    // By the read that follows the one which ends the history: that one is done with.
    let read = Some(Position { version: 5, ..ANEW });
    until(&node, |_| interest.position(&7) == read).await;
    engine.set(|it| it.stalls = false);
    let stats = until(&node, |it| it.sessions == 2 && it.lag.is_zero()).await;
    assert_eq!((stats.resets, stats.gaps), (1, 1));
    assert_eq!(node.epoch(), Some(ANEW.epoch));
}

/// A session ends, and in the same moment a read shows that the store lost its data, which would have ended it. The next
/// session goes on.
#[tokio::test(start_paused = true)]
async fn g24_a_doubt_of_one_session_does_not_end_the_next() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let node = engine.node_with(LONG * 100);
    let interest = node.interest([7]).unwrap();
    until(&node, |it| it.lag.is_zero() && interest.version(&7) == 5).await;
    engine.set(|it| (it.gated, it.lost) = (true, 1));
    node.read_again(&7);
    sleep(FIRST).await;
    engine.set(|it| it.gated = false);
    engine.cut();
    engine.answer();
    until(&node, |it| it.resets == 1).await;
    sleep(LONG).await;
    let stats = node.stats();
    assert_eq!(
        (stats.sessions, stats.gaps, stats.lag),
        (2, 1, Duration::ZERO)
    );
    assert_eq!(node.epoch(), Some(ANEW.epoch));
}

/// A key whose copy panics as often as this says.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Fragile(u64);

static PANICS: AtomicU32 = AtomicU32::new(0);

impl Clone for Fragile {
    fn clone(&self) -> Self {
        let left = PANICS.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "the copy panics");
        Self(self.0)
    }
}

/// The driver's own copy of a key panics: what waits is told, and nobody waits in vain from then on.
#[tokio::test(start_paused = true)]
async fn g24_a_driver_that_panics_ends_its_waits() {
    let engine = MemoryEngine::<Fragile>::new();
    let node = Cluster::start(engine.clone(), engine, Config::default()).unwrap();
    let waits = ClusterWaits::new(&node).unwrap();
    let wait = waits.wait_past(Fragile(7), 0, Duration::MAX);
    // (Nothing of the driver has run yet.)
    PANICS.store(1, SeqCst);
    assert_eq!(timeout(LONG, wait).await, Ok(Err(WaitError::ShutDown)));
    assert!(node.is_shut_down());
    let later = waits.wait_past(Fragile(7), 0, Duration::MAX);
    assert_eq!(later.await, Err(WaitError::ShutDown));
}

/// So is what waits when the runtime of the node ends.
#[test]
fn g24_a_runtime_that_ends_ends_its_waits() {
    let engine = Engine::default();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().build().unwrap();
    let waits = runtime.block_on(async {
        let waits = ClusterWaits::new(&engine.node()).unwrap();
        until(waits.cluster(), |it| it.lag.is_zero()).await;
        waits
    });
    let wait = waits.wait_past(7, 0, Duration::MAX);
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread();
    let other = { other }.enable_time().build().unwrap();
    let told = other.block_on(async { timeout(LONG, wait).await });
    assert_eq!(told, Ok(Err(WaitError::ShutDown)));
}

/// While no session can be opened after one has ended, new keys are read at once, and the node is not in step.
#[tokio::test(start_paused = true)]
async fn g24_after_the_end_of_a_session_new_keys_are_read_at_once() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let node = engine.node_with(LONG * 100);
    let waits = ClusterWaits::new(&node).unwrap();
    until(&node, |it| it.sessions == 1 && it.lag.is_zero()).await;
    engine.set(|it| it.refuses = true);
    engine.cut();
    until(&node, |it| it.gaps == 1).await;
    sleep(FIRST).await;
    assert!(node.stats().lag >= FIRST);
    assert_eq!(waits.wait_past(7, 0, FIRST).await, Ok(5));
}

/// The session is live, and the store cannot be read.
#[tokio::test(start_paused = true)]
async fn g24_a_node_that_cannot_read_is_out_of_step() {
    let engine = Engine::default();
    let node = engine.node();
    let _interest = node.interest([7]).unwrap();
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    engine.set(|it| it.failing = u64::MAX);
    let stats = until(&node, |it| !it.lag.is_zero()).await;
    assert_eq!((stats.sessions, stats.gaps), (1, 0));
    engine.set(|it| it.failing = 0);
    until(&node, |it| it.lag.is_zero()).await;
}

#[tokio::test(start_paused = true)]
async fn g24_no_more_reads_are_under_way_than_the_setting_says() {
    let engine = Engine::default();
    let config = Config {
        audit: LONG * 100,
        read_batch: 1,
        concurrent_reads: 2,
        ..Config::default()
    };
    let node = Cluster::start(engine.clone(), engine.clone(), config).unwrap();
    until(&node, |it| it.sessions == 1 && it.lag.is_zero()).await;
    engine.set(|it| (it.gated, it.version) = (true, 5));
    let interest = node.interest(1..=6).unwrap();
    for under_way in [2, 2, 2, 2, 2, 1, 0] {
        sleep(FIRST).await;
        assert_eq!(engine.0.lock().unwrap().under_way, under_way);
        engine.answer();
    }
    let versions = interest.keys().map(|key| interest.version(key));
    assert_eq!(versions.collect::<Vec<_>>(), [5; 6]);
}

/// Where watches are not exact, what was committed while they spread is found by one more read, also of the keys that a
/// session has taken over. No audit comes, and the feed tells nothing.
#[tokio::test(start_paused = true)]
async fn g24_keys_that_a_session_takes_over_are_read_once_more() {
    let engine = Engine::default();
    engine.set(|it| it.is_late = true);
    let node = engine.node_with(LONG * 100);
    let interest = node.interest([7]).unwrap();
    for session in 1..=3 {
        until(&node, |it| it.sessions == session && it.lag.is_zero()).await;
        engine.set(|it| it.version = session);
        let begun = Instant::now();
        until(&node, |_| interest.version(&7) == session).await;
        let found = begun.elapsed();
        assert!(found <= Config::default().settle + FIRST, "{found:?}");
        engine.cut();
    }
}

/// While a slice of an audit is on its way, another read shows that the history is over. There is no session that would
/// begin another audit.
#[tokio::test(start_paused = true)]
async fn g24_an_audit_that_is_overtaken_by_a_loss_goes_on() {
    let engine = Engine::default();
    engine.set(|it| (it.refuses, it.version) = (true, 5));
    let node = engine.node();
    let interest = node.interest([7]).unwrap();
    until(&node, |_| interest.version(&7) == 5).await;
    engine.set(|it| it.gated = true);
    until(&node, |_| engine.0.lock().unwrap().under_way == 1).await;
    engine.set(|it| (it.gated, it.lost) = (false, 1));
    node.read_again(&7);
    until(&node, |it| it.resets == 1).await;
    engine.answer();
    sleep(FIRST).await;
    engine.set(|it| it.version = 6);
    until(&node, |_| interest.version(&7) == 6).await;
}

/// What is committed and announced on this node, the feed has not told: a deaf one is found out all the same.
#[tokio::test(start_paused = true)]
async fn g24_a_feed_that_is_deaf_is_replaced_though_commits_are_announced() {
    let engine = Engine::default();
    let node = engine.node();
    let _interest = node.interest([7]).unwrap();
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    let begun = Instant::now();
    while node.stats().gaps == 0 {
        assert!(begun.elapsed() < LONG, "{:?}", node.stats());
        engine.set(|it| it.version += 1);
        node.announce(&7, engine.0.lock().unwrap().version);
        sleep(FIRST).await;
    }
    let trouble = node.stats().feed_trouble.expect("it is deaf");
    assert_eq!(trouble.word, "unheard");
}

/// Another node has just told the client of version 6. A read that began before that commit was on its way already: it
/// shows nothing of what the client can have seen.
#[tokio::test(start_paused = true)]
async fn g24_a_read_that_began_before_a_claim_does_not_refuse_it() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let node = engine.node_with(LONG * 100);
    let waits = ClusterWaits::new(&node).unwrap();
    let interest = node.interest([7]).unwrap();
    until(&node, |it| it.lag.is_zero() && interest.version(&7) == 5).await;
    engine.set(|it| it.gated = true);
    node.read_again(&7);
    sleep(FIRST).await;
    engine.set(|it| it.version = 6);
    let mut wait = waits.wait_past(7, 6, Duration::MAX);
    for known in [5, 6] {
        engine.answer();
        let told = timeout(FIRST, &mut wait).await;
        assert!(told.is_err(), "{told:?}");
        assert_eq!(interest.version(&7), known);
    }
    engine.set(|it| (it.gated, it.version) = (false, 7));
    node.read_again(&7);
    assert_eq!(timeout(LONG, wait).await, Ok(Ok(7)));
}

#[tokio::test(start_paused = true)]
async fn g24_an_event_ends_the_waits_of_every_purgatory_of_the_node() {
    let engine = MemoryEngine::new();
    let node = Cluster::start(engine.clone(), engine.clone(), Config::default()).unwrap();
    let places = [(); 3].map(|()| ClusterWaits::new(&node).unwrap());
    let waits = places.each_ref();
    let waits = waits.map(|it| it.wait_past(7, 0, Duration::MAX));
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    engine.commit(7);
    for wait in waits {
        assert_eq!(timeout(LONG, wait).await, Ok(Ok(1)));
    }
}
