//! What `--data` keeps, over restarts, crashes and a full disk.

use super::*;
use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use tempfile::{TempDir, tempdir};

const KAFKA_STORAGE_ERROR: i16 = 56;

/// A folder that is not there yet, in one that is removed at the end of the test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("data").join(name)
    }

    pub(crate) fn argument(&self) -> String {
        self.path("").display().to_string()
    }

    pub(crate) fn open(&self) -> (Broker, Client) {
        let broker = Broker::with(&["--data", &self.argument()]);
        let client = broker.client();
        (broker, client)
    }

    /// What the program says that cannot use the folder.
    fn refusal(&self) -> String {
        let listen = ["--listen", "127.0.0.1:0", "--data"];
        let output = output(&[&["serve"], &listen[..], &[&self.argument()]].concat());
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn entries(&self, folder: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path(folder)).expect("a folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut paths: Vec<_> = paths.collect();
        paths.sort();
        paths
    }
}

fn all(client: &mut Client, topic: &str) -> Vec<u8> {
    records(&client.fetch(&fetch(topic, 1, 0))[0]).to_vec()
}

/// The bytes of `values` as batches with offsets from 0 on.
fn stored(values: &[&[u8]]) -> Vec<u8> {
    let batches = (0_i64..).zip(values).map(|(offset, value)| {
        let mut bytes = batch(&[value]);
        bytes[..8].copy_from_slice(&offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&(-1_i32).to_be_bytes());
        bytes
    });
    batches.collect::<Vec<_>>().concat()
}

#[test]
fn topics_records_and_producers_outlive_the_broker() {
    let folder = Folder::new();
    let new_producer = |client: &mut Client| {
        let request = InitProducerIdRequest::default().with_transactional_id(None);
        client.request(0, &request).producer_id.0
    };
    let mut producer = None;
    // An orderly end, and a crash: what was acknowledged is there after either.
    for (round, signal) in (0..).zip([Signal::TERM, Signal::KILL, Signal::INT, Signal::KILL]) {
        let (mut broker, mut client) = folder.open();
        if round == 0 {
            client.create_topic("t", 3);
            client.create_topic("empty.topic-1", 2);
            client.produce_to(1, "t", 1, &batch(&[b"before"]));
        }
        let [fresh, other] = [(); 2].map(|()| new_producer(&mut client));
        let id = *producer.get_or_insert(fresh);
        assert!(round == 0 || fresh != id, "taken for an older producer");
        assert_ne!(fresh, other);
        // A batch that is sent again is not appended again.
        let again = batch_from(id, 0, 0, &[b"once"]);
        assert_eq!(client.produce_to(-1, "t", 1, &again), (0, 1));
        assert_eq!(client.produce("t", b"value"), round);
        let mut ends = list_offsets_request("t", -1);
        let partitions = &mut ends.topics[0].partitions;
        let others = [1, 7].map(|index| partitions[0].clone().with_partition_index(index));
        partitions.extend(others);
        let ends = client.request(5, &ends).topics.remove(0).partitions;
        let ends = ends.iter().map(|end| (end.partition_index, end.offset));
        assert!(ends.eq([(0, round + 1), (1, 2), (7, -1)]));
        let elsewhere = client.produce_to(1, "t", 2, &batch(&[b"a", b"b"]));
        assert_eq!(elsewhere, (0, 2 * round));
        let values = vec![&b"value"[..]; round as usize + 1];
        assert!(all(&mut client, "t") == stored(&values));
        assert!(all(&mut client, "empty.topic-1").is_empty());
        broker.end(signal);
        assert_eq!(broker.log(), [""; 0]);
    }
}

/// A crash in an append leaves a part of a batch, bytes that are none, or a batch of another offset (under no checksum).
#[test]
fn a_torn_tail_is_cut_off() {
    let folder = Folder::new();
    let values: [&[u8]; 3] = [b"one", b"two", b"three"];
    let whole = stored(&values);
    let [one, two] = [1, 2].map(|count| stored(&values[..count]).len());
    {
        let (_broker, mut client) = folder.open();
        client.create_topic("t", 3);
        let offsets = values.map(|value| client.produce("t", value));
        assert_eq!(offsets, [0, 1, 2]);
        (1..3).for_each(|at| _ = client.produce_to(-1, "t", at, &batch(&[b"other"])));
    }
    let segment = folder.entries("t/0").remove(0);
    assert!(fs::read(&segment).expect("the segment") == whole);
    let mut flipped = whole.clone();
    flipped[two + 70] ^= 1;
    let garbage = [&whole[..two], &[0xab; 500]].concat();
    let mut misplaced = whole.clone();
    misplaced[two + 7] += 1;
    let parts = [two + 1, two + 60, whole.len() - 1].map(|length| whole[..length].to_vec());
    for torn in parts.into_iter().chain([flipped, garbage, misplaced]) {
        fs::write(&segment, torn).expect("tear the segment");
        let (broker, mut client) = folder.open();
        broker.wait_for_log("cut off");
        assert!(all(&mut client, "t") == whole[..two]);
        assert_eq!(client.produce("t", b"three"), 2);
        assert!(all(&mut client, "t") == whole);
        let rest = client.fetch(&fetch_from("t", &[(0, 1)], 0));
        assert!(records(&rest[0]) == &whole[one..], "from the middle");
        let limited = fetch("t", 1, 0).with_max_bytes(whole.len() as i32 - 1);
        let limited = client.fetch(&limited);
        assert!(records(&limited[0]) == &whole[..two], "a limit");
    }
    // What cannot be read is there all the same, unlike what was dropped: a client would go on elsewhere.
    let (mut broker, mut client) = folder.open();
    let mut error = || client.fetch(&fetch("t", 1, 0))[0].error_code;
    fs::write(&segment, &whole[..two]).expect("cut the segment");
    assert_eq!(error(), KAFKA_STORAGE_ERROR);
    broker.wait_for_log("partition 0 from offset 0");
    fs::remove_file(&segment).expect("it is there");
    assert_eq!(error(), Code::OffsetOutOfRange.code());
    // Nor can a stop write it to the disk, also if others of the topic can be, and it says so.
    fs::write(&segment, &whole).expect("write the segment");
    fs::remove_file(&folder.entries("t/1")[0]).expect("it is there");
    assert_eq!(broker.end(Signal::TERM).code(), Some(1));
    broker.wait_for_log("cannot write the last records to disk");
}

/// 8 batches of 15 MB are more than a partition keeps: the oldest segments, of two each, go, also for later consumers.
#[test]
fn the_oldest_segments_go_and_damage_before_the_last_is_no_torn_tail() {
    let (folder, fifteen) = (Folder::new(), batch(&[&vec![7; 15 << 20]]));
    let repeated = batch_from(7, 0, 0, &[b"value"]);
    {
        let (_broker, mut client) = folder.open();
        client.create_topic("t", 1);
        let mut append = |offsets: Range<i64>| {
            for offset in offsets {
                assert_eq!(client.produce_to(-1, "t", 0, &fifteen), (0, offset));
            }
            client.offset_at("t", -2).1
        };
        append(0..4);
        // What cannot be removed is no reason to refuse what comes: a folder is no file that could be.
        let oldest = folder.entries("t/0").remove(0);
        fs::remove_file(&oldest).expect("the first segment");
        fs::create_dir(&oldest).expect("a folder in its place");
        assert_eq!(append(4..6), 0);
        fs::remove_dir(&oldest).expect("it is empty");
        fs::write(&oldest, "").expect("a file again");
        assert_eq!(append(6..8), 4);
        assert_eq!(client.produce_to(-1, "t", 0, &repeated), (0, 8));
        // What is left is found where it is now.
        let oldest = client.fetch(&fetch_from("t", &[(0, 4)], 0));
        let found = records(&oldest[0]);
        assert!(found[..8] == 4_i64.to_be_bytes() && found[61..] == fifteen[61..]);
        assert!(folder.refusal().contains("another broker uses it"));
    }
    let segments = folder.entries("t/0");
    let open = |at: usize| File::options().append(true).open(&segments[at]).unwrap();
    // A crash has torn the last of them.
    open(2).write_all(b"torn").expect("tear the segment");
    {
        let (_broker, mut client) = folder.open();
        assert_eq!(client.produce_to(-1, "t", 0, &repeated), (0, 8));
        assert_eq!([-2, -1].map(|end| client.offset_at("t", end).1), [4, 9]);
        let oldest = client.fetch(&fetch_from("t", &[(0, 4)], 0));
        assert!(records(&oldest[0])[61..] == fifteen[61..]);
        // The last batch of one segment, and the first one of the next.
        let both = client.fetch(&fetch_from("t", &[(0, 7)], 0));
        let (last, first) = records(&both[0]).split_at(fifteen.len());
        assert!(last[61..] == fifteen[61..] && first[..8] == 8_i64.to_be_bytes());
    }
    let mut first = open(0);
    // It loses whole batches, or what is none is behind them.
    first.set_len(fifteen.len() as u64).expect("cut it");
    assert!(folder.refusal().contains("should begin with offset 5"));
    first.write_all(b"more").expect("damage the segment");
    assert!(folder.refusal().contains("later segments follow"));
}

/// A client could delete what is taken for a topic. Only the folder that a file system brings along is passed over.
#[test]
fn what_is_no_topic_is_refused_at_the_start_and_not_touched() {
    let folder = Folder::new();
    let found = folder.path("lost+found").join("0");
    fs::create_dir_all(&found).expect("a folder");
    {
        let (_broker, mut client) = folder.open();
        client.create_topic("t", 2);
        let found = client.metadata(&["lost+found", "t"], false);
        assert_eq!(found, [(UNKNOWN_TOPIC_OR_PARTITION, 0), (0, 2)]);
        let deleted = client.delete_topics(&["lost+found"]);
        assert_eq!(deleted, [UNKNOWN_TOPIC_OR_PARTITION]);
    }
    // Names that no topic has; names that one could have, without its partitions, or with more.
    for (name, inside) in [
        ("my backup", "0"),
        ("other+more", "0"),
        (&*"u".repeat(250), "0"),
        ("backup", ""),
        ("backup", "1"),
        ("backup", "home"),
        ("t", "notes"),
    ] {
        let path = folder.path(name);
        fs::create_dir_all(path.join(inside)).expect("a folder");
        let refusal = folder.refusal();
        let names = format!("{}: no topic", path.display());
        assert!(refusal.contains(&names), "{name}/{inside}: {refusal}");
        assert!(path.join(inside).exists());
        fs::remove_dir_all(if name == "t" { path.join(inside) } else { path })
            .expect("it is there");
    }
    fs::write(folder.path("file"), "").expect("a file");
    assert!(folder.refusal().contains("file: no topic"));
    fs::remove_file(folder.path("file")).expect("it is there");
    let (_broker, mut client) = folder.open();
    assert_eq!(client.metadata(&["t"], false), [(0, 2)]);
    assert!(found.exists());
}

#[test]
fn a_deleted_topic_does_not_come_back() {
    let folder = Folder::new();
    let (mut broker, mut client) = folder.open();
    let longest = &*"u".repeat(249);
    for topic in ["t", longest] {
        client.create_topic(topic, 2);
        client.produce(topic, b"value");
    }
    let commits = [0, 2].map(|partition| commit(&mut client, partition, 7));
    assert_eq!(commits, [0, UNKNOWN_TOPIC_OR_PARTITION]);
    // A topic that cannot be deleted keeps what was committed for it, and takes more.
    let in_the_way = folder.path("+old-t");
    fs::write(&in_the_way, "").expect("a file");
    assert_eq!(client.delete_topics(&["t"]), [KAFKA_STORAGE_ERROR]);
    assert_eq!(committed(&mut client), [(0, 7)]);
    let offsets = folder.path("+offsets");
    let before = fs::read(&offsets).expect("the journal");
    assert_eq!(client.produce("t", b"another"), 1);
    fs::remove_file(&in_the_way).expect("it is there");
    // An earlier deletion may have left this much.
    fs::create_dir_all(in_the_way.join("0")).expect("a folder");
    assert_eq!(client.delete_topics(&["t", longest]), [0, 0]);
    assert_eq!(commit(&mut client, 0, 7), UNKNOWN_TOPIC_OR_PARTITION);
    client.create_topic(longest, 1);
    broker.end(Signal::KILL);
    // What a crash between two steps leaves.
    for unfinished in ["+new-v", "+old-w"] {
        fs::create_dir_all(folder.path(unfinished).join("0")).expect("a folder");
    }
    fs::write(offsets, before).expect("the journal");
    fs::write(folder.path("+offsets.new"), "[").expect("a file");
    let (mut broker, mut client) = folder.open();
    for gone in ["t", "v", "w"] {
        let found = client.fetch(&fetch(gone, 1, 0));
        assert_eq!(found[0].error_code, UNKNOWN_TOPIC_OR_PARTITION, "{gone}");
    }
    assert!(all(&mut client, longest).is_empty() && committed(&mut client).is_empty());
    let left = ["+lock", "+offsets", longest].map(|name| folder.path(name));
    assert_eq!(folder.entries(""), left);
    // A stop cannot make the offsets outlive the machine without their folder. (There is no record to write.)
    fs::remove_dir_all(folder.path("")).expect("it is there");
    assert_eq!(broker.end(Signal::TERM).code(), Some(1));
}

/// Commits an offset, with long metadata, as a client without members does; returns the error.
fn commit(client: &mut Client, partition: i32, offset: i64) -> i16 {
    let request = commit_request((GROUP, "", -1), &[(partition, offset)], 100);
    commit_errors(&client.request(8, &request))[0]
}

fn committed(client: &mut Client) -> Vec<(i32, i64)> {
    offsets(client.request(7, &offsets_request(GROUP)))
}

/// A limit on the size of files stands for a disk that is full: a write up to it is cut short, the next one fails. The
/// process is told so with a signal, which is ignored.
#[test]
#[cfg(target_os = "linux")]
fn f9_a_full_disk_is_an_error_and_leaves_nothing_torn() {
    use testing::program::Resource::Fsize;
    let folder = Folder::new();
    drop(folder.open());
    let mut limited = std::process::Command::new("sh");
    let script = "trap '' XFSZ; exec \"$0\" \"$@\"";
    limited.args(["-c", script]).arg(command().get_program());
    let arguments = "serve --listen 127.0.0.1:0 --report-ms 5 --data";
    limited.args(arguments.split(' ')).arg(folder.argument());
    let mut broker = Broker::run(&mut limited);
    let mut client = broker.client();
    client.create_topic("t", 2);
    client.create_topic("u", 1);
    let mut other = commit_request(("other", "", -1), &[(0, 7)], 0);
    other.topics[0].name = topic_name("u");
    assert_eq!(commit_errors(&client.request(8, &other)), [0]);
    let [one, next] = [0, 1].map(|sequence| batch_from(7, 0, sequence, &[&[7; 1_000]]));
    assert_eq!(client.produce_to(-1, "t", 0, &one), (0, 0));
    assert_eq!(commit(&mut client, 0, 1), 0);
    let mut kept = 1;
    broker.program.limit(Fsize, Some(1_500));
    let refused = client.produce_to(-1, "t", 0, &next).0;
    assert_eq!(refused, KAFKA_STORAGE_ERROR);
    while commit(&mut client, 0, kept + 1) == 0 {
        kept += 1;
    }
    assert_eq!(commit(&mut client, 1, kept + 1), KAFKA_STORAGE_ERROR);
    // (The line of this one might still have room.)
    broker.program.limit(Fsize, Some(1));
    let deleted = client.request(0, &forget_request(GROUP, 0));
    let error = deleted.topics[0].partitions[0].error_code;
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group(GROUP)]);
    let errors = [error, client.request(2, &request).results[0].error_code];
    assert_eq!(errors, [KAFKA_STORAGE_ERROR; 2]);
    // A topic is gone, though its offsets stay.
    assert_eq!(client.delete_topics(&["u"]), [0]);
    // What was refused is not there, and what was kept is whole.
    assert_eq!(committed(&mut client), [(0, kept)]);
    broker.program.limit(Fsize, None);
    assert_eq!(client.produce_to(-1, "t", 0, &next), (0, 1));
    assert_eq!(commit(&mut client, 1, 9), 0);
    broker.end(Signal::KILL);
    let killed = Instant::now();
    let (broker, mut client) = folder.open();
    assert_eq!(committed(&mut client), [(0, kept), (1, 9)]);
    assert_eq!(all(&mut client, "t").len(), 2 * one.len());
    let again = killed.elapsed();
    assert_eq!(broker.log(), [""; 0]);
    // Commits and batches that were acknowledged.
    let kept = kept + 1 + 2;
    println!("| F9 full disk, then kill -9 | broker | {kept} | 0 | {again:.1?} | {again:.1?} |");
}
