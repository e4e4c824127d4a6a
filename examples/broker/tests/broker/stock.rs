//! kcat, and so librdkafka, kafka-python and confluent-kafka against the broker. Each script in `tests/clients` knows a
//! number of checks; a check that fails ends its script with an error.

use super::*;
use std::process::{Command, Output};

/// Runs one check of a script against a new broker with these arguments.
fn check(file: &str, module: &str, name: &str, arguments: &[&str]) {
    let has_kcat = file != "groups.py" || available("kcat", &["-V"]);
    if !has_kcat || !available(&python(), &["-c", &format!("import {module}")]) {
        return;
    }
    let mut broker = Broker::with(arguments);
    let script = format!("{}/tests/clients/{file}", env!("CARGO_MANIFEST_DIR"));
    let (mut python, address) = (Command::new(python()), broker.address.to_string());
    // Without byte code being written into the source tree.
    let output = run(python.args(["-B", &script, &address, name]), "");
    let [stdout, stderr] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{name}: {stdout}\n{stderr}");
    assert!(!stderr.contains("MessageSetSize"), "{stderr}");
    // Where members come and go.
    broker.may_miss = true;
    broker.wait_for_figure("members", 0);
}

/// A test for each check of each script, with the arguments of the broker for it.
macro_rules! checks {
    ($($test:ident: $file:literal, $module:literal, $name:literal, $arguments:expr;)*) => {$(
        #[test]
        fn $test() {
            check($file, $module, $name, $arguments);
        }
    )*};
}

checks! {
    kafka_python_gets_back_what_it_produced: "kafka_python.py", "kafka", "round_trip", &[];
    kafka_python_administers_topics: "kafka_python.py", "kafka", "administration", &[];
    kafka_python_administers_groups: "group_admin.py", "kafka", "kafka_python", &[];
    confluent_gets_back_what_it_produced: "confluent_kafka_python.py", "confluent_kafka", "round_trip", &[];
    confluent_wakes_up_with_any_of_its_partitions: "confluent_kafka_python.py", "confluent_kafka", "any_partition", &[];
    confluent_gets_nothing_after_5_seconds: "confluent_kafka_python.py", "confluent_kafka", "expiry", &[];
    confluent_waits_for_its_minimum: "confluent_kafka_python.py", "confluent_kafka", "min_bytes", &[];
    confluent_waits_for_a_slow_follower: "confluent_kafka_python.py", "confluent_kafka", "slow_follower", &["--replica-lag-ms=700"];
    confluent_administers_topics: "confluent_kafka_python.py", "confluent_kafka", "administration", &[];
    confluent_is_refused_transactions_and_kip_848: "confluent_kafka_python.py", "confluent_kafka", "refusals", &[];
    members_of_confluent_come_and_go: "groups.py", "confluent_kafka", "confluent_kafka", &[];
    members_of_confluent_come_and_go_cooperatively: "groups.py", "confluent_kafka", "cooperative", &[];
    members_of_kafka_python_come_and_go: "groups.py", "kafka, confluent_kafka", "kafka_python", &[];
    members_of_kcat_come_and_go: "groups.py", "confluent_kafka", "kcat", &[];
    members_of_all_kinds_come_and_go: "groups.py", "kafka, confluent_kafka", "mixed", &[];
    commits_survive_a_restart_of_the_consumer: "groups.py", "kafka, confluent_kafka", "resume", &[];
    a_static_member_that_restarts_disturbs_no_other: "groups.py", "kafka, confluent_kafka", "restart", &[];
    confluent_administers_groups: "group_admin.py", "confluent_kafka", "confluent_kafka", &[];
}

/// A client that is not installed has no row to compare.
#[test]
fn clients_do_what_the_page_says() {
    if !available("kcat", &["-V"]) || !available(&python(), &["-c", "import confluent_kafka"]) {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/table.py");
    let mut table = Command::new(python());
    table.args(["-B", script]).arg(command().get_program());
    let output = run(&mut table, "");
    assert!(output.status.success(), "{output:?}");
}

fn kcat(broker: &Broker, arguments: &str, input: &str) -> Output {
    let mut command = Command::new("kcat");
    command.args(["-b", &broker.address.to_string()]);
    run(command.args(arguments.split(' ')), input)
}

/// Where the attributes of a batch are, of which the last bits name its codec.
const ATTRIBUTES: usize = 21;

#[test]
fn kcat_gets_back_what_it_produced_in_any_compression_and_length() {
    if !available("kcat", &["-V"]) {
        return;
    }
    let broker = Broker::with(&["--partitions", "3"]);
    let line = |number| format!("line {number} {number:x}\n");
    let lines: String = (0..2_000).map(line).collect();
    for (number, codec) in (0..).zip(["none", "gzip", "snappy", "lz4", "zstd"]) {
        let acks = if codec == "none" { "0" } else { "all" };
        // librdkafka does not compress a batch of a line or two, which a loaded machine makes of a short linger.
        let settings = format!("-X acks={acks} -X linger.ms=1000");
        let arguments = format!("-P -p 1 -t {codec} -z {codec} -H name=value {settings}");
        let output = kcat(&broker, &arguments, &lines);
        assert!(output.status.success(), "{output:?}");
        // (With acks of 0 it may still come.)
        let fetched = broker.client().fetch(&fetch_from(codec, &[(1, 0)], 60_000));
        let (_, attributes) = records(&fetched[0]).split_at(ATTRIBUTES);
        assert_eq!(attributes[1] & 7, number, "{codec} is what was sent");
        let arguments = format!("-C -t {codec} -o beginning -e -f %h:%s\\n");
        let consumed = kcat(&broker, &arguments, "");
        let expected = lines.replace("line", "name=value:line");
        assert!(consumed.stdout == expected.as_bytes(), "{consumed:?}");
    }
    let listing = kcat(&broker, "-L", "").stdout;
    assert!(String::from_utf8_lossy(&listing).contains("topic \"lz4\" with 3 partitions"));
    // 5 MB are taken, 120 MB are refused at once and in words. A file is sent as one message.
    let file = tempfile::NamedTempFile::new().expect("a file");
    let produce = |length| {
        std::fs::write(&file, vec![b'x'; length]).expect("write");
        let sizes = "-X message.max.bytes=200000000 -X queue.buffering.max.kbytes=1000000";
        let file = file.path().display();
        kcat(&broker, &format!("-P -t t {sizes} {file}"), "")
    };
    let output = produce(5_000_000);
    assert!(output.status.success(), "{output:?}");
    let settings = "-X fetch.message.max.bytes=10000000 -X receive.message.max.bytes=100000000";
    let consumed = kcat(&broker, &format!("-C -t t -o beginning -e {settings}"), "");
    assert_eq!(consumed.stdout.len(), 5_000_001);
    let stderr = String::from_utf8(produce(120_000_000).stderr).expect("UTF-8");
    assert!(stderr.contains("Message size too large"), "{stderr}");
    broker.wait_for_log("a request is too long");
}
