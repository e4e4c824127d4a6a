//! kcat, and so librdkafka, against the broker.

use crate::clients::{self, available};
use crate::process::{Broker, PATIENCE};
use crate::requests::{create_topic, produce, produce_to};
use crate::timing::assert_median_below;
use crate::wire::{Connection, batch};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

fn installed() -> bool {
    available("kcat", &["-V"])
}

fn kcat(broker: &Broker, arguments: &[&str]) -> Command {
    let mut command = Command::new("kcat");
    command
        .args(["-b", &broker.address().to_string()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs kcat to its end with this input.
fn run(broker: &Broker, arguments: &[&str], input: &str) -> Output {
    clients::run(&mut kcat(broker, arguments), input)
}

/// A kcat that consumes until it is dropped.
struct Consumer {
    child: Child,
    records: mpsc::Receiver<String>,
    messages: mpsc::Receiver<String>,
}

impl Consumer {
    fn start(broker: &Broker, arguments: &[&str]) -> Self {
        let consume = ["-C", "-u", "-o", "beginning"];
        let mut child = kcat(broker, &[&consume, arguments].concat())
            .spawn()
            .expect("start kcat");
        Self {
            records: lines(child.stdout.take().expect("piped")),
            messages: lines(child.stderr.take().expect("piped")),
            child,
        }
    }

    fn record(&self) -> String {
        self.records.recv_timeout(PATIENCE).expect("a record")
    }

    /// Ends it, and checks that librdkafka found nothing wrong with any answer.
    fn finish(mut self) {
        self.end();
        for message in &self.messages {
            let complaint = ["MessageSetSize", "PROTOERR", "ERROR", "PROTOUFLOW"]
                .iter()
                .any(|word| message.contains(word));
            assert!(!complaint, "{message}");
        }
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.end();
    }
}

fn lines(pipe: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[test]
fn kcat_gets_back_what_it_produced_in_any_compression() {
    if !installed() {
        return;
    }
    let broker = Broker::start();
    let lines: String = (0..2_000)
        .map(|number| format!("line {number} {number:x}\n"))
        .collect();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let produced = run(
            &broker,
            &["-P", "-t", codec, "-z", codec, "-X", "acks=all"],
            &lines,
        );
        assert!(produced.status.success(), "{produced:?}");
        let consumed = run(&broker, &["-C", "-t", codec, "-o", "beginning", "-e"], "");
        assert!(consumed.status.success(), "{consumed:?}");
        assert!(
            consumed.stdout == lines.as_bytes(),
            "{codec}: not what was produced"
        );
    }
    broker.assert_clean();
}

#[test]
fn kcat_lists_topics() {
    if !installed() {
        return;
    }
    let broker = Broker::start();
    create_topic(&mut Connection::open(broker.address()), "listed", 3);
    let output = run(&broker, &["-L"], "");
    let listing = String::from_utf8_lossy(&output.stdout);
    assert!(
        listing.contains("topic \"listed\" with 3 partitions"),
        "{listing}"
    );
    broker.assert_clean();
}

#[test]
fn a_parked_kcat_wakes_up_with_the_produce() {
    if !installed() {
        return;
    }
    let broker = Broker::start();
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", 1);
    let consumer = Consumer::start(&broker, &["-t", "t", "-X", "fetch.wait.max.ms=5000"]);
    assert_median_below(Duration::from_millis(50), 7, || {
        broker.wait_for_parked(1);
        let produced = Instant::now();
        produce(&mut producer, "t", b"value");
        assert_eq!(consumer.record(), "value");
        produced.elapsed()
    });
    consumer.finish();
    drop(producer);
    broker.assert_clean();
}

#[test]
fn a_parked_kcat_wakes_up_with_any_of_its_partitions() {
    if !installed() {
        return;
    }
    let broker = Broker::start();
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", 16);
    let consumer = Consumer::start(&broker, &["-t", "t", "-X", "fetch.wait.max.ms=5000"]);
    let mut partition = 15;
    assert_median_below(Duration::from_millis(50), 7, || {
        // librdkafka adds partitions to its fetches one after the other.
        broker.wait_for("watched partitions", |report| report.watched == 16);
        let produced = Instant::now();
        produce_to(&mut producer, -1, "t", partition, &batch(&[b"value"]));
        assert_eq!(consumer.record(), "value");
        partition -= 2;
        produced.elapsed()
    });
    consumer.finish();
    drop(producer);
    broker.assert_clean();
}

#[test]
fn a_parked_kcat_gets_nothing_after_5_seconds() {
    if !installed() {
        return;
    }
    let broker = Broker::start();
    create_topic(&mut Connection::open(broker.address()), "t", 1);
    let arguments = ["-t", "t", "-X", "fetch.wait.max.ms=5000", "-d", "protocol"];
    let consumer = Consumer::start(&broker, &arguments);
    // Received FetchResponse (v11, 64 bytes, CorrId 5, rtt 5000.69ms)
    let round_trip = loop {
        let message = consumer.messages.recv_timeout(PATIENCE).expect("a message");
        if let Some((_, answer)) = message.split_once("Received FetchResponse") {
            let (_, time) = answer.split_once("rtt ").expect("a round trip time");
            let time = time.trim_end().strip_suffix("ms)").expect("milliseconds");
            break time.parse::<f64>().expect("a number");
        }
    };
    assert!((5_000.0..5_100.0).contains(&round_trip), "{round_trip} ms");
    assert!(
        consumer.records.try_recv().is_err(),
        "a record out of nowhere"
    );
    consumer.finish();
    broker.assert_clean();
}

#[test]
fn kcat_waits_for_the_minimum_that_it_asks_for() {
    if !installed() {
        return;
    }
    let broker = Broker::start();
    let mut producer = Connection::open(broker.address());
    create_topic(&mut producer, "t", 1);
    let settings = [
        "-t",
        "t",
        "-X",
        "fetch.wait.max.ms=50000",
        "-X",
        "fetch.min.bytes=1000",
    ];
    let consumer = Consumer::start(&broker, &settings);
    let value = [b'x'; 300];
    for _ in 0..2 {
        broker.wait_for_parked(1);
        produce(&mut producer, "t", &value);
        broker.wait_for_parked(1);
        assert!(
            consumer.records.try_recv().is_err(),
            "too few bytes for an answer"
        );
    }
    produce(&mut producer, "t", &value);
    for _ in 0..3 {
        assert_eq!(consumer.record().as_bytes(), value);
    }
    consumer.finish();
    drop(producer);
    broker.assert_clean();
}

#[test]
fn kcat_waits_for_a_slow_follower_as_long_as_it_wants_to() {
    if !installed() {
        return;
    }
    let broker = Broker::with_arguments(&["--replica-lag-ms", "700"]);
    create_topic(&mut Connection::open(broker.address()), "t", 1);
    let started = Instant::now();
    let patient = run(
        &broker,
        &["-P", "-t", "t", "-p", "0", "-X", "acks=all"],
        "value\n",
    );
    assert!(patient.status.success(), "{patient:?}");
    assert!(started.elapsed() >= Duration::from_millis(700));

    let settings = [
        "-X",
        "acks=all",
        "-X",
        "request.timeout.ms=100",
        "-X",
        "retries=0",
    ];
    let arguments = [&["-P", "-t", "t", "-p", "0"], &settings[..]].concat();
    let impatient = run(&broker, &arguments, "value\n");
    let stderr = String::from_utf8_lossy(&impatient.stderr);
    assert!(!impatient.status.success(), "{stderr}");
    assert!(stderr.contains("Broker: Request timed out"), "{stderr}");
    broker.assert_clean();
}

#[test]
fn killing_kcat_empties_the_purgatory() {
    if !installed() {
        return;
    }
    let broker = Broker::start();
    create_topic(&mut Connection::open(broker.address()), "t", 8);
    let settings = ["-t", "t", "-X", "fetch.wait.max.ms=50000"];
    let consumers: Vec<_> = (0..5)
        .map(|_| Consumer::start(&broker, &settings))
        .collect();
    broker.wait_for_parked(5);
    consumers.into_iter().for_each(Consumer::finish);
    broker.assert_clean();
}
