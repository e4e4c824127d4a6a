//! A store that lost its data: what was read of the history that has ended counts no more.

use crate::engine::{Engine, FIRST};
use crate::{ANEW, LONG, node_that_has_read, until};
use request_purgatory::{Completion, DelayedOperation, Purgatory, Watch};
use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::{
    Change, Cluster, ClusterWaits, Config, Epoch, Interest, Position, Source, WaitError,
};
use std::cell::Cell;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

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

/// There was a session, which the read has ended, and the next one cannot be opened: the keys are read all the same.
#[tokio::test(start_paused = true)]
async fn g24_all_keys_are_read_again_though_no_session_follows() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let node = engine.node_with(LONG * 100);
    let waits = ClusterWaits::new(&node).unwrap();
    let interest = node.interest([7, 8]).unwrap();
    until(&node, |it| it.lag.is_zero() && interest.version(&8) == 5).await;
    // Who is told so goes on at once with a key that is new to the node: while the session that is to end is there.
    let (told, goes_on) = (waits.wait_past(7, 5, LONG), waits.clone());
    let client = tokio::spawn(async move { (told.await, goes_on.wait_past(9, 0, LONG).await) });
    sleep(FIRST).await;
    engine.set(|it| (it.refuses, it.lost) = (true, 1));
    node.read_again(&7);
    until(&node, |it| it.resets == 1).await;
    let wait = waits.wait_past_position(8, ANEW, LONG);
    assert_eq!(
        timeout(FIRST, wait).await,
        Ok(Ok(Position { version: 5, ..ANEW }))
    );
    let told = timeout(FIRST, client).await.expect("at once");
    let told = told.expect("no panic");
    assert_eq!(told, (Err(WaitError::Reset(ANEW)), Ok(5)));
}

/// While a session opens, its read of the history is overtaken by a read of a key, which finds the next one: the session
/// does not bring back the one that is over.
#[tokio::test(start_paused = true)]
async fn g24_a_session_that_begins_in_a_history_that_has_ended_is_given_up() {
    let engine = Engine::default();
    let (node, _interest) = node_that_has_read(&engine, 5).await;
    let waits = ClusterWaits::new(&node).unwrap();
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

/// When it is woken, lets the session hear of a version of the history before, and waits until it has.
struct Hears(Engine, Cluster<u64>);

impl Wake for Hears {
    fn wake(self: Arc<Self>) {
        let (key, version, epoch) = (7, 5_000, None);
        self.0.set(|it| {
            it.news = vec![Change {
                key,
                version,
                epoch,
            }]
        });
        let begun = Instant::now();
        block_in_place(|| {
            self.0.cut();
            while self.1.stats().heard == 0 {
                assert!(begun.elapsed() < LONG, "nothing is heard");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
}

/// The session ends when all that waits was told of the new history. Until then it may hear news of the old one, which
/// name none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g24_news_of_a_history_that_has_ended_is_not_believed() {
    let engine = Engine::default();
    let (node, interest) = node_that_has_read(&engine, 5).await;
    let waits = ClusterWaits::new(&node).unwrap();
    let hears = Waker::from(Arc::new(Hears(engine.clone(), node.clone())));
    let mut wait = pin!(waits.wait_past(7, 5, LONG));
    let polled = wait.as_mut().poll(&mut Context::from_waker(&hears));
    assert!(polled.is_pending());
    engine.set(|it| it.lost = 1);
    node.read_again(&7);
    let stats = until(&node, |it| it.sessions == 2 && it.lag.is_zero()).await;
    assert_eq!((stats.heard, stats.resets), (1, 1));
    let trouble = stats.feed_trouble.expect("it ended");
    assert_eq!(trouble.word, "reset");
    assert!(trouble.cause.contains("another epoch"), "{trouble:?}");
    assert_eq!(interest.version(&7), 5);
}

/// Also if it is of a key that is watched no more, and comes behind news of this history: what it says holds for all.
#[tokio::test(start_paused = true)]
async fn g24_news_of_another_history_ends_the_session_whatever_its_key() {
    let engine = Engine::default();
    let (node, _interest) = node_that_has_read(&engine, 5).await;
    let news = [Epoch(1), ANEW.epoch].map(|epoch| Change {
        key: 9,
        version: 1,
        epoch: Some(epoch),
    });
    engine.set(|it| (it.lost, it.news) = (1, news.into()));
    engine.cut();
    let stats = until(&node, |it| it.sessions == 2 && it.lag.is_zero()).await;
    assert_eq!((stats.gaps, stats.resets), (1, 1));
}

/// When it is woken first, a client of this node has committed in the new history, to all keys.
struct Commits(Cluster<u64>, AtomicBool);

impl Wake for Commits {
    fn wake(self: Arc<Self>) {
        if !self.1.swap(true, Ordering::Relaxed) {
            (0..100).for_each(|key| {
                self.0
                    .announce_position(&key, Position { version: 5, ..ANEW })
            });
        }
    }
}

/// While those that wait are told of the loss one after the other, the first events of the new history come. Those that
/// are told later have not seen them either.
#[tokio::test(start_paused = true)]
async fn g24_a_wait_goes_on_from_the_beginning_of_the_new_history() {
    let engine = Engine::default();
    let (node, _interest) = node_that_has_read(&engine, 5).await;
    let waits = ClusterWaits::new(&node).unwrap();
    let commits = Waker::from(Arc::new(Commits(node.clone(), AtomicBool::default())));
    let mut context = Context::from_waker(&commits);
    let mut told: Vec<_> = (0..100).map(|key| waits.wait_past(key, 5, LONG)).collect();
    until(&node, |it| it.lag.is_zero()).await;
    for wait in &mut told {
        assert!(pin!(wait).poll(&mut context).is_pending());
    }
    engine.set(|it| it.lost = 1);
    node.read_again(&7);
    until(&node, |it| it.resets == 1).await;
    for wait in told {
        assert_eq!(wait.await, Err(WaitError::Reset(ANEW)));
    }
}

/// A session ends, and in the same moment a read shows that the store lost its data, which would have ended it. The next
/// session goes on.
#[tokio::test(start_paused = true)]
async fn g24_a_doubt_of_one_session_does_not_end_the_next() {
    let engine = Engine::default();
    let (node, _interest) = node_that_has_read(&engine, 5).await;
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
    // Nor does one end that finds a loss itself.
    engine.set(|it| it.lost = 2);
    engine.cut();
    sleep(LONG).await;
    let stats = node.stats();
    assert_eq!((stats.sessions, stats.gaps, stats.resets), (3, 2, 2));
}

/// While a slice of an audit is on its way, another read shows that the history is over; or the slice does. There is no
/// session that would begin another audit.
#[tokio::test(start_paused = true)]
async fn g24_an_audit_that_is_overtaken_by_a_loss_goes_on() {
    for is_overtaken in [true, false] {
        let engine = Engine::default();
        engine.set(|it| (it.refuses, it.version) = (true, 5));
        let node = engine.node();
        let interest = node.interest([7]).unwrap();
        until(&node, |_| interest.version(&7) == 5).await;
        engine.set(|it| it.gated = is_overtaken);
        if is_overtaken {
            until(&node, |_| engine.0.lock().unwrap().under_way == 1).await;
            node.read_again(&7);
        }
        engine.set(|it| (it.gated, it.lost) = (false, 1));
        until(&node, |it| it.resets == 1).await;
        engine.answer();
        sleep(FIRST).await;
        engine.set(|it| it.version = 6);
        until(&node, |_| interest.version(&7) == 6).await;
    }
}

/// A key whose first hash, on a thread that has asked for it, lasts as long as the test wants.
#[derive(Clone, PartialEq, Eq)]
struct Slow(u64);

thread_local! {
    static PAUSE: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

impl Hash for Slow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if let Some(pause) = PAUSE.take() {
            pause();
        }
        self.0.hash(state);
    }
}

/// The store loses its data while a commit is being announced: its version is none of the next history.
#[tokio::test(start_paused = true)]
async fn g24_an_announcement_stays_in_the_history_that_it_names() {
    let engine = MemoryEngine::new();
    engine.commit(Slow(7));
    let node = Cluster::start(engine.clone(), engine.clone(), Config::default()).unwrap();
    let interest = node.interest([Slow(7)]).unwrap();
    while interest.version(&Slow(7)) != 1 {
        sleep(FIRST).await;
    }
    let position = Position {
        epoch: node.epoch().expect("it was read"),
        version: 1_000,
    };
    let ((begun, has_begun), (go_on, told)) = (channel(), channel::<()>());
    let announcer = std::thread::spawn({
        let node = node.clone();
        move || {
            PAUSE.set(Some(Box::new(move || {
                begun.send(()).unwrap();
                told.recv().unwrap();
            })));
            node.announce_position(&Slow(7), position);
        }
    });
    has_begun.recv().unwrap();
    engine.flush();
    node.read_again(&Slow(7));
    while node.stats().resets == 0 {
        sleep(FIRST).await;
    }
    go_on.send(()).unwrap();
    announcer.join().unwrap();
    assert_eq!(interest.version(&Slow(7)), 0);
}

/// It ends waits at once, with a feed that tells nothing and no audit; of another history it is ignored, and where none
/// is known yet.
#[tokio::test(start_paused = true)]
async fn g24_an_announcement_ends_waits_of_its_history_and_of_no_other() {
    let unread = Engine::default().node();
    let interest = unread.interest([7]).unwrap();
    unread.announce_position(&7, Position { version: 6, ..ANEW });
    assert_eq!((interest.version(&7), unread.epoch()), (0, None));
    let engine = Engine::default();
    let (node, interest) = node_that_has_read(&engine, 5).await;
    let waits = ClusterWaits::new(&node).unwrap();
    let wait = waits.wait_past(7, 5, LONG);
    node.announce_position(&7, Position { version: 6, ..ANEW });
    assert_eq!(interest.version(&7), 5);
    let (epoch, version) = (Epoch(1), 6);
    node.announce_position(&7, Position { epoch, version });
    assert_eq!(timeout(FIRST, wait).await, Ok(Ok(6)));
    let wait = waits.wait_past(7, 6, LONG);
    node.announce(&7, 7);
    assert_eq!(timeout(FIRST, wait).await, Ok(Ok(7)));
    // Nothing comes after the last version there is.
    node.announce(&7, u64::MAX);
    let wait = waits.wait_past(7, u64::MAX, LONG);
    assert!(timeout(FIRST, wait).await.is_err());
}

/// An older copy takes over, which has nothing of the key.
#[tokio::test]
async fn g24_an_older_copy_in_memory_has_nothing_of_what_came_later() {
    let engine = MemoryEngine::new();
    let older = engine.backup();
    engine.commit(7);
    engine.restore(older);
    let reading = engine.versions(&[7]).await.unwrap();
    assert_eq!(reading.versions, [Some(0)]);
}

/// What is heard after a loss names the history that it is of. No audit helps.
#[tokio::test(start_paused = true)]
async fn g24_the_first_event_in_memory_after_a_loss_ends_the_waits_before_it() {
    let engine = MemoryEngine::new();
    engine.commit(7);
    let config = Config {
        audit: LONG * 100,
        ..Config::default()
    };
    let node = Cluster::start(engine.clone(), engine.clone(), config).unwrap();
    let waits = ClusterWaits::new(&node).unwrap();
    let wait = waits.wait_past(7, 1, Duration::MAX);
    until(&node, |it| it.sessions == 1 && it.lag.is_zero()).await;
    // The second loss does not bring the first history back.
    engine.flush();
    engine.flush();
    let anew = Position {
        version: 0,
        ..engine.commit(7)
    };
    let told = timeout(LONG, wait).await;
    assert_eq!(told, Ok(Err(WaitError::Reset(anew))));
}

/// Waits for a version of key 7, and tells whether the history has ended before.
struct Fetch(Interest<u64>, u64, Sender<bool>);

impl DelayedOperation for Fetch {
    type Key = u64;

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn try_complete(&mut self) -> bool {
        self.0.version(&7) >= self.1 || self.0.is_reset()
    }

    fn on_complete(self, _: Completion) {
        let _ = self.2.send(self.0.is_reset());
    }
}

/// Each at the rank of its version: what grows ends those up to there, and a loss ends the others. The end of the node
/// is not that of the purgatory.
#[tokio::test(start_paused = true)]
async fn g24_operations_of_a_purgatory_are_told_of_versions_and_of_a_loss() {
    let engine = Engine::default();
    let node = engine.node();
    let purgatory = Purgatory::<Fetch>::new("fetch");
    node.attach(&purgatory);
    let (told, ended) = channel();
    for version in [5, 6, 100] {
        let fetch = Fetch(node.interest([7]).unwrap(), version, told.clone());
        let watch = Watch::from(7).at_rank(version);
        purgatory.try_complete_else_watch(fetch, [watch]).unwrap();
    }
    for (version, lost, parked, is_reset) in [(5, 0, 2, false), (6, 0, 1, false), (6, 1, 0, true)] {
        engine.set(|it| (it.version, it.lost) = (version, lost));
        until(&node, |_| purgatory.stats().parked == parked).await;
        assert_eq!(ended.recv(), Ok(is_reset));
    }
    // An interest that begins after the loss is not told of it.
    assert!(!node.interest([7]).unwrap().is_reset());
    node.shutdown();
    assert!(!purgatory.is_shut_down());
}
