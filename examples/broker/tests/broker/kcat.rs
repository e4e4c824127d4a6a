//! kcat, and so librdkafka, against the broker.

use crate::process::Broker;
use crate::programs::{available, run};
use std::process::{Command, Output};

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
        let arguments = format!("-C -t {codec} -o beginning -e -f %h:%s\\n");
        let consumed = produced(&broker, &arguments, "");
        let expected = lines.replace("line", "name=value:line");
        assert!(consumed.stdout == expected.as_bytes(), "{consumed:?}");
    }
    let listing = produced(&broker, "-L", "").stdout;
    let listing = String::from_utf8_lossy(&listing);
    assert!(listing.contains("topic \"lz4\" with 3 partitions"));
    broker.assert_clean(());
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
    broker.assert_clean(());
}
