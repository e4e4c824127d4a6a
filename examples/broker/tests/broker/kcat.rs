//! kcat, and so librdkafka, against the broker.

use crate::process::{Broker, PATIENCE};
use crate::programs::{Running, assert_median_below, available, run};
use crate::requests::{batch, create_topic, produce, produce_to};
use std::process::{Command, Output};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn installed() -> bool {
    available("kcat", &["-V"])
}

fn kcat(broker: &Broker, arguments: &str) -> Command {
    let mut command = Command::new("kcat");
    command.args(["-b", &broker.address.to_string()]);
    command.args(arguments.split(' '));
    command
}

fn produced(broker: &Broker, arguments: &str, input: &str) -> Output {
    run(&mut kcat(broker, arguments), input)
}

/// A kcat that consumes topic "t" until it is dropped, and what it says.
fn consumer(broker: &Broker, settings: &str) -> (Running, mpsc::Receiver<String>) {
    let arguments = format!("-C -u -q -o beginning -t t {settings}");
    Running::start(&mut kcat(broker, &arguments))
}

#[test]
fn kcat_gets_back_what_it_produced_in_any_compression() {
    if !installed() {
        return;
    }
    let broker = Broker::with(&["--partitions", "3"]);
    let lines: String = (0..2_000)
        .map(|number| format!("line {number} {number:x}\n"))
        .collect();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let acks = if codec == "none" { "0" } else { "all" };
        let arguments = format!("-P -p 1 -t {codec} -z {codec} -H name=value -X acks={acks}");
        let output = produced(&broker, &arguments, &lines);
        assert!(output.status.success(), "{output:?}");
        let consumed = produced(
            &broker,
            &format!("-C -t {codec} -o beginning -e -f %h:%s\\n"),
            "",
        );
        let expected = lines.replace("line", "name=value:line");
        assert!(
            consumed.stdout == expected.as_bytes(),
            "{codec}: {consumed:?}"
        );
    }
    let listing = produced(&broker, "-L", "").stdout;
    let listing = String::from_utf8_lossy(&listing);
    assert!(
        listing.contains("topic \"lz4\" with 3 partitions"),
        "{listing}"
    );
    broker.assert_clean();
}

/// 5 MB are taken, 120 MB are refused at once and in words.
#[test]
fn kcat_sends_long_messages() {
    if !installed() {
        return;
    }
    let broker = Broker::start();
    // A file is sent as one message.
    let file = std::env::temp_dir().join(format!("broker-message-{}", std::process::id()));
    let produce = |length| {
        std::fs::write(&file, vec![b'x'; length]).expect("write");
        let sizes = "-X message.max.bytes=200000000 -X queue.buffering.max.kbytes=1000000";
        let output = produced(&broker, &format!("-P -t t {sizes} {}", file.display()), "");
        std::fs::remove_file(&file).expect("remove");
        output
    };
    let output = produce(5_000_000);
    assert!(output.status.success(), "{output:?}");
    let settings = "-X fetch.message.max.bytes=10000000 -X receive.message.max.bytes=100000000";
    let consumed = produced(&broker, &format!("-C -t t -o beginning -e {settings}"), "");
    assert_eq!(consumed.stdout.len(), 5_000_001);
    let stderr = String::from_utf8(produce(120_000_000).stderr).expect("UTF-8");
    assert!(stderr.contains("Message size too large"), "{stderr}");
    broker.wait_for_log("a request is too long");
    broker.assert_clean();
}

#[test]
fn a_parked_kcat_wakes_up_with_any_of_its_partitions_and_leaves_nothing_behind() {
    if !installed() {
        return;
    }
    let broker = Broker::start();
    let mut producer = broker.client();
    create_topic(&mut producer, "t", 16);
    let (kcat, said) = consumer(&broker, "-X fetch.wait.max.ms=5000");
    let mut partition = 15;
    assert_median_below(Duration::from_millis(50), || {
        // librdkafka adds partitions to its fetches one after the other.
        broker.wait_for_figure("watched", 16);
        let begun = Instant::now();
        produce_to(&mut producer, -1, "t", partition, &batch(&[b"value"]));
        assert_eq!(said.recv_timeout(PATIENCE).expect("a record"), "value");
        partition -= 2;
        begun.elapsed()
    });
    broker.wait_for_figure("watched", 16);
    drop((producer, kcat));
    assert_eq!(
        said.iter().collect::<Vec<_>>(),
        [""; 0],
        "nothing was wrong with any answer"
    );
    broker.assert_clean();
}

#[test]
fn a_parked_kcat_waits_as_long_as_it_wants_to_and_for_its_minimum() {
    if !installed() {
        return;
    }
    let broker = Broker::start();
    let mut producer = broker.client();
    create_topic(&mut producer, "t", 1);
    let (kcat, said) = consumer(&broker, "-X fetch.wait.max.ms=5000 -d protocol");
    // Received FetchResponse (v11, 64 bytes, CorrId 5, rtt 5000.69ms)
    let answer = said
        .iter()
        .find(|line| line.contains("Received FetchResponse"));
    let answer = answer.expect("an answer");
    let time = answer
        .split_once("rtt ")
        .and_then(|(_, rest)| rest.trim_end().strip_suffix("ms)"));
    let round_trip: f64 = time.expect("a time").parse().expect("a number");
    assert!((5_000.0..5_100.0).contains(&round_trip), "{round_trip} ms");
    drop(kcat);
    broker.wait_for_parked(0);

    let (kcat, said) = consumer(
        &broker,
        "-X fetch.wait.max.ms=50000 -X fetch.min.bytes=1000",
    );
    for _ in 0..2 {
        broker.wait_for_parked(1);
        produce(&mut producer, "t", &[b'x'; 300]);
        broker.wait_for_parked(1);
        assert!(said.try_recv().is_err(), "too few bytes for an answer");
    }
    produce(&mut producer, "t", &[b'x'; 300]);
    for _ in 0..3 {
        assert_eq!(said.recv_timeout(PATIENCE).expect("a record").len(), 300);
    }
    drop((kcat, producer));
    broker.assert_clean();
}

#[test]
fn kcat_waits_for_a_slow_follower_as_long_as_it_wants_to() {
    if !installed() {
        return;
    }
    let broker = Broker::with(&["--replica-lag-ms", "700"]);
    create_topic(&mut broker.client(), "t", 1);
    let started = Instant::now();
    let patient = produced(&broker, "-P -t t -p 0 -X acks=all", "value\n");
    assert!(patient.status.success(), "{patient:?}");
    assert!(started.elapsed() >= Duration::from_millis(700));
    let hasty = "-P -t t -p 0 -X acks=all -X request.timeout.ms=100 -X retries=0";
    let hasty = produced(&broker, hasty, "value\n");
    let stderr = String::from_utf8_lossy(&hasty.stderr);
    assert!(!hasty.status.success(), "{stderr}");
    assert!(stderr.contains("Broker: Request timed out"), "{stderr}");
    broker.assert_clean();
}
