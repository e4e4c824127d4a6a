//! What the protocol does without a driver.

use super::*;
use crate::interest::Interest;
use crate::position::Position;
use crate::source::Reading;
use crate::sync::Mutex;
use crate::table::Waiting;

/// The protocol of a node that has just started, at time zero, and its table.
fn started(config: &Config) -> (Arc<Table<u64>>, Protocol<u64>) {
    let table = Arc::new(Table::new(100, 100, config.rules, || {}));
    let protocol = Protocol::new(table.clone(), config, Duration::ZERO);
    (table, protocol)
}

/// One key at the first version of the first history.
fn first_version() -> Reading {
    Reading {
        epoch: Epoch(1),
        versions: vec![Some(1)],
        head: None,
        floor: None,
    }
}

/// The store cannot be read, and keys come and go in a session that watches them.
#[test]
fn g24_what_is_to_be_read_holds_no_key_that_is_forgotten() {
    let config = Config {
        linger: Duration::ZERO,
        settle: Duration::MAX,
        ..Config::default()
    };
    let mut now = Duration::ZERO;
    let (table, mut protocol) = started(&config);
    protocol.begin(false, now);
    let stays = table.enter(&0).expect("there is room");
    for key in 1..1_000_u64 {
        let entry = table.enter(&key).expect("there is room");
        protocol.tend(now);
        let in_flight = match protocol.next_read(now) {
            Ok(Next::Do(ticket)) => Some(ticket),
            _ => None,
        };
        let keys = to_watch(&mut protocol);
        // Every other key is forgotten before the feed watches it.
        if key % 2 == 0 {
            protocol.watched(keys.clone(), now);
        }
        table.leave(&key, &entry);
        now += Duration::from_millis(1);
        protocol.tend(now);
        if key % 2 == 1 {
            protocol.watched(keys, now);
        }
        if let Some(ticket) = in_flight {
            protocol.read(ticket.fail(), now).expect("it only fails");
        }
        while protocol.next_tell().is_some() {}
    }
    let settles = std::iter::from_fn(|| protocol.to_settle.pop());
    assert_eq!(settles.map(|(key, _)| key).collect::<Vec<_>>(), [0]);
    let reads = std::iter::from_fn(|| protocol.to_read.pop());
    assert_eq!(reads.map(|(key, _)| key).collect::<Vec<_>>(), [0]);
    table.leave(&0, &stays);
}

/// A session owes no read of a key that was forgotten before the feed watched it, before it could be made, or before it
/// failed.
#[test]
fn g24_a_session_is_live_when_what_it_owes_is_forgotten() {
    for (is_watched, is_under_way) in [(false, false), (true, false), (true, true)] {
        let config = Config {
            linger: Duration::ZERO,
            ..Config::default()
        };
        let now = Duration::ZERO;
        let (table, mut protocol) = started(&config);
        let entry = table.enter(&7_u64).expect("there is room");
        protocol.begin(true, now);
        let keys = to_watch(&mut protocol);
        if is_watched {
            protocol.watched(keys.clone(), now);
        }
        let read = is_under_way.then(|| match protocol.next_read(now) {
            Ok(Next::Do(ticket)) => ticket,
            other => panic!("the session reads what it owes: {other:?}"),
        });
        assert_eq!(protocol.live_since(), None);
        table.leave(&7, &entry);
        protocol.tend(now);
        if !is_watched {
            protocol.watched(keys, now);
        }
        if let Some(ticket) = read {
            protocol.read(ticket.fail(), now).expect("it only fails");
        }
        let is_live = protocol.live_since() == Some(now);
        assert!(is_live, "{is_watched} {is_under_way}");
    }
}

/// One read serves two reasons: a session owes it, and a client names a version that is to be verified; or the session
/// before has owed it as well, and its own read fails late.
#[test]
fn g24_a_session_is_live_when_what_it_owes_is_read_for_another_reason_too() {
    for is_cut in [false, true] {
        let (config, now) = (Config::default(), Duration::ZERO);
        let (table, mut protocol) = started(&config);
        let begin = |protocol: &mut Protocol<u64>| {
            protocol.begin(true, now);
            let keys = to_watch(protocol);
            protocol.watched(keys, now);
        };
        let entry = table.enter(&7_u64).expect("there is room");
        // Before the session, too, it is to be read.
        protocol.tend(now);
        begin(&mut protocol);
        table.verify(&7);
        protocol.tend(now);
        let Ok(Next::Do(ticket)) = protocol.next_read(now) else {
            panic!("the session reads what was watched before");
        };
        assert_eq!(ticket.keys, [7]);
        if is_cut {
            protocol.end();
            begin(&mut protocol);
        }
        protocol.read(ticket.fail(), now).expect("it only fails");
        assert_eq!(protocol.live_since(), None);
        let later = 2 * config.backoff.1;
        let Ok(Next::Do(ticket)) = protocol.next_read(later) else {
            panic!("what could not be read is read again");
        };
        let applied = ticket.apply(&table, &first_version());
        protocol.read(applied, later).expect("nothing is lost");
        assert_eq!(protocol.live_since(), Some(later), "{is_cut}");
        // Of what it found, the feed had no chance to tell.
        assert_eq!(entry.known().heard, 1, "{is_cut}");
    }
}

/// What a later session watches again settles later, and keeps no other key from being read once more: all of them at
/// once.
#[test]
fn g24_a_key_that_is_watched_again_delays_no_other() {
    let config = Config::default();
    let (now, later) = (Duration::ZERO, config.settle / 2);
    let (table, mut protocol) = started(&config);
    let _entries = [1_u64, 2, 3].map(|key| table.enter(&key));
    protocol.begin(false, now);
    protocol.watched(vec![1, 2, 3], now);
    protocol.watched(vec![1], later);
    let mut read = |now| {
        while let Ok(Next::Do(ticket)) = protocol.next_read(now) {
            if ticket.keys == [2, 3] {
                return true;
            }
        }
        false
    };
    assert!(!read(later) && read(config.settle));
}

/// Reads that were on their way together fail of one cause: the next comes after the first pause. Until they have failed
/// there are no more of them, though an audit is due. When all keys are forgotten the history alone is read; that asks
/// for no session either.
#[test]
fn g24_reads_that_fail_together_pause_as_one() {
    let config = Config {
        read_batch: 1,
        concurrent_reads: 8,
        linger: Duration::ZERO,
        ..Config::default()
    };
    let now = Duration::ZERO;
    let (table, mut protocol) = started(&config);
    let entries = [0_u64, 1, 2, 3, 4, 5, 6, 7].map(|key| (key, table.enter(&key)));
    protocol.tend(now);
    let tickets = [(); 8].map(|()| match protocol.next_read(now) {
        Ok(Next::Do(ticket)) => ticket,
        other => panic!("a read for each key: {other:?}"),
    });
    let full = protocol.next_read(2 * config.audit);
    assert!(matches!(full, Ok(Next::Wait(None))), "{full:?}");
    for ticket in tickets {
        protocol.read(ticket.fail(), now).expect("it only fails");
    }
    let later = config.backoff.0;
    let Ok(Next::Do(again)) = protocol.next_read(later) else {
        panic!("the first pause is over");
    };
    for (key, entry) in entries {
        table.leave(&key, &entry.expect("there is room"));
    }
    protocol.tend(later);
    protocol.read(again.fail(), later).expect("it only fails");
    let last = protocol.next_read(later + config.backoff.1);
    assert!(matches!(last, Ok(Next::Do(ticket)) if ticket.keys.is_empty()));
}

/// Of each pause a part of up to half is left out by chance.
#[test]
fn g24_nodes_that_lost_an_engine_do_not_come_back_together() {
    let second = Duration::from_secs(1);
    let config = Config {
        backoff: (second, 8 * second),
        ..Config::default()
    };
    for (failed, whole) in [
        (0, 1),
        (1, 2),
        (2, 4),
        (3, 8),
        (4, 8),
        (32, 8),
        (u32::MAX, 8),
    ] {
        let whole = whole * second;
        let pauses = (0..32).map(|_| pause(&config, failed));
        let mut pauses = pauses.collect::<Vec<_>>();
        pauses.sort_unstable();
        assert!(pauses[0] >= whole / 2 && pauses[31] <= whole);
        assert!(pauses[31] - pauses[0] > whole / 8, "{pauses:?}");
    }
    // The longest is the longest, also where the first is longer.
    let config = Config {
        backoff: (8 * second, second),
        ..config
    };
    assert!(pause(&config, 0) <= second);
}

/// The first read of a node is slow. Meanwhile the store loses its data, and a session adopts the history that follows:
/// which of the two is later, the slow answer does not say.
#[test]
fn g24_a_slow_first_read_does_not_bring_back_an_earlier_history() {
    let (config, now) = (Config::default(), Duration::ZERO);
    let (table, mut protocol) = started(&config);
    let _entry = table.enter(&7).expect("there is room");
    protocol.tend(now);
    let Ok(Next::Do(slow)) = protocol.next_read(now) else {
        panic!("what is watched is read at once");
    };
    let entered = enter(&table, Epoch(2), table.history().generation);
    assert_eq!(entered, Ok(0));
    let applied = slow.apply(&table, &first_version());
    protocol.read(applied, now).expect("it is only late");
    assert_eq!(table.history().epoch, Some(Epoch(2)));
    assert_eq!(table.counters.resets.read(), 0);
    let Ok(Next::Do(again)) = protocol.next_read(now) else {
        panic!("what the slow read did not show is read again");
    };
    assert_eq!(again.keys, [7]);
}

/// A node that announces what it commits is told of it by the feed afterwards.
#[test]
fn g24_what_is_known_counts_as_heard() {
    let (table, _protocol) = started(&Config::default());
    let _entry = table.enter(&0).expect("there is room");
    let change = |key| Change {
        key,
        version: 1,
        epoch: None,
    };
    for _ in 0..2 {
        // Behind one of a key that is not watched, and one of its own.
        let told = [change(1), change(0), change(0)];
        assert!(hear(&table, table.history().generation, &told).is_ok());
    }
    assert_eq!(table.counters.heard.read(), 4, "of the watched key");
}

/// Neither the keys that a session takes over nor those that come later are told the feed in one piece.
#[test]
fn g24_the_feed_is_told_of_no_more_keys_at_once_than_the_setting_says() {
    let config = Config {
        read_batch: 10,
        ..Config::default()
    };
    let now = Duration::ZERO;
    let (table, mut protocol) = started(&config);
    let enter = |key: u64| table.enter(&key).expect("there is room");
    let _taken_over = (0..25).map(enter).collect::<Vec<_>>();
    protocol.begin(true, now);
    let _later = (25..50).map(enter).collect::<Vec<_>>();
    protocol.tend(now);
    let told = std::iter::from_fn(|| match protocol.next_tell()? {
        Tell::Watch(keys) => Some(keys.len()),
        Tell::Unwatch(keys) => panic!("{keys:?} are watched"),
    });
    assert_eq!(told.collect::<Vec<_>>(), [10, 10, 5, 10, 10, 5]);
    let session = protocol.session.expect("it goes on");
    assert_eq!(session.inherited.capacity(), 0, "of those that were told");
}

/// A session takes over more keys than it tells the feed of at once, and the one that is still to be told is forgotten,
/// comes again and is forgotten again: its watch does not begin after its end, or without one, or it would last as long
/// as the session.
#[test]
fn g24_a_key_that_is_forgotten_while_a_session_takes_it_over_is_watched_no_more() {
    let config = Config {
        read_batch: 1,
        linger: Duration::ZERO,
        ..Config::default()
    };
    let now = Duration::ZERO;
    let (table, mut protocol) = started(&config);
    let entries = [0_u64, 1].map(|key| table.enter(&key).expect("there is room"));
    protocol.begin(true, now);
    let first = to_watch(&mut protocol);
    // Which of the two comes first is left to chance.
    let last = 1 - first[0];
    table.leave(&last, &entries[last as usize]);
    protocol.tend(now);
    let again = table.enter(&last).expect("there is room");
    protocol.tend(now);
    table.leave(&last, &again);
    protocol.tend(now);
    protocol.watched(first, now);
    let told = std::iter::from_fn(|| protocol.next_tell());
    assert_eq!(
        told.collect::<Vec<_>>(),
        [Tell::Watch(vec![last]), Tell::Unwatch(vec![last])]
    );
}

/// While a session still watches what it has taken over, a key that comes is read without waiting for its turn.
#[test]
fn g24_a_key_that_comes_while_a_session_catches_up_is_read_at_once() {
    let (config, now) = (Config::default(), Duration::ZERO);
    let (table, mut protocol) = started(&config);
    let _before = table.enter(&1).expect("there is room");
    protocol.begin(true, now);
    let _comes = table.enter(&2).expect("there is room");
    protocol.tend(now);
    let Ok(Next::Do(read)) = protocol.next_read(now) else {
        panic!("what is not watched at once is read at once");
    };
    assert_eq!(read.keys, [1, 2]);
}

/// Begins a read when it is checked, and keeps it.
struct Reads {
    protocol: Mutex<Protocol<u64>>,
    begun: Mutex<Option<Ticket<u64>>>,
}

impl Waiting<u64> for Reads {
    fn check(&self, _: &u64, _: u64) -> bool {
        if let Ok(Next::Do(ticket)) = self.protocol.lock().next_read(Duration::ZERO) {
            *self.begun.lock() = Some(ticket);
        }
        true
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn shut_down(&self) {}
}

/// While those that wait are told of a loss, key after key, a read begins: what was known of the keys whose turn has not
/// come is of the history before, and shows no loss of the next one.
#[test]
fn g24_a_read_that_begins_as_a_history_ends_shows_no_second_loss() {
    let (config, now) = (Config::default(), Duration::ZERO);
    let (table, mut protocol) = started(&config);
    assert_eq!(enter(&table, Epoch(1), 0), Ok(0));
    let _entries = (0..100).map(|key| table.enter(&key)).collect::<Vec<_>>();
    let told = (0..100).map(|key| Change {
        key,
        version: 5,
        epoch: None,
    });
    hear(&table, 0, &told.collect::<Vec<_>>()).expect("it is of this history");
    protocol.tend(now);
    let reads = Arc::new(Reads {
        protocol: Mutex::new(protocol),
        begun: Mutex::default(),
    });
    table.attach(reads.clone());
    assert_eq!(enter(&table, Epoch(2), 0), Ok(1));
    let ticket = reads.begun.lock().take().expect("it began with a check");
    let reading = Reading {
        epoch: Epoch(2),
        versions: vec![Some(1); ticket.keys.len()],
        ..first_version()
    };
    let applied = ticket.apply(&table, &reading);
    let read = reads.protocol.lock().read(applied, now);
    assert_eq!((read, table.counters.resets.read()), (Ok(()), 1));
}

/// Looks up all of its keys when one is checked.
struct Looks {
    interest: Interest<u64>,
    found: Mutex<Vec<Position>>,
}

impl Waiting<u64> for Looks {
    fn check(&self, _: &u64, _: u64) -> bool {
        let found = (0..100).filter_map(|key| self.interest.position(&key));
        self.found.lock().extend(found);
        true
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn shut_down(&self) {}
}

/// While a history ends, key after key, a version stands beside the history that it is of.
#[test]
fn g24_a_position_is_of_one_history() {
    let (table, _protocol) = started(&Config::default());
    assert_eq!(enter(&table, Epoch(1), 0), Ok(0));
    let looks = Arc::new(Looks {
        interest: Interest::new(&table, 0..100).expect("there is room"),
        found: Mutex::default(),
    });
    let told = (0..100).map(|key| Change {
        key,
        version: 5,
        epoch: None,
    });
    hear(&table, 0, &told.collect::<Vec<_>>()).expect("it is of this history");
    table.attach(looks.clone());
    assert_eq!(enter(&table, Epoch(2), 0), Ok(1));
    let found = looks.found.lock();
    let before = |it: &&Position| it.epoch == Epoch(1);
    assert!((1..found.len()).contains(&found.iter().filter(before).count()));
    for Position { epoch, version } in &*found {
        assert_eq!(*version == 5, *epoch == Epoch(1), "{version} of {epoch:?}");
    }
}

/// The keys that the feed is to watch now.
fn to_watch(protocol: &mut Protocol<u64>) -> Vec<u64> {
    match protocol.next_tell() {
        Some(Tell::Watch(keys)) => keys,
        other => panic!("there are keys to watch, and no {other:?}"),
    }
}

/// The next read, at the time at which it begins.
fn next_read(protocol: &mut Protocol<u64>, now: &mut Time) -> Ticket<u64> {
    loop {
        match protocol.next_read(*now) {
            Ok(Next::Do(ticket)) => return ticket,
            Ok(Next::Wait(Some(later))) => *now = later,
            other => panic!("the session goes on: {other:?}"),
        }
    }
}

/// A read of one key finds this version.
fn finds(protocol: &mut Protocol<u64>, ticket: Ticket<u64>, version: u64, now: Time) {
    let reading = Reading {
        versions: vec![Some(version)],
        ..first_version()
    };
    let table = protocol.table.clone();
    let applied = ticket.apply(&table, &reading);
    protocol.read(applied, now).expect("nothing is lost");
}

/// A session watches what it has taken over for longer than many audits take. What these find, it had no chance to hear.
#[test]
fn g24_what_audits_find_before_a_session_is_live_is_no_fault_of_it() {
    let (config, mut now) = (Config::default(), Duration::ZERO);
    let (table, mut protocol) = started(&config);
    let _entry = table.enter(&7).expect("there is room");
    protocol.begin(true, now);
    for version in 1..=10 {
        let ticket = next_read(&mut protocol, &mut now);
        finds(&mut protocol, ticket, version, now);
    }
    assert!(now > 5 * config.audit && protocol.live_since().is_none());
}

/// All of it, and by reads that began after it was watched in this session. One that the session before has owed, and
/// that returns late, is none of these.
#[test]
fn g24_a_session_is_live_when_all_that_it_owes_was_read() {
    let config = Config {
        read_batch: 1,
        ..Config::default()
    };
    let mut now = Duration::ZERO;
    let (table, mut protocol) = started(&config);
    let _entries = [7, 8].map(|key| table.enter(&key));
    let begin = |protocol: &mut Protocol<u64>| {
        protocol.begin(true, Duration::ZERO);
        while let Some(Tell::Watch(keys)) = protocol.next_tell() {
            protocol.watched(keys, Duration::ZERO);
        }
    };
    begin(&mut protocol);
    let late = [(); 2].map(|()| next_read(&mut protocol, &mut now));
    protocol.end();
    begin(&mut protocol);
    for ticket in late {
        finds(&mut protocol, ticket, 1, now);
        assert_eq!(protocol.live_since(), None, "of the session before");
    }
    for is_last in [false, true] {
        let ticket = next_read(&mut protocol, &mut now);
        finds(&mut protocol, ticket, 1, now);
        assert_eq!(protocol.live_since().is_some(), is_last);
    }
}

/// A read that the session before has owed is still to be made when its key is forgotten: the next session owes no less
/// for that.
#[test]
fn g24_what_the_session_before_owed_is_not_taken_off_the_next() {
    let config = Config {
        linger: Duration::ZERO,
        ..Config::default()
    };
    let mut now = Duration::ZERO;
    let (table, mut protocol) = started(&config);
    let [forgotten, _stays] = [7, 8].map(|key| table.enter(&key).expect("there is room"));
    let begin = |protocol: &mut Protocol<u64>| {
        protocol.begin(true, Duration::ZERO);
        assert_eq!(to_watch(protocol).len(), 2);
    };
    begin(&mut protocol);
    protocol.watched(vec![7], now);
    protocol.end();
    begin(&mut protocol);
    table.leave(&7, &forgotten);
    protocol.tend(now);
    protocol.watched(vec![8], now);
    let ticket = next_read(&mut protocol, &mut now);
    assert_eq!(ticket.keys, [8]);
    finds(&mut protocol, ticket, 1, now);
    assert_eq!(protocol.live_since(), None, "the feed still watches 7");
    protocol.watched(vec![7], now);
    assert_eq!(protocol.live_since(), Some(now));
}

/// A read of an audit began in one session and returns in the next, which has not caught up: what it found is no fault
/// of that one, and so the next fault is the first.
#[test]
fn g24_what_an_audit_of_the_session_before_finds_is_no_fault_of_the_next() {
    let (config, mut now) = (Config::default(), Duration::ZERO);
    let (table, mut protocol) = started(&config);
    let _entry = table.enter(&7).expect("there is room");
    let catch_up = |protocol: &mut Protocol<u64>, version, now: &mut Time| {
        let keys = to_watch(protocol);
        protocol.watched(keys, *now);
        let ticket = next_read(protocol, now);
        finds(protocol, ticket, version, *now);
        assert!(protocol.live_since().is_some());
    };
    protocol.begin(true, now);
    catch_up(&mut protocol, 1, &mut now);
    let audit = next_read(&mut protocol, &mut now);
    protocol.end();
    protocol.begin(true, now);
    finds(&mut protocol, audit, 2, now);
    // It would be looked at once more.
    now += config.settle;
    assert!(protocol.next_read(now).is_ok());
    catch_up(&mut protocol, 2, &mut now);
    let audit = next_read(&mut protocol, &mut now);
    finds(&mut protocol, audit, 3, now);
    now += config.settle;
    let next = protocol.next_read(now);
    assert!(next.is_ok(), "{next:?}");
}
