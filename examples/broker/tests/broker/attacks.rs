//! Clients that want to harm. Whatever they do together, the broker stays below 200 MB, and a client that behaves is
//! answered soon.
//!
//! `ATTACK_TIMES` makes the attacks that many times as long: `.ci/attack` runs them at full length. The figures go to
//! stdout (`--nocapture`).

use crate::process::Broker;
use crate::requests::{Fetch, create_topic, metadata_body, offset_at, produce, produce_to};
use crate::wire::{Connection, FETCH, METADATA, batch, frame};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Most memory that the broker may have in use.
const MEMORY: u64 = 200_000_000;

/// How long the innocent client may wait for 99 of 100 answers, where this machine does nothing else.
const PROMPT: Duration = Duration::from_millis(50);

/// How long an attack goes on in the gate.
const SHORT: Duration = Duration::from_secs(4);

fn times() -> Option<u32> {
    let times = std::env::var("ATTACK_TIMES").ok()?;
    Some(times.parse().expect("ATTACK_TIMES is a number"))
}

/// What a thread of an attacker knows.
struct Attack<'a> {
    broker: SocketAddr,
    over: &'a AtomicBool,
    /// What it did, so that an attack that does nothing is no test.
    done: &'a AtomicU64,
}

impl Attack<'_> {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection whose calls never block for long. `None` if the broker does not take one now.
    fn connect(&self) -> Option<TcpStream> {
        let socket = TcpStream::connect_timeout(&self.broker, Duration::from_secs(1)).ok()?;
        socket
            .set_write_timeout(Some(Duration::from_millis(100)))
            .expect("not zero");
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .expect("not zero");
        Some(socket)
    }

    /// Sends as much of `bytes` as the broker takes. False if it closed the connection, or the attack is over.
    fn send(&self, socket: &mut TcpStream, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() && self.goes_on() {
            match socket.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return false,
            }
        }
        bytes.is_empty()
    }
}

/// Lets `attackers` threads attack, while a client produces, fetches and asks for an offset. Checks memory all along,
/// and how long that client waited.
fn under_attack(name: &str, attackers: usize, attack: impl Fn(Attack<'_>) + Sync) {
    let broker = Broker::start();
    let mut innocent = Connection::open(broker.address());
    create_topic(&mut innocent, "innocent", 1);
    create_topic(&mut innocent, "big", 1);
    for _ in 0..8 {
        let records = batch(&[&vec![0; 2 << 20]]);
        assert_eq!(produce_to(&mut innocent, 1, "big", 0, &records).error, 0);
    }
    let length = SHORT * times().unwrap_or(1);
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut waits = Vec::new();
    let mut most = 0;
    thread::scope(|scope| {
        for _ in 0..attackers {
            let attacker = Attack {
                broker: broker.address(),
                over: &over,
                done: &done,
            };
            scope.spawn(|| attack(attacker));
        }
        let begun = Instant::now();
        let mut offset = 0;
        while begun.elapsed() < length {
            let sent = Instant::now();
            assert_eq!(
                produce(&mut innocent, "innocent", b"value").base_offset,
                offset
            );
            offset += 1;
            let fetched = Fetch::new("innocent", 1_000)
                .at(offset - 1)
                .run(&mut innocent);
            assert!(!fetched[0].records.is_empty());
            assert_eq!(offset_at(&mut innocent, "innocent", -1), (0, offset));
            waits.push(sent.elapsed() / 3);
            most = most.max(broker.resident_memory());
            thread::sleep(Duration::from_millis(2));
        }
        over.store(true, Ordering::Relaxed);
    });
    waits.sort();
    let quantile = |percent: usize| waits[(waits.len() - 1) * percent / 100];
    let (p50, p99, done) = (quantile(50), quantile(99), done.into_inner());
    println!(
        "{name}: {done} done by {attackers} attackers in {length:?}; memory at most {} MB; {} requests of the innocent: \
         p50 {p50:.1?}, p99 {p99:.1?}, max {:.1?}",
        most / 1_000_000,
        3 * waits.len(),
        quantile(100),
    );
    assert!(done > 0, "no attack was made");
    assert!(most <= MEMORY, "{most} bytes");
    // The attackers and other tests have the same processors: only alone does the time say something of the broker.
    let limit = if times().is_some() {
        PROMPT
    } else {
        40 * PROMPT
    };
    assert!(p99 <= limit, "{p99:?}");

    // And when it is over, nothing of it is left.
    drop(innocent);
    broker.assert_tidy();
}

/// Frames of 20 MB, sent whole but for the last byte.
#[test]
fn half_sent_frames() {
    under_attack("half-sent frames", 15, |attack| {
        let mut bytes = vec![0; 20_000_000];
        bytes[..4].copy_from_slice(&20_000_000_i32.to_be_bytes());
        while attack.goes_on() {
            let Some(mut socket) = attack.connect() else {
                continue;
            };
            if attack.send(&mut socket, &bytes) {
                while attack.goes_on() && is_open(&mut socket) {}
            }
            attack.count();
        }
    });
}

/// As many bad names as a request may have.
#[test]
fn requests_of_bad_names() {
    let names: Vec<_> = (0..19_999)
        .map(|number| format!("bad name {number}"))
        .collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let request = frame(METADATA, 1, &metadata_body(9, Some(&names), true));
    let (request, connections) = (&request, 20);
    under_attack("requests of bad names", 10, |attack| {
        while attack.goes_on() {
            let sockets = (0..connections).filter_map(|_| attack.connect());
            let mut sockets = sockets.collect::<Vec<_>>();
            for socket in &mut sockets {
                attack.send(socket, request);
            }
            for socket in &mut sockets {
                if receive(&attack, socket) {
                    attack.count();
                }
            }
        }
    });
}

/// Fetches of 16 MB, one behind the other, and no answer ever read.
#[test]
fn clients_that_never_read() {
    let fetch = Fetch {
        max_bytes: i32::MAX,
        partitions: vec![(0, 0, i32::MAX)],
        ..Fetch::new("big", 60_000)
    };
    let request = frame(FETCH, 1, &fetch.body());
    let pipelined = &request.repeat(1_000);
    under_attack("clients that never read", 50, |attack| {
        while attack.goes_on() {
            let Some(mut socket) = attack.connect() else {
                continue;
            };
            while attack.send(&mut socket, pipelined) {
                attack.count();
            }
            attack.count();
        }
    });
}

/// Small requests in a row, as fast as the broker takes them; their answers are read.
#[test]
fn clients_that_flood() {
    let request = frame(METADATA, 1, &metadata_body(1, Some(&["no topic"]), false));
    let pipelined = &request.repeat(1_000);
    under_attack("clients that flood", 20, |attack| {
        while attack.goes_on() {
            let Some(mut socket) = attack.connect() else {
                continue;
            };
            let mut answers = vec![0; 1 << 20];
            while attack.send(&mut socket, pipelined) {
                attack.count();
                if matches!(socket.read(&mut answers), Ok(0)) {
                    break;
                }
            }
        }
    });
}

/// More connections than there are places, each as silent as it may be.
#[test]
fn more_connections_than_places() {
    let broker = Broker::with_arguments(&["--max-connections", "20"]);
    let mut innocent = Connection::open(broker.address());
    create_topic(&mut innocent, "t", 1);
    let mut silent: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(broker.address()))
        .collect();
    let parked = Fetch::new("t", 60_000);
    let correlation = parked.send(&mut innocent);
    broker.wait_for_parked(1);
    // A newcomer gets in, since those that have been idle for a second give way.
    let asked = Instant::now();
    let mut newcomer = Connection::open(broker.address());
    produce(&mut newcomer, "t", b"value");
    println!(
        "a newcomer behind 100 idle connections to 20 places: {:.1?}",
        asked.elapsed()
    );
    // Who waits for an answer is not idle.
    let (_, fetched) = parked.receive(&mut innocent, correlation);
    assert!(!fetched[0].records.is_empty());
    silent.clear();
    drop((innocent, newcomer));
    broker.assert_tidy();
}

/// Half a request, and none at all: neither is waited for for ever. A client that is only idle stays.
#[test]
fn requests_that_never_come() {
    let broker = Broker::start();
    let mut idle = Connection::open(broker.address());
    create_topic(&mut idle, "t", 1);
    let begun = Instant::now();
    let mut half = Connection::open(broker.address());
    half.send_raw(&[0, 0, 0, 100, 0, 1]);
    let mut silent = Connection::open(broker.address());
    half.assert_closed();
    silent.assert_closed();
    let took = begun.elapsed();
    assert!(
        (Duration::from_secs(9)..Duration::from_secs(20)).contains(&took),
        "{took:?}"
    );
    broker.wait_for_log("took too long to arrive");
    broker.wait_for_log("no request within 10 s");
    assert_eq!(produce(&mut idle, "t", b"value").base_offset, 0);
    drop(idle);
    broker.assert_clean();
}

/// Reads one answer to its end.
fn receive(attack: &Attack<'_>, socket: &mut TcpStream) -> bool {
    let mut answer = vec![0; 1 << 20];
    let mut length = None;
    let mut received = 0;
    while attack.goes_on() && length.is_none_or(|length| received < length) {
        match socket.read(&mut answer) {
            Ok(0) => return false,
            Ok(read) => {
                if let (None, Some(prefix)) = (length, answer[..read].first_chunk()) {
                    length = Some(4 + i32::from_be_bytes(*prefix) as usize);
                }
                received += read;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Looks for a tenth of a second.
fn is_open(socket: &mut TcpStream) -> bool {
    match socket.read(&mut [0]) {
        Ok(read) => read > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}
