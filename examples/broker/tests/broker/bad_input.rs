//! Input that no client library would send. Whatever comes, the broker answers with an error of the protocol or closes
//! that connection with one line on stderr; it does not panic, its memory stays bounded, and it serves all others.
//!
//! `ATTACK_TIMES` makes the attacks that many times as long. Figures go to stdout (`--nocapture`).

use super::*;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Frames that are refused, each with the reason for it that is logged. (The decoder has its own test, of any bytes.)
fn refused() -> Vec<(Vec<u8>, &'static str)> {
    let body = |api: u8, version: u8, rest: &[u8]| {
        framed(&[&[0, api, 0, version, 0, 0, 0, 1, 0xff, 0xff], rest].concat())
    };
    let no_utf8 = body(3, 1, b"\0\0\0\x01\0\x02\xff\xfe");
    let whole = frame(FETCH, 1, &fetch("t", 1, 60_000));
    let too_many = frame(FETCH, 1, &fetch("t", 20_000, 60_000));
    // One tagged field more than there may be elements, in the header or at the end of the body.
    let tags = [&[0xa1, 0x9c, 1][..], &[100, 0].repeat(20_001)].concat();
    let mut refused = vec![
        (vec![0, 0, 0, 7, 0, 1, 0, 11, 0, 0, 0], "too short"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "frame length"),
        (i32::MIN.to_be_bytes().to_vec(), "frame length"),
        // A name that is no UTF-8, and a count that is a varint.
        (no_utf8, "malformed Metadata"),
        (body(3, 9, &[0xff; 16]), "malformed Metadata"),
        (body(4, 0, &[]), "unknown API key"),
        (body(0, 2, &[]), "not supported"),
        (body(1, 13, &[]), "not supported"),
        (too_many, "or too many"),
        (body(3, 9, &[&tags[..], &[0; 5]].concat()), "or too many"),
        (body(3, 9, &[&[0; 5], &tags[..]].concat()), "or too many"),
    ];
    // Each array of each request, by API and version: how many zeros are before its count, or before and behind the 1 of
    // the arrays around it. (That it is the walk that says so: the decoder would ask for the memory first.)
    let arrays = "0 3 8 8,2;1 11 25 25,2 29 29,2;2 1 4 4,2;3 0 0;8 2 16 16,2;9 1 2 2,2;11 2 14;13 3 2;14 0 8;15 0 0;\
                  19 2 0 0,8 0,8,4 0,12;20 1 0;32 1 0 0,3;42 0 0;47 0 2 2,2";
    let number = |word: &str| word.parse::<u8>().expect("a number");
    for request in arrays.split(';') {
        let mut words = request.split(' ');
        let [api, version] = [(); 2].map(|()| number(words.next().expect("two numbers")));
        for array in words {
            let zeros = array.split(',').map(|word| vec![0; number(word).into()]);
            let before = zeros.collect::<Vec<_>>().join(&[0, 0, 0, 1][..]);
            for count in [1, 1_000_000, i32::MAX - 1, -2, i32::MIN] {
                let rest = [&before[..], &count.to_be_bytes()].concat();
                refused.push((body(api, version, &rest), "fields end after the frame"));
            }
        }
    }
    let cut = |length| (framed(&whole[4..4 + length]), "malformed Fetch v11");
    refused.extend((18..whole.len() - 4).map(cut));
    refused
}

#[test]
fn what_is_no_request_closes_its_connection_and_disturbs_no_other() {
    let (broker, mut witness) = Broker::with_topic(1, &["--log-lines", "10000"]);
    let parked = witness.send(FETCH, &fetch("t", 1, 60_000));
    broker.wait_for_figure("fetch", 1);
    let memory = broker.program.resident_memory();
    // What was asked before does not outlive it.
    let mut stranger = broker.client();
    stranger.send(FETCH, &fetch("t", 1, 60_000));
    broker.wait_for_figure("fetch", 2);
    stranger.send_raw(&[0xff; 100]);
    stranger.assert_closed();
    eventually("line", || broker.log().len() == 1);
    for (number, (bytes, reason)) in refused().into_iter().enumerate() {
        let mut stranger = broker.client();
        stranger.send_raw(&bytes);
        // A frame of an absurd length may be waited for, until its sender is gone.
        stranger.socket.shutdown(Shutdown::Write).expect("end");
        stranger.assert_closed();
        let is_there = |log: &Vec<_>| log.len() == number + 2;
        let log = found("line", || Some(broker.log()).filter(is_there));
        assert!(log[number + 1].contains(reason), "{bytes:?}: {log:#?}");
    }
    let lines = broker.log().len();
    let mut stranger = broker.client();
    // As many elements as there may be.
    let fetched = stranger.fetch(&fetch("missing", 19_999, 60_000));
    let is_unknown = |data: &PartitionData| data.error_code == UNKNOWN_TOPIC_OR_PARTITION;
    assert!(fetched.iter().all(is_unknown));
    // Bytes after the last field are let pass, as librdkafka's Metadata request has them, up to the longest request.
    let mut longest = frame(FETCH, 9, &fetch("missing", 1, 0))[4..].to_vec();
    longest.resize(20 << 20, 0);
    stranger.send_raw(&framed(&longest));
    stranger.receive_fetched(9);
    assert_eq!(broker.log().len(), lines);
    let grown = broker.program.resident_memory().saturating_sub(memory);
    assert!(grown < 64 << 20, "memory grew by {grown}");
    broker.wait_for_figure("connections", 2);
    stranger.produce("t", b"value");
    witness.receive_fetched(parked);
}

/// A version that is too old is told once, whoever has it; of all else there are few lines in a second.
#[test]
fn clients_cause_few_lines_in_the_log() {
    let broker = Broker::with(&[]);
    let call = |api, version| framed(&[0, api, 0, version, 0, 0, 0, 1, 0xff, 0xff]);
    let begun = Instant::now();
    for _ in 0..200 {
        for bytes in [call(0, 2), call(1, 3), call(4, 0), vec![0xff; 100]] {
            let mut client = broker.client();
            client.send_raw(&bytes);
            client.assert_closed();
        }
    }
    let seconds = begun.elapsed().as_secs() as usize + 1;
    let log = broker.log();
    for call in ["Produce v2", "Fetch v3"] {
        let told: Vec<_> = log.iter().filter(|line| line.contains(call)).collect();
        let is_told = told.len() == 1 && told[0].contains("not supported");
        assert!(is_told, "{log:?}");
    }
    // More than one for those, since they are of different kinds of trouble.
    assert!((12..=2 + 10 * seconds).contains(&log.len()), "{log:#?}");
}

/// What a thread does that attacks, in one of several ways: frames that are sent but for their end, requests of as many
/// names as there may be, and fetches of much data that is never read.
fn attack(broker: &Broker, over: &AtomicBool, done: &AtomicU64, number: usize) {
    let mut half_sent = vec![0; 20_000_000];
    half_sent[..4].copy_from_slice(&20_000_000_i32.to_be_bytes());
    let names = (0..19_999).map(|number| format!("bad name {number}"));
    let names = frame(9, 1, &metadata_request(&names.collect::<Vec<_>>()));
    let never_read = frame(FETCH, 1, &fetch("big", 1, 60_000)).repeat(1_000);
    let bytes = &[half_sent, names, never_read][number % 3];
    while !over.load(Ordering::Relaxed) {
        let mut socket = TcpStream::connect(broker.address).expect("connect");
        let limit = Some(Duration::from_millis(100));
        socket.set_write_timeout(limit).expect("not zero");
        let mut rest = &bytes[..];
        // Until the broker closes the connection, or has taken it all and does nothing more.
        while !rest.is_empty() && !over.load(Ordering::Relaxed) {
            match socket.write(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(50));
    }
}

/// Whatever clients do together, the broker stays below 300 MB, and a client that behaves is answered soon.
#[test]
fn attacks_take_no_more_memory_than_there_is_for_all() {
    let times = std::env::var("ATTACK_TIMES").ok();
    let times = times.map(|times| times.parse::<u32>().expect("a number"));
    let mut broker = Broker::with(&[]);
    let mut innocent = broker.client();
    innocent.create_topic("innocent", 1);
    innocent.create_topic("big", 1);
    for _ in 0..8 {
        let two = batch(&[&vec![0; 2 << 20]]);
        assert_eq!(innocent.produce_to(1, "big", 0, &two).0, 0);
    }
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut waits, mut most) = (Vec::new(), 0);
    thread::scope(|scope| {
        let (broker, over, done) = (&broker, &over, &done);
        for number in 0..45 {
            scope.spawn(move || attack(broker, over, done, number));
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(6) * times.unwrap_or(1) {
            let sent = Instant::now();
            let offset = innocent.produce("innocent", b"value");
            innocent.fetch(&fetch_from("innocent", &[(0, offset)], 1_000));
            waits.push(sent.elapsed() / 2);
            most = most.max(broker.program.resident_memory());
        }
        over.store(true, Ordering::Relaxed);
    });
    waits.sort();
    let p99 = waits[(waits.len() - 1) * 99 / 100];
    println!("{done:?} attacks; at most {most} bytes; p99 of the innocent {p99:.1?}");
    assert!(done.into_inner() > 0, "no attack was made");
    assert!(most <= 300_000_000, "{most} bytes");
    // The attackers and other tests have the same processors: only alone does the time say something of the broker.
    let soon = if times.is_some() { 50 } else { 10_000 };
    assert!(p99 <= Duration::from_millis(soon), "{p99:?}");
    broker.may_miss = true;
}

#[test]
fn an_idle_connection_has_no_memory_of_a_long_request() {
    let broker = Broker::with(&[]);
    let (memory, long) = (
        broker.program.resident_memory(),
        batch(&[&vec![0; 15 << 20]]),
    );
    let _idle = [(); 20].map(|()| {
        let mut client = broker.client();
        let (error, _) = client.produce_to(1, "missing", 0, &long);
        assert_eq!(error, UNKNOWN_TOPIC_OR_PARTITION);
        client
    });
    let grown = broker.program.resident_memory().saturating_sub(memory);
    assert!(grown < 150 << 20, "memory grew by {grown}");
}

/// The longest answers, as read and as encoded: there is memory for one, and the next is waited for, not for ever. That
/// long requests wait changes nothing; there is room for three, and the next is answered at once.
#[test]
fn an_answer_has_memory_or_is_not_made() {
    let (mut broker, mut first) = Broker::with_topic(1, &[]);
    let long = batch(&[&vec![0; 15 << 20]]);
    assert_eq!(first.produce_to(-1, "t", 0, &long).0, 0);
    // What does not fit into the answer takes no memory.
    let twice = fetch_from("t", &[(0, 0); 2], 0);
    assert_eq!(first.lengths(&twice), [long.len(), 0]);
    // A request and its answer that take more together than there is: the one goes before the other comes.
    let forgotten = ForgottenTopic::default().with_topic(topic_name(&"t".repeat(32_000)));
    let twenty = fetch("t", 1, 0).with_forgotten_topics_data(vec![forgotten; 640]);
    assert_eq!(first.lengths(&twenty), [long.len()]);
    // As many elements as there may be, and the one partition very often.
    let many = fetch_from("t", &[(0, 1); 19_000], 600_000);
    let waiting = [1, 2, 3].map(|parked| {
        let mut client = broker.client();
        client.send(FETCH, &many);
        broker.wait_for_figure("fetch", parked);
        client
    });
    assert_eq!(first.fetch(&many).len(), 19_000);
    let sent = first.send_unread(FETCH, &fetch("t", 1, 60_000));
    // There is memory for this one as it comes, and no more for what it is decoded into.
    let mut decoded = frame(FETCH, 1, &many)[4..].to_vec();
    decoded.resize(14 << 20, 0);
    let mut stranger = broker.client();
    stranger.send_raw(&framed(&decoded));
    let mut second = broker.client();
    second.send(FETCH, &fetch("t", 1, 60_000));
    // The second waits for memory, for 10 seconds. What is short waits for none.
    thread::sleep(Duration::from_millis(100));
    let asked = Instant::now();
    assert_eq!(broker.client().offset_at("t", -1), (0, 1));
    assert!(asked.elapsed() < Duration::from_secs(9));
    second.assert_closed();
    stranger.assert_closed();
    broker.wait_for_log("no memory for");
    first.receive_fetched(sent);
    let late = broker.client().lengths(&fetch("t", 1, 60_000));
    assert_eq!(late, [long.len()]);
    broker.assert_clean((first, second, waiting));
    // Clients that do not read their answers have no share of what may be parked: others may still wait.
    let (mut client, shorter) = (broker.client(), batch(&[&vec![0; 9 << 19]]));
    assert_eq!(client.produce_to(-1, "t", 0, &shorter), (0, 1));
    let mut from = [(0, 2); 19_000];
    let many = fetch_from("t", &from, 600_000);
    from[0].1 = 1;
    let unread = [(); 3].map(|()| {
        let mut client = broker.client();
        client.send_unread(FETCH, &fetch_from("t", &from, 600_000));
        client
    });
    client.send(FETCH, &many);
    broker.wait_for_figure("fetch", 1);
    broker.assert_clean((client, unread));
    // Nor can one keep the broker from ending. Others are refused meanwhile, rather than left without an answer.
    let mut unread = broker.client();
    unread.send_unread(FETCH, &fetch("t", 1, 60_000));
    broker.program.signal(Signal::TERM);
    found("refusal", || TcpStream::connect(broker.address).err());
    broker.wait_for_figure("connections", 1);
    assert_eq!(broker.program.wait().code(), Some(0));
    broker.wait_for_log("did not take their last answers");
}

/// One that repeats the names of its request has the memory of that, until it is on its way as a whole.
#[test]
fn an_answer_on_its_way_keeps_the_memory_of_its_request() {
    let broker = Broker::with(&[]);
    // 19 MB.
    let names: Vec<_> = (0..600).map(|number| format!("{number:032000}")).collect();
    let request = metadata_request(&names).with_allow_auto_topic_creation(false);
    let _unread = [(); 2].map(|()| {
        let mut client = broker.client();
        client.send_unread(8, &request);
        client
    });
    let mut third = broker.client();
    third.send_raw(&frame(8, 1, &request)[..1_000]);
    third.assert_closed();
    broker.wait_for_log("no memory for");
}

/// Answers longer than their requests wait for memory, the longest for nearly all, and hold none that others wait for.
#[test]
fn long_answers_that_are_asked_for_together_are_all_made() {
    let (broker, mut client) = Broker::with_topic(5_900, &["--group-delay-ms", "0"]);
    let resource = DescribeConfigsResource::default().with_resource_type(2);
    let resource = resource.with_resource_name(text("t"));
    // As many as there may be.
    let settings = DescribeConfigsRequest::default().with_resources(vec![resource; 19_999]);
    for first in [0, 2_950] {
        let half: Vec<_> = (first..first + 2_950).map(|index| (index, 7)).collect();
        let mut commit = commit_request(("long", "", -1), &half, 1);
        for partition in &mut commit.topics[0].partitions {
            partition.committed_metadata = Some(text(&format!("{:4096}", 7)));
        }
        assert_eq!(commit_errors(&client.request(7, &commit)), [0; 2_950]);
    }
    let found = offsets(client.request(5, &offsets_request("long")));
    assert_eq!(found.len(), 5_900);
    // The longest names that there are, of groups whose leaders say nothing.
    let longest = |number: usize| text(&format!("{number:0255}"));
    for number in 0..120 {
        let join = join_request("").with_group_id(GroupId(longest(number)));
        let answer = client.request(3, &join.with_protocol_type(longest(0)));
        assert_eq!(answer.error_code, 0);
    }
    let listed = ListGroupsRequest::default().with_states_filter(vec![text("CompletingRebalance")]);
    assert_eq!(client.request(4, &listed).groups.len(), 120);
    let many: Vec<_> = (0..10_000).collect();
    let named = offsets_of("none", &[("t", &many)]);
    let missing: Vec<_> = (0..5_000).map(|number| number.to_string()).collect();
    let missing = metadata_request(&missing).with_allow_auto_topic_creation(false);
    let together = |count, ask: &(dyn Fn(&mut Client) + Sync)| {
        thread::scope(|scope| {
            (0..count).for_each(|_| _ = scope.spawn(|| ask(&mut broker.client())));
        });
    };
    let results = |it: &mut Client| it.request(1, &settings).results;
    together(3, &|it| assert_eq!(results(it).len(), 19_999));
    together(40, &|it| {
        assert_eq!(it.request(5, &named).topics[0].partitions.len(), 10_000);
        assert_eq!(it.request(8, &missing).topics.len(), 5_000);
    });
}
