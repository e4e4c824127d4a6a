//! kafka-python and confluent-kafka against the broker. The scripts in `tests/clients` each know a number of
//! checks; a check that fails ends its script with an error.

use crate::clients::{self, available};
use crate::process::Broker;
use std::path::PathBuf;
use std::process::Command;

/// The Python that has the clients.
pub(crate) fn interpreter() -> String {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let installed = || package.join("../../.venv/bin/python").display().to_string();
    std::env::var("REQUEST_PURGATORY_PYTHON").unwrap_or_else(|_| installed())
}

/// Runs one check of a script against a new broker with these arguments.
pub(crate) fn check(script: &str, module: &str, name: &str, arguments: &[&str]) {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let python = interpreter();
    if !available(&python, &["-c", &format!("import {module}")]) {
        return;
    }
    let broker = Broker::with_arguments(arguments);
    // -B: writes no byte code into the source tree.
    let script = package.join("tests/clients").join(script);
    let mut command = Command::new(python);
    command.arg("-B").arg(script);
    command.args([&broker.address().to_string(), name]);
    let output = clients::run(&mut command, "");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{name}: {stdout}\n{stderr}");
    assert!(!stderr.contains("MessageSetSize"), "{stderr}");
    broker.assert_clean();
}

fn kafka_python(name: &str, arguments: &[&str]) {
    check("kafka_python.py", "kafka", name, arguments);
}

fn confluent_kafka(name: &str, arguments: &[&str]) {
    check(
        "confluent_kafka_python.py",
        "confluent_kafka",
        name,
        arguments,
    );
}

const LAG: [&str; 2] = ["--replica-lag-ms", "700"];

#[test]
fn kafka_python_gets_back_what_it_produced() {
    kafka_python("round_trip", &[]);
}

#[test]
fn kafka_python_wakes_up_with_the_produce() {
    kafka_python("wake_up", &[]);
}

#[test]
fn kafka_python_wakes_up_with_any_of_its_partitions() {
    kafka_python("any_partition", &[]);
}

#[test]
fn kafka_python_gets_nothing_after_5_seconds() {
    kafka_python("expiry", &[]);
}

#[test]
fn kafka_python_waits_for_the_minimum_that_it_asks_for() {
    kafka_python("min_bytes", &[]);
}

#[test]
fn kafka_python_waits_for_a_slow_follower() {
    kafka_python("slow_follower", &LAG);
}

#[test]
fn confluent_kafka_gets_back_what_it_produced() {
    confluent_kafka("round_trip", &[]);
}

#[test]
fn confluent_kafka_wakes_up_with_the_produce() {
    confluent_kafka("wake_up", &[]);
}

#[test]
fn confluent_kafka_wakes_up_with_any_of_its_partitions() {
    confluent_kafka("any_partition", &[]);
}

#[test]
fn confluent_kafka_gets_nothing_after_5_seconds() {
    confluent_kafka("expiry", &[]);
}

#[test]
fn confluent_kafka_waits_for_the_minimum_that_it_asks_for() {
    confluent_kafka("min_bytes", &[]);
}

#[test]
fn confluent_kafka_waits_for_a_slow_follower_as_long_as_it_wants_to() {
    confluent_kafka("slow_follower", &LAG);
}

#[test]
fn kafka_python_administers_topics() {
    kafka_python("administration", &[]);
}

/// Its `list_topics()` among others: librdkafka's Metadata request has three bytes more than its fields.
#[test]
fn confluent_kafka_administers_topics() {
    confluent_kafka("administration", &[]);
}
