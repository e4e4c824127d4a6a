//! kafka-python and confluent-kafka against the broker. The scripts in `tests/clients` each know a number of checks; a
//! check that fails ends its script with an error.

use crate::process::Broker;
use crate::programs::{available, python, run, script};

/// Runs one check of a script against a new broker with these arguments, and returns the broker's log.
pub(crate) fn check(file: &str, module: &str, name: &str, arguments: &[&str]) -> Option<String> {
    let has_kcat = file != "groups.py" || available("kcat", &["-V"]);
    if !has_kcat || !available(&python(), &["-c", &format!("import {module}")]) {
        return None;
    }
    let broker = Broker::with(arguments);
    let output = run(script(file).args([&broker.address.to_string(), name]), "");
    let [stdout, stderr] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{name}: {stdout}\n{stderr}");
    assert!(!stderr.contains("MessageSetSize"), "{stderr}");
    // A wait may run out in the very moment that would have ended it, where members come and go.
    broker.wait_for_figure("members", 0);
    broker.assert_tidy();
    Some(broker.log().join("\n"))
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

const LAG: &[&str] = &["--replica-lag-ms", "700"];

checks! {
    kafka_python_gets_back_what_it_produced: "kafka_python.py", "kafka", "round_trip", &[];
    kafka_python_wakes_up_with_any_of_its_partitions: "kafka_python.py", "kafka", "any_partition", &[];
    kafka_python_gets_nothing_after_5_seconds: "kafka_python.py", "kafka", "expiry", &[];
    kafka_python_waits_for_its_minimum: "kafka_python.py", "kafka", "min_bytes", &[];
    kafka_python_waits_for_a_slow_follower: "kafka_python.py", "kafka", "slow_follower", LAG;
    kafka_python_administers_topics: "kafka_python.py", "kafka", "administration", &[];
    kafka_python_administers_groups: "group_admin.py", "kafka", "kafka_python", &[];
    confluent_gets_back_what_it_produced: "confluent_kafka_python.py", "confluent_kafka", "round_trip", &[];
    confluent_wakes_up_with_any_of_its_partitions: "confluent_kafka_python.py", "confluent_kafka", "any_partition", &[];
    confluent_gets_nothing_after_5_seconds: "confluent_kafka_python.py", "confluent_kafka", "expiry", &[];
    confluent_waits_for_its_minimum: "confluent_kafka_python.py", "confluent_kafka", "min_bytes", &[];
    confluent_waits_for_a_slow_follower: "confluent_kafka_python.py", "confluent_kafka", "slow_follower", LAG;
    confluent_administers_topics: "confluent_kafka_python.py", "confluent_kafka", "administration", &[];
    members_of_confluent_come_and_go: "groups.py", "confluent_kafka", "confluent_kafka", &[];
    members_of_confluent_come_and_go_cooperatively: "groups.py", "confluent_kafka", "cooperative", &[];
    members_of_kafka_python_come_and_go: "groups.py", "kafka, confluent_kafka", "kafka_python", &[];
    members_of_kcat_come_and_go: "groups.py", "confluent_kafka", "kcat", &[];
    members_of_all_kinds_come_and_go: "groups.py", "kafka, confluent_kafka", "mixed", &[];
    commits_survive_a_restart_of_the_consumer: "groups.py", "kafka, confluent_kafka", "resume", &[];
    a_static_member_that_restarts_disturbs_no_other: "groups.py", "kafka, confluent_kafka", "restart", &[];
    confluent_administers_groups: "group_admin.py", "confluent_kafka", "confluent_kafka", &[];
}

/// Its client hears of both at once, and the broker's log names the cause.
#[test]
fn confluent_is_refused_transactions_and_kip_848() {
    let Some(log) = check(
        "confluent_kafka_python.py",
        "confluent_kafka",
        "refusals",
        &[],
    ) else {
        return;
    };
    assert!(log.contains("there are no transactions here"), "{log}");
    assert!(log.contains("KIP-848 is not known here"), "{log}");
}
