//! NATS discards events: those of a stream with limits, and those that somebody purges.

use crate::load::print_row;
use crate::lost::{key, live, node, node_that_lingers, since};
use crate::ms;
use crate::support::engine::{NatsRig, Rig};
use crate::support::{LONG, eventually};
use async_nats::jetstream::stream;
use request_purgatory_cluster::{Position, Source, WaitError};
use std::time::Instant;
use tokio::time::sleep;

async fn limit(rig: &NatsRig, messages: i64) {
    let context = rig.context().await;
    let stream = context.get_stream("PURGATORY").await.expect("it is there");
    let config = stream::Config {
        max_messages: messages,
        ..stream.cached_info().config.clone()
    };
    context.update_stream(config).await.expect("it changes");
}

/// While the node hears and reads nothing, an event of each key comes and is discarded by later ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_nats_discarded_events_are_a_reset_and_never_written_keys_stay_quiet() {
    const KEYS: usize = 40;
    let rig = NatsRig::start(10_000).await;
    limit(&rig, 30).await;
    let waits = node_that_lingers(&rig.engine(), ms(200));
    let keys = (0..KEYS)
        .map(|number| key(&number.to_string()))
        .collect::<Vec<_>>();
    // Half have seen an event, half nothing.
    let mut seen = vec![0; KEYS];
    for number in 0..KEYS / 2 {
        seen[number] = rig.commit(&keys[number]).await.expect("it commits");
    }
    let parked = keys.iter().zip(&seen);
    let parked = parked.map(|(key, seen)| waits.wait_past(key.clone(), *seen, LONG));
    let parked = parked.map(tokio::spawn).collect::<Vec<_>>();
    live(&waits).await;
    // An audit has covered all of it.
    sleep(ms(1_500)).await;
    rig.freeze(true);
    for key in &keys {
        rig.commit(key).await.expect("it commits");
    }
    for number in 0..60 {
        rig.commit(&key(&format!("other {number}")))
            .await
            .expect("it commits");
    }
    rig.cut();
    rig.freeze(false);
    let start = Instant::now();
    let mut position = None;
    for wait in parked {
        let told = wait.await.expect("no panic");
        let Err(WaitError::Reset(head)) = told else {
            panic!("{told:?}");
        };
        assert!(head.version >= 100, "it is the head: {head}");
        position = Some(head);
    }
    let worst = start.elapsed();
    live(&waits).await;
    print_row("F3 max_msgs", "NATS", KEYS, 0, worst, since(start));
    assert!(
        waits.cluster().stats().advice.is_some(),
        "the limits are told"
    );
    // From the head on, waits are quiet again, and end by what comes.
    let position = position.expect("there were waits");
    let wait = waits.wait_past_position(keys[0].clone(), position, ms(5_700));
    let never = waits.wait_past(key("never"), 0, ms(5_700));
    let (wait, never) = (tokio::spawn(wait), tokio::spawn(never));
    for number in 0..45 {
        // The stream is turned over, and no audit misses a whole turn, which takes twice as long as one that is late.
        rig.commit(&key(&format!("other {number}")))
            .await
            .expect("it commits");
        sleep(ms(120)).await;
    }
    assert_eq!(wait.await.expect("no panic"), Err(WaitError::Expired));
    assert_eq!(never.await.expect("no panic"), Err(WaitError::Expired));
    let wait = waits.wait_past(key("never"), 0, LONG);
    let version = rig.commit(&key("never")).await.expect("it commits");
    assert_eq!(wait.await, Ok(version));
}

/// Of one key all is purged, and the stream goes on. A node that begins later has no mark that could go back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_nats_a_purged_key_is_a_reset_on_a_node_that_begins_later() {
    let rig = NatsRig::start(10_000).await;
    let engine = rig.engine();
    let seen = engine.commit(&key("a"), b"seen").await.expect("it commits");
    for name in ["a", "other"] {
        let unseen = engine.commit(&key(name), b"unseen").await;
        unseen.expect("it commits");
    }
    let stream = rig.context().await.get_stream("PURGATORY").await;
    let stream = stream.expect("it is there");
    let purged = stream.purge().filter("purgatory.in.a").await;
    assert_eq!(purged.expect("it purges").purged, 2);
    let start = Instant::now();
    let waits = node(&engine);
    let told = waits.wait_past_position(key("a"), seen, LONG).await;
    let position = Position { version: 0, ..seen };
    assert_eq!(told, Err(WaitError::Reset(position)));
    let worst = start.elapsed();
    // From there on it is quiet, and ends by what comes.
    let wait = waits.wait_past_position(key("a"), position, LONG);
    live(&waits).await;
    let next = engine.commit(&key("a"), b"next").await.expect("it commits");
    assert_eq!(wait.await, Ok(next));
    print_row("F3 purged", "NATS", 1, 0, worst, since(start));
}

/// A stream with limits holds nothing any more: that is no news for who has seen all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_nats_a_stream_that_is_empty_again_is_no_new_one() {
    let rig = NatsRig::start(10_000).await;
    limit(&rig, 30).await;
    let waits = node(&rig.engine());
    let seen = rig.commit(&key("a")).await.expect("it commits");
    let wait = waits.wait_past(key("a"), seen, LONG);
    live(&waits).await;
    let stream = rig.context().await.get_stream("PURGATORY").await;
    let purged = stream.expect("it is there").purge().await;
    assert_eq!(purged.expect("it purges").purged, 1);
    // (The first of them may have begun before.)
    let reads = waits.cluster().stats().reads + 5;
    eventually("the stream is read", async || {
        waits.cluster().read_again(&key("a"));
        (waits.cluster().stats().reads >= reads).then_some(())
    })
    .await;
    let next = rig.commit(&key("a")).await.expect("it commits");
    assert_eq!(wait.await, Ok(next));
    assert_eq!(waits.cluster().stats().resets, 0);
    // The operator takes the limit away: the session that follows finds that so.
    assert!(waits.cluster().stats().advice.is_some());
    limit(&rig, -1).await;
    eventually("it is told no more", async || {
        waits.cluster().stats().advice.is_none().then_some(())
    })
    .await;
}

/// Each event discards the one before, also while it is read. Of a key that is not found, a reading says from where on
/// there was none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_nats_a_read_does_not_deny_what_was_discarded_meanwhile() {
    let rig = NatsRig::start(10_000).await;
    limit(&rig, 1).await;
    // The events of the first have even versions, those of the second one odd ones.
    let keys = [key("even"), key("odd")];
    let commits = async {
        for version in 1..=500 {
            let committed = rig.commit(&keys[version as usize % 2]).await;
            assert_eq!(committed.expect("it commits"), version);
        }
    };
    let reads = async {
        loop {
            let reading = rig.engine().versions(&keys).await.expect("it reads");
            let floor = reading.floor.unwrap_or(0);
            let head = reading.head.expect("of one sequence");
            for (odd, version) in (0..).zip(&reading.versions) {
                let is_denied = version.is_none() && (floor + 1..=head).any(|it| it % 2 == odd);
                assert!(!is_denied, "{reading:?}");
            }
        }
    };
    tokio::select! {
        () = commits => {}
        () = reads => {}
    }
}
