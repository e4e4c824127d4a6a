//! Sessions that cannot be opened, do not last, or hear nothing: how they pause, and what the node says of it.

use crate::engine::{AUDIT, Engine, FIRST, LONGEST};
use crate::{LONG, assert_paused, until};
use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::{
    Change, Changes, Cluster, Config, Feed, FeedError, Interests, Stats,
};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

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

/// A session that was live for long is no reason to be quick with attempts that come after it, however long each takes:
/// to fail, or to open a session that ends as soon as it is live.
#[tokio::test(start_paused = true)]
async fn g24_attempts_that_take_long_to_fail_pause() {
    for lasts in [None, Some(FIRST)] {
        let engine = Engine::default();
        let node = engine.node();
        until(&node, |it| it.lag.is_zero()).await;
        sleep(2 * LONGEST).await;
        engine.set(|it| (it.refuses, it.lasts) = (lasts.is_none(), lasts));
        engine.set(|it| it.opens_in = 2 * LONGEST);
        engine.cut();
        until(&node, |it| it.failed + it.gaps == 11).await;
        let begun = Instant::now();
        until(&node, |it| it.failed + it.gaps == 12).await;
        let pause = begun.elapsed() - 2 * LONGEST;
        assert!(pause >= LONGEST / 3, "{lasts:?}: {pause:?}");
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
    let words = [trouble.word, other.word];
    assert!(words.contains(&"connect") && words.contains(&"refused"));
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

/// Sessions that are too short stay so, however long the pauses before them become: some 24 in 30 s.
#[tokio::test(start_paused = true)]
async fn g24_the_pause_before_a_session_is_no_part_of_its_time() {
    let engine = Engine::default();
    engine.set(|it| it.lasts = Some(LONGEST * 7 / 10));
    let node = engine.node();
    sleep(LONG).await;
    let gaps = node.stats().gaps;
    assert!((18..=30).contains(&gaps), "{gaps}");
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
    for (fault, word) in [
        (FeedError::Cut("a cable".into()), "cut"),
        (FeedError::Silent(LONG), "silent"),
        (FeedError::Protocol("a word".into()), "protocol"),
    ] {
        let sessions = node.stats().sessions;
        engine.set(|it| it.fault = Some(fault));
        engine.cut();
        let stats = until(&node, |it| it.sessions > sessions && it.lag.is_zero()).await;
        assert_eq!(stats.gaps, sessions);
        assert_eq!(stats.feed_trouble.expect("it ended").word, word);
    }
    // Another text of the same word: the last one is told.
    let sessions = node.stats().sessions;
    engine.set(|it| it.fault = Some(FeedError::Cut("a switch".into())));
    engine.cut();
    let stats = until(&node, |it| it.sessions > sessions && it.lag.is_zero()).await;
    let trouble = stats.feed_trouble.expect("it ended");
    assert!(trouble.cause.ends_with("a switch"), "{trouble:?}");
    assert_eq!(trouble.times, 2);
    let gaps = node.stats().gaps;
    node.shutdown();
    sleep(LONG).await;
    assert_eq!(node.stats().gaps, gaps, "the shutdown is no gap");
}

/// Neither what was committed before a session nor news on its way is a fault of it; but a feed that stays deaf is.
#[tokio::test(start_paused = true)]
async fn g24_two_audits_in_a_row_that_find_what_was_not_heard_end_a_session() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let node = engine.node();
    let _interest = node.interest([7]).unwrap();
    // Without a session, for the session, and by the first audit.
    until(&node, |it| it.reads > 2 && it.lag.is_zero()).await;
    engine.set(|it| it.version = 6);
    sleep(LONG / 3).await;
    let stats = node.stats();
    assert_eq!((stats.healed, stats.sessions, stats.gaps), (1, 1, 0));
    // Two faults are not in a row when the audits between them find none.
    engine.set(|it| it.version = 7);
    sleep(LONG / 3).await;
    let stats = node.stats();
    assert_eq!((stats.healed, stats.gaps), (2, 0));
    engine.set(|it| it.rises = true);
    let stats = until(&node, |it| it.gaps == 1).await;
    assert_eq!(stats.feed_trouble.expect("it is deaf").word, "unheard");
}

/// After a loss versions are low again: that as much was heard in the history before does not excuse the feed.
#[tokio::test(start_paused = true)]
async fn g24_a_feed_that_is_deaf_after_a_loss_is_replaced() {
    let engine = Engine::default();
    engine.set(|it| it.version = 1_000);
    let node = engine.node();
    let interest = node.interest([7]).unwrap();
    until(&node, |it| {
        it.lag.is_zero() && interest.version(&7) == 1_000
    })
    .await;
    engine.set(|it| (it.lost, it.version) = (1, 0));
    until(&node, |it| it.sessions == 2 && it.lag.is_zero()).await;
    engine.set(|it| it.rises = true);
    let is_unheard = |stats: &Stats| {
        let trouble = stats.feed_trouble.as_ref();
        trouble.is_some_and(|it| it.word == "unheard")
    };
    until(&node, is_unheard).await;
}

/// Where watches are not exact, a read makes up for what a new key has missed: that is no fault of the session, though
/// it happens before each audit. What is committed of the keys before is heard.
#[tokio::test(start_paused = true)]
async fn g24_what_a_late_watch_has_missed_is_no_fault() {
    let engine = Engine::default();
    engine.set(|it| it.is_late = true);
    let node = engine.node();
    let mut interests = Vec::new();
    until(&node, |it| it.sessions == 1 && it.lag.is_zero()).await;
    for key in 1..=6 {
        let interest = node.interest([key]).unwrap();
        until(&node, |_| {
            interest.version(&key) == key - 1 && interest.position(&key).is_some()
        })
        .await;
        // In the last moment, so that no audit comes first.
        sleep(Config::default().settle - FIRST).await;
        let heard = (0..key).map(|key_before| Change {
            key: key_before,
            version: key,
            epoch: None,
        });
        engine.set(|it| (it.version, it.news) = (key, heard.collect()));
        engine.cut();
        until(&node, |_| interest.version(&key) == key).await;
        interests.push(interest);
        sleep(AUDIT).await;
    }
    assert_eq!((node.stats().sessions, node.stats().gaps), (1, 0));
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

/// What the last audit of a session found is forgotten with it: news on its way then and news on its way now are no two
/// faults in a row.
#[tokio::test(start_paused = true)]
async fn g24_a_fault_of_one_session_is_not_held_against_the_next() {
    let settle = Config::default().settle;
    // It has been looked at once more, and the next audit is not over; or it is to be looked at before the next session.
    for (looked_at_in, opens_in) in [
        (settle + FIRST, Duration::ZERO),
        (Duration::ZERO, settle * 3 / 2),
    ] {
        let engine = Engine::default();
        engine.set(|it| it.opens_in = opens_in);
        let node = engine.node();
        let _interest = node.interest([7]).unwrap();
        for session in 1..=2 {
            until(&node, |it| it.sessions == session && it.lag.is_zero()).await;
            engine.set(|it| it.version += 1);
            until(&node, |it| it.healed == session).await;
            sleep(looked_at_in).await;
            if session == 1 {
                engine.cut();
            }
        }
        sleep(LONG / 3).await;
        let stats = node.stats();
        assert_eq!((stats.healed, stats.sessions, stats.gaps), (2, 2, 1));
    }
}

/// All that is committed while there is no session is unheard: that is no fault of the next one.
#[tokio::test(start_paused = true)]
async fn g24_what_audits_find_without_a_session_is_not_held_against_the_next() {
    let engine = Engine::default();
    engine.set(|it| (it.refuses, it.rises) = (true, true));
    let node = engine.node();
    let _interest = node.interest([7]).unwrap();
    sleep(LONG / 3).await;
    engine.set(|it| it.refuses = false);
    until(&node, |it| it.sessions == 1).await;
    engine.set(|it| it.rises = false);
    until(&node, |it| it.lag.is_zero()).await;
    engine.set(|it| it.version += 1);
    sleep(LONG / 3).await;
    let stats = node.stats();
    assert_eq!((stats.sessions, stats.gaps), (1, 0), "{stats:?}");
}

/// The session was too slow for a moment, and has caught up when the next event comes.
#[tokio::test(start_paused = true)]
async fn g24_a_session_in_memory_that_something_was_dropped_for_ends_though_later_events_fit() {
    let engine = MemoryEngine::new();
    engine.set_capacity(2);
    let (mut interests, mut changes) = engine.open(&Config::default()).await.unwrap();
    let (mut others, mut of_another) = engine.open(&Config::default()).await.unwrap();
    interests.watch(&[7]).await.unwrap();
    {
        let mut heard = pin!(changes.next());
        let early = timeout(FIRST, &mut heard).await;
        assert!(early.is_err(), "{early:?}");
        for _ in 0..3 {
            engine.commit(7);
        }
        assert_eq!(heard.await.unwrap().len(), 2);
    }
    engine.commit(7);
    let ended = changes.next().await;
    assert!(matches!(ended, Err(FeedError::Lagged)), "{ended:?}");
    // With its one half the session is over, for the other one as well.
    drop(changes);
    let over = interests.watch(&[8]).await;
    assert!(matches!(over, Err(FeedError::Cut(_))), "{over:?}");
    // The next one takes the place of none that lives.
    let _next = engine.open(&Config::default()).await.unwrap();
    others.watch(&[8]).await.unwrap();
    engine.commit(8);
    let heard = of_another.next().await;
    assert!(heard.is_ok(), "{heard:?}");
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

/// A session in which a key cannot be watched, or its watch not be ended, is over, though it would listen on.
#[tokio::test(start_paused = true)]
async fn g24_a_session_that_cannot_do_what_it_is_told_ends() {
    let engine = Engine::default();
    let config = Config {
        audit: LONG * 100,
        linger: FIRST,
        ..Config::default()
    };
    let node = Cluster::start(engine.clone(), engine.clone(), config).unwrap();
    until(&node, |it| it.lag.is_zero()).await;
    engine.set(|it| it.is_unable = true);
    let interest = node.interest([7]).unwrap();
    let stats = until(&node, |it| it.gaps == 1).await;
    assert_eq!(stats.feed_trouble.expect("it ended").word, "refused");
    engine.set(|it| it.is_unable = false);
    until(&node, |it| it.sessions == 2 && it.lag.is_zero()).await;
    engine.set(|it| it.is_unable = true);
    drop(interest);
    until(&node, |it| it.gaps == 2).await;
}
