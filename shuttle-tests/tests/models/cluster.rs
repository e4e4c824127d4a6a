//! G24 within one node, on random schedules: interests begin and end on several threads, the last one of a key on a
//! thread that completes an operation, while the linger of the key is over and versions are reached.
//!
//! Each step of the driver takes a millisecond, and so does the linger. (Orders
//! out of step are too rare here; the simulation of the cluster's tests shows them.)

use request_purgatory::{Purgatory, threads::Dispatch, threads::Reaper, time::ManualClock};
use request_purgatory_cluster::model::{
    Doubt, Next, Protocol, Rule, Rules, Table, Tell, attach, enter, hear, wait_past,
    wait_past_position,
};
use request_purgatory_cluster::{Change, Config, Epoch, Interest, Position, Reading};
use shuttle::sync::Mutex;
use shuttle::thread;
use shuttle_tests::{explore, lock};
use std::future::Future;
use std::panic::catch_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const KEY: u8 = 7;
const EPOCH: Epoch = Epoch(1);
const COMMITS: u64 = 1;
const STEP: Duration = Duration::from_millis(1);

type Waits = request_purgatory::Waits<u8>;

/// The store, and what it has told the node.
#[derive(Default)]
struct Store {
    version: u64,
    is_watched: bool,
    told: Vec<u64>,
}

#[derive(Clone)]
struct Node {
    table: Arc<Table<u8>>,
    waits: Waits,
    store: Arc<Mutex<Store>>,
    rules: Rules,
}

impl Node {
    fn new(rules: Rules) -> Self {
        let waits: Waits = Purgatory::builder("shuttle")
            .clock(ManualClock::new())
            .reaper(Reaper::Manual)
            .dispatch(Dispatch::Inline)
            .build()
            .expect("the settings are sound");
        let table = Arc::new(Table::new(10, 10, rules, || {}));
        attach(&table, &waits);
        Self {
            table,
            waits,
            store: Arc::default(),
            rules,
        }
    }

    fn session(&self) -> Protocol<u8> {
        let config = Config {
            linger: STEP,
            rules: self.rules,
            ..Config::default()
        };
        let mut protocol = Protocol::new(self.table.clone(), &config, Duration::ZERO);
        enter(&self.table, EPOCH, 0).expect("it is the first");
        protocol.begin(true, Duration::ZERO);
        protocol
    }

    /// Does one thing that the session asks for, or tells it one. `false`: there was nothing.
    fn step(&self, session: &mut Protocol<u8>, now: &mut Duration) -> bool {
        *now += STEP;
        let now = *now;
        if self.read(session, now) {
            return true;
        }
        session.tend(now);
        match session.next_tell() {
            Some(Tell::Watch(keys)) => {
                // What was ordered to be read meanwhile is read first.
                self.read(session, now);
                thread::yield_now();
                lock(&self.store).is_watched = true;
                session.watched(keys, now);
                return true;
            }
            Some(Tell::Unwatch(_)) => {
                lock(&self.store).is_watched = false;
                return true;
            }
            None => {}
        }
        let told = lock(&self.store).told.pop();
        if let Some(version) = told {
            let change = Change {
                key: KEY,
                version,
                epoch: None,
            };
            hear(&self.table, 0, &[change]).expect("the store is sound");
        }
        told.is_some()
    }

    /// Reads what there is to read.
    fn read(&self, session: &mut Protocol<u8>, now: Duration) -> bool {
        let Next::Do(ticket) = session.next_read(now).expect("no audit is due") else {
            return false;
        };
        let version = lock(&self.store).version;
        thread::yield_now();
        let reading = Reading {
            epoch: EPOCH,
            versions: vec![Some(version); ticket.keys.len()],
            head: None,
            floor: None,
        };
        let applied = ticket.apply(&self.table, &reading);
        session.read(applied, now).expect("the store is sound");
        true
    }

    /// Until nothing is left to do.
    fn finish(&self, session: &mut Protocol<u8>, now: &mut Duration) {
        let mut idle = 0;
        // A linger may be over with a later step.
        while idle < 4 {
            idle = if self.step(session, now) { 0 } else { idle + 1 };
        }
    }

    fn commit(&self) {
        let mut store = lock(&self.store);
        store.version += 1;
        let version = store.version;
        if store.is_watched {
            store.told.push(version);
        }
    }

    fn wait(&self, seen: u64) -> impl Future<Output = Option<u64>> + Unpin + Send + use<> {
        let interest = Interest::new(&self.table, [KEY]).expect("there is room");
        let wait = wait_past(interest, &self.waits, seen, Duration::MAX);
        Box::pin(async move { wait.await.ok() })
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn play(rules: Rules) {
    let node = Node::new(rules);
    let driver = thread::spawn({
        let node = node.clone();
        move || {
            let (mut session, mut now) = (node.session(), Duration::ZERO);
            for _ in 0..16 {
                node.step(&mut session, &mut now);
                thread::yield_now();
            }
            (session, now)
        }
    });
    let commits = thread::spawn({
        let node = node.clone();
        move || (0..COMMITS).for_each(|_| node.commit())
    });
    // One client gives up and comes again, and then waits past all that was committed; the other's operation ends, and
    // its interest with it, wherever the version is reached.
    let restless = thread::spawn({
        let node = node.clone();
        move || {
            drop(node.wait(0));
            thread::yield_now();
            drop(node.wait(0));
            thread::yield_now();
            let seen = lock(&node.store).version;
            let wait = node.wait(seen);
            (0..3).for_each(|_| thread::yield_now());
            node.commit();
            wait
        }
    });
    let patient = thread::spawn({
        let node = node.clone();
        move || node.wait(0)
    });
    let (mut session, mut now) = driver.join().unwrap();
    commits.join().unwrap();
    let mut waits = [restless.join().unwrap(), patient.join().unwrap()];
    node.finish(&mut session, &mut now);
    for wait in &mut waits {
        let Poll::Ready(Some(version)) = poll(wait) else {
            panic!("a wait for a committed version has not ended");
        };
        assert!((1..=COMMITS + 1).contains(&version));
    }
    drop(waits);
    node.finish(&mut session, &mut now);
    assert_eq!(
        node.table.watched_keys(),
        0,
        "every key is forgotten in the end"
    );
    assert!(!lock(&node.store).is_watched, "and its watch has ended");
}

/// On some of many schedules.
fn loses(scenario: fn()) {
    let has_lost = (0..50).any(|_| catch_unwind(|| explore(scenario)).is_err());
    assert!(has_lost, "it has lost no wait");
}

#[test]
fn g24_interest_linger_and_reached_lose_no_wait() {
    explore(|| play(Rules::default()));
}

/// The store loses its data, and again, while threads are still telling the keys of the histories before: in the end
/// every key is in the last one, and versions of that are believed.
#[test]
fn g24_a_history_that_is_over_does_not_come_back() {
    explore(|| {
        let table = Node::new(Rules::default()).table;
        let interest = Interest::new(&table, [KEY]).expect("there is room");
        let threads = (1..=3).map(|epoch| {
            let table = table.clone();
            thread::spawn(move || match table.history() {
                history if epoch == 1 || history.epoch.is_none() => _ = table.adopt(Epoch(epoch)),
                history => _ = table.reset(Epoch(epoch), history),
            })
        });
        let threads = threads.collect::<Vec<_>>();
        threads.into_iter().for_each(|it| it.join().unwrap());
        let history = table.history();
        let change = Change {
            key: KEY,
            version: 5,
            epoch: history.epoch,
        };
        hear(&table, history.generation, &[change]).expect("it is of this history");
        assert_eq!(
            interest.position(&KEY).map(|it| (it.epoch, it.version)),
            history.epoch.map(|it| (it, 5))
        );
    });
}

/// The first session tells the history while the first interest in a key begins.
#[test]
fn g24_a_key_that_comes_meanwhile_is_in_the_history() {
    explore(|| {
        let table = Node::new(Rules::default()).table;
        let session = thread::spawn({
            let table = table.clone();
            move || table.adopt(EPOCH)
        });
        let interest = Interest::new(&table, [KEY]).expect("there is room");
        assert!(session.join().unwrap(), "no other history is known");
        let position = interest.position(&KEY).map(|it| it.epoch);
        assert_eq!(position, Some(EPOCH));
    });
}

/// A node begins: at the same time its first session finds [`EPOCH`], and its first read finds version 5 of the key in
/// `epoch`. Returns what the session has entered.
fn find_twice(table: &Arc<Table<u8>>, epoch: Epoch) -> Result<u64, Doubt> {
    let mut protocol = Protocol::new(table.clone(), &Config::default(), Duration::ZERO);
    protocol.tend(Duration::ZERO);
    let next = protocol.next_read(Duration::ZERO);
    let Ok(Next::Do(ticket)) = next else {
        panic!("the key is to be read: {next:?}");
    };
    let session = thread::spawn({
        let table = table.clone();
        move || enter(&table, EPOCH, 0)
    });
    let reading = Reading {
        epoch,
        versions: vec![Some(5)],
        head: None,
        floor: None,
    };
    ticket.apply(table, &reading);
    session.join().unwrap()
}

/// The store loses its data meanwhile, so these are two histories: versions of the one do not become marks in the other.
#[test]
fn g24_the_versions_of_one_history_are_no_marks_of_another() {
    explore(|| {
        let table = Node::new(Rules::default()).table;
        let interest = Interest::new(&table, [KEY]).expect("there is room");
        let entered = find_twice(&table, Epoch(2));
        let position = interest.position(&KEY).expect("a history is known");
        assert!(
            position.version == 0 || position.epoch == Epoch(2),
            "{position:?}"
        );
        assert!(entered.is_err() || position.epoch == EPOCH, "{position:?}");
    });
}

/// They are one history: a client that comes with a position of it has lost nothing.
#[test]
fn g24_a_history_that_is_found_twice_at_once_is_no_loss() {
    explore(|| {
        let node = Node::new(Rules::default());
        let interest = Interest::new(&node.table, [KEY]).expect("there is room");
        let seen = Position {
            epoch: EPOCH,
            version: 4,
        };
        let mut wait = wait_past_position(interest, &node.waits, seen, Duration::MAX);
        assert_eq!(find_twice(&node.table, EPOCH), Ok(0));
        let found = Position { version: 5, ..seen };
        assert_eq!(poll(&mut wait), Poll::Ready(Ok(found)));
    });
}

/// It comes while the node is shut down, on another thread.
#[test]
fn g24_a_purgatory_that_comes_during_the_shutdown_is_shut_down() {
    explore(|| {
        let [node, other] = [(); 2].map(|()| Node::new(Rules::default()));
        let (table, late) = (node.table, other.waits);
        let closes = thread::spawn({
            let table = table.clone();
            move || table.close()
        });
        attach(&table, &late);
        closes.join().unwrap();
        assert!(late.is_shut_down());
    });
}

#[test]
fn without_another_look_before_forgetting() {
    loses(|| play(Rules::default().without(Rule::LookAgain)));
}

#[test]
fn with_the_check_before_the_mark() {
    loses(|| play(Rules::default().without(Rule::MarkBeforeCheck)));
}

#[test]
fn with_the_read_before_the_watch() {
    loses(|| play(Rules::default().without(Rule::ReadAfterWatch)));
}
