//! What `--data` keeps, over restarts and crashes.

use crate::admin::delete_topics;
use crate::process::{Broker, command};
use crate::requests::{
    Fetch, Fetched, UNKNOWN_TOPIC_OR_PARTITION, create_topic, offset_at, produce, produce_to,
};
use crate::wire::{Connection, INIT_PRODUCER_ID, Writer, batch, batch_from};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};

/// A folder of its own for a test, removed at its end unless that fails.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", process::id()));
        // Left by a test that failed.
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn argument(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }

    fn broker(&self) -> Broker {
        Broker::with_arguments(&["--data", self.argument()])
    }

    /// The files of a partition, in order.
    fn segments(&self, topic: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.join(topic).join("0")).expect("the partition's folder");
        let mut paths: Vec<_> = entries
            .map(|entry| entry.expect("an entry").path())
            .collect();
        paths.sort();
        paths
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.0).expect("remove the folder");
        }
    }
}

fn all(client: &mut Connection, topic: &str) -> Fetched {
    Fetch::new(topic, 0).run(client).remove(0)
}

/// The sums of `values` as batches with offsets from 0 on.
fn stored(values: &[&[u8]]) -> Vec<u8> {
    let batches = (0_i64..).zip(values).map(|(offset, value)| {
        let mut bytes = batch(&[value]);
        bytes[..8].copy_from_slice(&offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&(-1_i32).to_be_bytes());
        bytes
    });
    batches.collect::<Vec<_>>().concat()
}

fn init_producer_id(client: &mut Connection) -> i64 {
    let body = Writer::body(INIT_PRODUCER_ID, 0).null_string().int32(0);
    let mut answer = client.request(INIT_PRODUCER_ID, &body);
    assert_eq!((answer.int32(), answer.int16()), (0, 0));
    answer.int64()
}

#[test]
fn topics_and_records_outlive_the_broker() {
    let folder = Folder::new("restart");
    // An orderly end, and a crash: what was acknowledged is there after either.
    for (round, signal) in ["TERM", "KILL", "INT", "KILL"].into_iter().enumerate() {
        let mut broker = folder.broker();
        let mut client = Connection::open(broker.address());
        let round = round as i64;
        if round == 0 {
            create_topic(&mut client, "t", 3);
            create_topic(&mut client, "empty.topic-1", 2);
        }
        assert_eq!(offset_at(&mut client, "t", -1), (0, round));
        assert_eq!(produce(&mut client, "t", b"value").base_offset, round);
        let elsewhere = produce_to(&mut client, 1, "t", 2, &batch(&[b"a", b"b"]));
        assert_eq!((elsewhere.error, elsewhere.base_offset), (0, 2 * round));
        let values = vec![&b"value"[..]; round as usize + 1];
        assert!(all(&mut client, "t").records == stored(&values));
        assert_eq!(all(&mut client, "empty.topic-1").error, 0);
        broker.signal(signal);
        broker.wait_for_exit();
        assert_eq!(broker.log(), [""; 0]);
    }
}

#[test]
fn a_batch_sent_again_after_a_restart_is_not_appended_again() {
    let folder = Folder::new("idempotent");
    let mut broker = folder.broker();
    let mut client = Connection::open(broker.address());
    create_topic(&mut client, "t", 1);
    let id = init_producer_id(&mut client);
    let first = batch_from(id, 0, 0, &[b"one"]);
    assert_eq!(produce_to(&mut client, 1, "t", 0, &first).base_offset, 0);
    broker.signal("KILL");
    broker.wait_for_exit();

    let broker = folder.broker();
    let mut client = Connection::open(broker.address());
    assert_eq!(produce_to(&mut client, 1, "t", 0, &first).base_offset, 0);
    let second = batch_from(id, 0, 1, &[b"two"]);
    // Acknowledged when the follower has it: the high watermark has moved by then.
    assert_eq!(produce_to(&mut client, -1, "t", 0, &second).base_offset, 1);
    assert_eq!(offset_at(&mut client, "t", -1), (0, 2));
    assert!(
        init_producer_id(&mut client) > id,
        "taken for an older producer"
    );
}

/// A crash in the middle of an append leaves a part of a batch, or bytes that are none.
#[test]
fn a_torn_tail_is_cut_off() {
    let folder = Folder::new("torn");
    let values: [&[u8]; 3] = [b"one", b"two", b"three"];
    let whole = stored(&values);
    let two = stored(&values[..2]).len();
    drop({
        let broker = folder.broker();
        let mut client = Connection::open(broker.address());
        create_topic(&mut client, "t", 1);
        for value in values {
            produce(&mut client, "t", value);
        }
        broker
    });
    let segment = folder.segments("t").remove(0);
    assert!(fs::read(&segment).expect("the segment") == whole);

    let mut flipped = whole.clone();
    flipped[two + 70] ^= 1;
    let garbage = [&whole[..two], &[0xab; 500]].concat();
    for torn in [
        &whole[..two + 1],
        &whole[..two + 60],
        &whole[..whole.len() - 1],
        &flipped,
        &garbage,
    ] {
        fs::write(&segment, torn).expect("tear the segment");
        let broker = folder.broker();
        broker.wait_for_log("cut off");
        let mut client = Connection::open(broker.address());
        assert!(all(&mut client, "t").records == whole[..two]);
        assert_eq!(produce(&mut client, "t", b"three").base_offset, 2);
        assert!(all(&mut client, "t").records == whole);
    }
    // And what is whole is left as it is.
    let broker = folder.broker();
    let mut client = Connection::open(broker.address());
    assert!(all(&mut client, "t").records == whole);
    assert_eq!(broker.log(), [""; 0]);
}

/// 7 batches of 15 MB are more than a partition keeps: the oldest segments are dropped, also for later consumers.
#[test]
fn the_oldest_segments_go_and_damage_before_the_last_is_no_torn_tail() {
    let folder = Folder::new("segments");
    let records = batch(&[&vec![7; 15 << 20]]);
    let start = |client: &mut Connection| offset_at(client, "t", -2).1;
    let kept = {
        let broker = folder.broker();
        let mut client = Connection::open(broker.address());
        create_topic(&mut client, "t", 1);
        for offset in 0..8 {
            assert_eq!(
                produce_to(&mut client, 1, "t", 0, &records).base_offset,
                offset
            );
        }
        start(&mut client)
    };
    assert!((1..=4).contains(&kept), "{kept}");
    {
        let broker = folder.broker();
        let mut client = Connection::open(broker.address());
        assert_eq!(
            (start(&mut client), offset_at(&mut client, "t", -1)),
            (kept, (0, 8))
        );
        let fetch = Fetch {
            max_bytes: i32::MAX,
            partitions: vec![(0, kept, i32::MAX)],
            ..Fetch::new("t", 0)
        };
        assert!(fetch.run(&mut client)[0].records[61..] == records[61..]);
    }
    let segments = folder.segments("t");
    assert!(segments.len() > 1, "{segments:?}");
    let mut first = OpenOptions::new()
        .append(true)
        .open(&segments[0])
        .expect("open the segment");
    first.write_all(b"more").expect("damage the segment");
    let output = command()
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data",
            folder.argument(),
        ])
        .stdin(Stdio::null())
        .output()
        .expect("run the broker");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("later segments follow"), "{stderr}");
}

#[test]
fn a_deleted_topic_does_not_come_back() {
    let folder = Folder::new("deleted");
    let mut broker = folder.broker();
    let mut client = Connection::open(broker.address());
    for topic in ["t", "u"] {
        create_topic(&mut client, topic, 2);
        produce(&mut client, topic, b"value");
    }
    assert_eq!(delete_topics(&mut client, 5, &["t", "u"]), [0, 0]);
    create_topic(&mut client, "u", 1);
    broker.signal("KILL");
    broker.wait_for_exit();
    // What a crash between two steps leaves.
    for unfinished in ["+new-v", "+old-w"] {
        fs::create_dir_all(folder.0.join(unfinished).join("0")).expect("a folder");
    }

    let broker = folder.broker();
    let mut client = Connection::open(broker.address());
    for gone in ["t", "v", "w"] {
        assert_eq!(
            all(&mut client, gone).error,
            UNKNOWN_TOPIC_OR_PARTITION,
            "{gone}"
        );
    }
    assert!(all(&mut client, "u").records.is_empty());
    let names = fs::read_dir(&folder.0).expect("the folder");
    let mut names: Vec<_> = names
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["+lock", "+offsets", "u"]);
}

#[test]
fn a_folder_has_one_broker_at_a_time() {
    let folder = Folder::new("locked");
    let first = folder.broker();
    let second = command()
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data",
            folder.argument(),
        ])
        .stdin(Stdio::null())
        .output()
        .expect("run the broker");
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr.contains("another broker uses it"), "{stderr}");
    drop(first);
    folder.broker();
}

/// Where the disk says no, the producer is told, and what was there stays.
#[test]
fn an_append_that_fails_is_no_append() {
    let folder = Folder::new("failing");
    let broker = folder.broker();
    let mut client = Connection::open(broker.address());
    create_topic(&mut client, "t", 1);
    produce(&mut client, "t", b"value");
    const KAFKA_STORAGE_ERROR: i16 = 56;
    let segment = folder.segments("t").remove(0);
    let aside = segment.with_extension("aside");
    fs::rename(&segment, &aside).expect("move the segment");
    fs::create_dir(&segment).expect("a folder in its place");
    let produced = produce_to(&mut client, 1, "t", 0, &batch(&[b"value"]));
    assert_eq!(produced.error, KAFKA_STORAGE_ERROR);
    assert_eq!(all(&mut client, "t").error, KAFKA_STORAGE_ERROR);
    broker.wait_for_log("cannot append");
    fs::remove_dir(&segment).expect("remove the folder");
    fs::rename(&aside, &segment).expect("move the segment back");
    assert_eq!(produce(&mut client, "t", b"other").base_offset, 1);
    assert!(all(&mut client, "t").records == stored(&[b"value", b"other"]));
}
