//! The program itself: its command line, its end, and its demonstration.

use crate::process::{Broker, command};
use crate::requests::{Fetch, REQUEST_TIMED_OUT, create_topic, produce_body, receive_produced};
use crate::wire::{Connection, PRODUCE, batch};
use std::io::{BufRead, BufReader};
use std::net::ToSocketAddrs;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

fn run(arguments: &[&str]) -> Output {
    let output = command().args(arguments).stdin(Stdio::null()).output();
    output.expect("run the broker")
}

#[test]
fn help_is_given_when_asked_for() {
    for arguments in [&["--help"][..], &["serve", "--help"], &["demo", "--help"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0));
        let stdout = String::from_utf8_lossy(&output.stdout);
        let first = stdout.lines().next().unwrap_or_default();
        assert!(
            first.contains("in memory") && stdout.contains("usage: broker"),
            "{stdout}"
        );
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn wrong_arguments_get_the_usage() {
    for arguments in [
        &["sing"][..],
        &["--loud"],
        &["serve"],
        &["serve", "--listen"],
        &["serve", "--listen", "nowhere"],
        &["serve", "--listen", "::1:0"],
        &["serve", "--listen", "127.0.0.1:0", "--max-connections", "0"],
        &["serve", "--listen", "127.0.0.1:0", "--data"],
        &["serve", "--listen", "127.0.0.1:0", "--replica-lag-ms", "-1"],
        &["serve", "--listen", "127.0.0.1:0", "more"],
        &["serve", "--listen", "127.0.0.1:0", "--metrics", "nowhere"],
        &["demo", "--metrics"],
        &["demo", "--seconds", "many"],
        &["demo", "--listen", "127.0.0.1:0"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("usage: broker"), "{stderr}");
    }
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let broker = Broker::start();
    let output = run(&["serve", "--listen", &broker.address().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cannot listen on"), "{stderr}");
}

#[test]
fn a_name_that_is_not_there_is_an_error() {
    let output = run(&["serve", "--listen", "no.such.host.invalid:9092"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("cannot listen on no.such.host.invalid:9092"),
        "{stderr}"
    );
}

#[test]
fn a_name_is_served_at_all_its_addresses() {
    let broker = Broker::with_arguments(&["--listen", "localhost:0"]);
    let port = broker.address().port();
    let addresses = ("localhost", port)
        .to_socket_addrs()
        .expect("localhost is known");
    for address in addresses {
        let mut client = Connection::open(address);
        create_topic(&mut client, &format!("t{}", address.is_ipv4()), 1);
    }
}

/// `broker | head -n 1`
#[test]
fn a_closed_output_ends_the_demonstration_quietly() {
    let mut child = command()
        .args(["demo", "--seconds", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start the broker");
    let mut first = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout)
        .read_line(&mut first)
        .expect("a line");
    // What was read from is closed by now.
    let output = child.wait_with_output().expect("the broker ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""));
}

#[test]
fn a_signal_answers_every_parked_request() {
    for signal in ["TERM", "INT"] {
        let mut broker = Broker::with_arguments(&["--replica-lag-ms", "60000"]);
        let mut producer = Connection::open(broker.address());
        create_topic(&mut producer, "t", 10);
        let fetch = Fetch::new("t", 60_000).of_partitions(10);
        let mut consumers: Vec<_> = (0..50)
            .map(|_| Connection::open(broker.address()))
            .collect();
        let fetches: Vec<_> = consumers
            .iter_mut()
            .map(|consumer| fetch.send(consumer))
            .collect();
        let records = batch(&[b"value"]);
        let body = produce_body(8, -1, 60_000, "t", &[(0, Some(&records))]);
        let produced = producer.send(PRODUCE, &body);
        broker.wait_for("parked requests", |report| {
            report.parked_fetch == 50 && report.parked_produce == 1
        });

        let signalled = Instant::now();
        broker.signal(signal);
        for (consumer, correlation) in consumers.iter_mut().zip(fetches) {
            let (error, fetched) = fetch.receive(consumer, correlation);
            assert_eq!((error, fetched.len()), (0, 10));
            assert!(
                fetched
                    .iter()
                    .all(|part| part.error == 0 && part.records.is_empty())
            );
            consumer.assert_closed();
        }
        let produced = receive_produced(producer.receive(PRODUCE, 8, produced));
        assert_eq!(produced[0].error, REQUEST_TIMED_OUT);
        producer.assert_closed();
        assert_eq!(broker.wait_for_exit().code(), Some(0));
        let took = signalled.elapsed();
        assert!(took < Duration::from_secs(2), "shutting down took {took:?}");
        assert_eq!(broker.log(), [""; 0]);
    }
}

#[test]
fn a_signal_ends_a_broker_without_clients() {
    let mut broker = Broker::start();
    broker.signal("TERM");
    assert_eq!(broker.wait_for_exit().code(), Some(0));
}

#[test]
fn a_client_that_does_not_read_cannot_keep_the_broker_from_ending() {
    let mut broker = Broker::start();
    let mut client = Connection::open(broker.address());
    create_topic(&mut client, "t", 1);
    let records = batch(&[&vec![0; 8 << 20]]);
    crate::requests::produce_to(&mut client, -1, "t", 0, &records);
    let fetch = Fetch {
        max_bytes: i32::MAX,
        partitions: vec![(0, 0, i32::MAX)],
        ..Fetch::new("t", 60_000)
    };
    fetch.send(&mut client);
    broker.wait_for("requests taken up", |report| report.received == 3);
    broker.signal("TERM");
    assert_eq!(broker.wait_for_exit().code(), Some(0));
    broker.wait_for_log("did not take their last answers");
}

#[test]
fn the_demonstration_answers_everything() {
    let output = run(&["demo", "--seconds", "2"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    let figure = |name: &str| {
        let line = stdout.lines().find(|line| line.trim().starts_with(name));
        let rest = line.and_then(|line| line.trim().strip_prefix(name));
        let number = rest.and_then(|rest| rest.split_whitespace().next());
        number
            .unwrap_or_else(|| panic!("no {name} in {stdout}"))
            .to_owned()
    };
    assert_eq!(figure("unanswered"), "0");
    assert_eq!(figure("ended by shutdown"), "0");
    for name in [
        "requests",
        "parked",
        "completed by a key",
        "expired",
        "consumed",
    ] {
        let number: u64 = figure(name).parse().expect("a number");
        assert!(number > 100, "{name}: {number}");
    }
    assert_eq!(
        stdout
            .lines()
            .filter(|line| line.contains("requests/s"))
            .count(),
        2
    );
}
