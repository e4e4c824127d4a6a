//! What waits, for how long, and what ends it.

use super::*;
use crate::data::Folder;
use std::net::Shutdown;

const REQUEST_TIMED_OUT: i16 = 7;

// Where something has to end a wait, or must not wait at all, the wait asked for (and the lag of a slow follower) is
// longer than the patience of these tests, so that its expiry cannot pass for that.

/// A broker whose follower gets nothing while a test lasts.
const SLOW: &[&str] = &["--replica-lag-ms", "600000"];

/// Error and length of what a fetch finds in its one partition, which takes as long as it may.
fn waited_out(client: &mut Client, fetch: &FetchRequest) -> (i16, usize) {
    let asked = Instant::now();
    let found = client.fetch(fetch).remove(0);
    assert!(asked.elapsed().as_millis() >= fetch.max_wait_ms as u128);
    (found.error_code, records(&found).len())
}

/// What a fetch waits for is measured by the rules of its answer: whole batches, a first one that is longer than any
/// limit, and none that would go beyond a limit.
#[test]
fn a_fetch_waits_for_as_much_as_it_wants_unless_its_answer_can_hold_no_more() {
    let (_broker, mut client) = Broker::with_topic(4, &[]);
    for (max_wait, least) in [(0, 1), (i32::MIN, i32::MAX), (60_000, 0), (60_000, -1)] {
        client.fetch(&fetch("t", 1, max_wait).with_min_bytes(least));
    }
    let batch = batch(&[&[0; 500]]);
    // Partition 0 has two batches, partitions 1 and 3 have one, partition 2 has none, and there is no partition 7.
    for partition in [0, 0, 1, 3] {
        assert_eq!(client.produce_to(-1, "t", partition, &batch).0, 0);
    }
    let one = batch.len() as i32;
    let (half, much) = (one / 2, 1 << 20);
    for (partitions, min_bytes, max_bytes, limit, expected, waits) in [
        // The limit of each, and of all.
        (&[0, 3][..], 1, much, 2 * one, &[2 * one, one][..], false),
        (&[0, 3], 1, much, 2 * one - 1, &[one, one], false),
        (&[0, 3, 1], 1, 3 * one, much, &[2 * one, one, 0], false),
        // The first batch is longer than the limit of its partition, or of all. It is the only one that may be.
        (&[0], one, much, half, &[one], false),
        (&[0, 1], 1, much, 1, &[one, 0], false),
        (&[0, 2, 1], 1, 1, much, &[one, 0, 0], false),
        (&[0, 1], 1, -1, i32::MIN, &[one, 0], false),
        (&[2, 1], one, half, much, &[0, one], false),
        (&[7, 2, 1], 1, 1, much, &[0, 0, one], false),
        // What is there lies beyond the limits, and so will all that comes.
        (&[0], 2 * one, one + half, much, &[one], false),
        (&[0, 1], 3 * one, much, one + 60, &[one, one], false),
        (&[1, 3], 3 * one, much, one, &[one, one], false),
        (&[1, 2], 2 * one, one + 60, much, &[one, 0], false),
        (&[], 1, much, much, &[], false),
        // Here more could come.
        (&[1], 2 * one, much, 2 * one, &[one], true),
        (&[1, 2], 2 * one, much, one, &[one, 0], true),
        (&[2], 2 * one, half, half, &[0], true),
    ] {
        let row = format!("{partitions:?} {min_bytes} {max_bytes} {limit}");
        let from: Vec<_> = partitions.iter().map(|partition| (*partition, 0)).collect();
        let max_wait = if waits { 300 } else { 600_000 };
        let mut fetch = fetch_from("t", &from, max_wait).with_min_bytes(min_bytes);
        for partition in &mut fetch.topics[0].partitions {
            partition.partition_max_bytes = limit;
        }
        let asked = Instant::now();
        let found = client.lengths(&fetch.with_max_bytes(max_bytes)).into_iter();
        assert!(
            found.eq(expected.iter().map(|bytes| *bytes as usize)),
            "{row}"
        );
        assert!(!waits || asked.elapsed().as_millis() >= 300, "{row}");
    }
}

/// Each partition has something to read long before there is enough in all of them, or one of them is deleted.
#[test]
fn min_bytes_are_counted_over_all_partitions() {
    let (broker, mut producer) = Broker::with_topic(3, &[]);
    let [mut consumer, mut others @ ..] = [(); 3].map(|()| broker.client());
    producer.create_topic("u", 1);
    let one = batch(&[&[0; 100]]);
    // One is there before the fetch comes, the others come while it waits.
    assert_eq!(producer.produce_to(-1, "t", 1, &one).0, 0);
    let mut all = fetch("t", 3, 60_000).with_min_bytes(4 * one.len() as i32);
    all.topics.extend(fetch("u", 1, 0).topics);
    let sent = consumer.send(FETCH, &all);
    for (topic, partition) in [("t", 0), ("t", 2), ("u", 0)] {
        // It is examined each time, and waits for the last.
        broker.wait_for_figure("fetch", 1);
        assert_eq!(producer.produce_to(-1, topic, partition, &one).0, 0);
    }
    let fetched = consumer.receive_fetched(sent).into_iter();
    assert!(fetched.map(|data| records(&data).len()).eq([one.len(); 4]));
    // Of "t" it has enough: more of it would change nothing, but its end does. Others behind it want that more.
    let mut both = fetch("t", 1, 60_000).with_min_bytes(1 << 20);
    both.topics[0].partitions[0].partition_max_bytes = 1;
    both.topics.extend(fetch("u", 1, 0).topics);
    let sent = consumer.send(FETCH, &both);
    broker.wait_for_figure("fetch", 1);
    let more = fetch_from("t", &[(0, 1)], 60_000);
    others.iter_mut().for_each(|it| _ = it.send(FETCH, &more));
    broker.wait_for_figure("fetch", 3);
    producer.produce("t", b"more");
    others.iter_mut().for_each(|it| _ = it.receive_fetched(1));
    assert_eq!(producer.delete_topics(&["t"]), [0]);
    let fetched = consumer.receive_fetched(sent).into_iter();
    let errors = fetched.map(|found| found.error_code);
    assert!(errors.eq([UNKNOWN_TOPIC_OR_PARTITION, 0]));
}

/// What is appended and not yet replicated is not there for a consumer, however it asks.
#[test]
fn consumers_see_nothing_beyond_the_high_watermark() {
    let (folder, one) = (Folder::new(), batch(&[b"value"]));
    let first = batch_from(7, 0, 0, &[b"value"]);
    let fifteen = batch(&[&vec![7; 15 << 20]]);
    {
        let (_broker, mut client) = folder.open();
        client.create_topic("t", 2);
        assert_eq!(client.produce_to(-1, "t", 0, &first), (0, 0));
        client.create_topic("u", 1);
        (0..2).for_each(|_| _ = client.produce_to(1, "u", 0, &fifteen));
    }
    // What it finds in its folder counts as replicated.
    let mut broker = Broker::with(&[SLOW, &["--data", &folder.argument()]].concat());
    let (mut consumer, mut producer) = (broker.client(), broker.client());
    // Appended later, and acknowledged by the leader alone.
    let later = patched(&one, 35, &2_000_i64.to_be_bytes());
    assert_eq!(producer.produce_to(1, "t", 0, &later), (0, 1));
    // What is replicated is acknowledged when it is sent again, whatever else has no time to be.
    let again = produce_request(-1, 300, "t", &[(0, Some(&first)), (1, Some(&one))]);
    let answer = produced(producer.request(PRODUCE, &again));
    assert_eq!(answer, [(0, 0), (REQUEST_TIMED_OUT, -1)]);
    let seen = consumer.fetch(&fetch("t", 1, 0));
    let found = (seen[0].high_watermark, records(&seen[0]).len());
    assert_eq!(found, (1, one.len()));
    for (offset, max_wait) in [(1, 0), (2, 300)] {
        let beyond = fetch_from("t", &[(0, offset)], max_wait);
        assert_eq!(waited_out(&mut consumer, &beyond), (0, 0));
    }
    assert_eq!(consumer.offset_at("t", -1), (0, 1), "latest");
    assert_eq!(consumer.offset_at("t", 1_001), (0, -1), "by time");
    // A fetch that begins there, and one that wants both, wait for the follower, also when more comes.
    let parked = consumer.send(FETCH, &fetch_from("t", &[(0, 1)], 60_000));
    let mut other = broker.client();
    let both = fetch("t", 1, 60_000).with_min_bytes(2 * one.len() as i32);
    let wants_both = other.send(FETCH, &both);
    broker.wait_for_figure("fetch", 2);
    assert_eq!(producer.produce_to(1, "t", 0, &one), (0, 2));
    broker.wait_for_figure("fetch", 2);
    // Too much for one partition, but a segment stays of which the follower has the first record only.
    for offset in 3..8 {
        assert_eq!(producer.produce_to(1, "t", 0, &fifteen), (0, offset));
    }
    assert_eq!(producer.offset_at("t", -2), (0, 0), "earliest");
    // And one goes that the follower has to its end.
    (0..3).for_each(|_| _ = producer.produce_to(1, "u", 0, &fifteen));
    assert_eq!(producer.offset_at("u", -2), (0, 2), "earliest");
    broker.program.signal(Signal::TERM);
    assert!(records(&consumer.receive_fetched(parked)[0]).is_empty());
    let fetched = other.receive_fetched(wants_both);
    assert_eq!(records(&fetched[0]).len(), one.len());
    broker.program.wait();
}

#[test]
fn produces_wait_for_the_follower_as_long_as_they_want_to() {
    let (one, again) = (batch(&[b"value"]), batch_from(7, 0, 0, &[b"value"]));
    let send = |producer: &mut Client, acks, timeout, batch: &[u8], partitions: &[i32]| {
        let data = partitions.iter().map(|index| (*index, Some(batch)));
        let request = produce_request(acks, timeout, "t", &data.collect::<Vec<_>>());
        let started = Instant::now();
        let answer = producer.request(PRODUCE, &request);
        let told = answer.responses[0].partition_responses.iter();
        assert!(told.map(|it| &it.index).eq(partitions));
        (produced(answer), started.elapsed().as_millis())
    };
    let (_broker, mut producer) = Broker::with_topic(1, SLOW);
    for (acks, timeout, error, least, batch) in [
        (1, 60_000, 0, 0, &again),
        // What is sent again waits for what was appended the first time.
        (-1, 300, REQUEST_TIMED_OUT, 300, &again),
        (-1, -5, REQUEST_TIMED_OUT, 0, &one),
    ] {
        let (answer, waited) = send(&mut producer, acks, timeout, batch, &[0]);
        assert_eq!(answer[0].0, error, "{acks} {timeout}");
        assert!(waited >= least, "{acks} {timeout}: {waited}");
    }
    let (_broker, mut producer) = Broker::with_topic(2, &["--replica-lag-ms", "1000"]);
    // What times out is there all the same, once the follower has it. (A slow machine may find it at once.)
    send(&mut producer, -1, 0, &one, &[0]);
    let (answer, waited) = send(&mut producer, -1, 60_000, &one, &[0]);
    assert!(answer == [(0, 1)] && waited >= 1_000, "{waited}");
    assert_eq!(producer.fetch(&fetch("t", 1, 0))[0].high_watermark, 2);
    // The follower gets the shorter of two partitions last, and the answer waits for both, whatever a third says.
    let (answer, _) = send(&mut producer, -1, 60_000, &one, &[7, 0, 1]);
    assert_eq!(answer, [(UNKNOWN_TOPIC_OR_PARTITION, -1), (0, 2), (0, 0)]);
}

#[test]
fn what_waits_for_a_deleted_topic_is_told() {
    let (broker, mut admin) = Broker::with_topic(2, SLOW);
    let [mut consumer, mut producer, mut next @ ..] = [(); 4].map(|()| broker.client());
    let fetched = consumer.send(FETCH, &fetch("t", 2, 60_000));
    admin.create_topic("u", 2);
    let values = batch(&[b"value"]);
    let to = |topic, partition| produce_request(-1, 60_000, topic, &[(partition, Some(&values))]);
    let mut request = to("t", 0);
    request.topic_data.extend(to("u", 1).topic_data);
    let sent = producer.send(PRODUCE, &request);
    broker.wait_for_figure("produce", 1);
    // Those that come later wait for the first of these topics alone.
    next.iter_mut()
        .for_each(|it| _ = it.send(PRODUCE, &to("t", 0)));
    broker.wait_for_figure("produce", 3);
    broker.wait_for_figure("fetch", 1);
    // A part of another request, and not even of its length the whole.
    let another = frame(0, 9, &ApiVersionsRequest::default());
    consumer.send_raw(&another[..2]);
    broker.wait_for_figure("fetch", 1);
    assert_eq!(admin.delete_topics(&["t"]), [0]);
    for data in consumer.receive_fetched(fetched) {
        assert_eq!(data.error_code, UNKNOWN_TOPIC_OR_PARTITION);
    }
    consumer.send_raw(&another[2..]);
    consumer.receive::<ApiVersionsRequest>(0, 9);
    for mut next in next {
        let answer = produced(next.receive::<ProduceRequest>(PRODUCE, 1));
        assert_eq!(answer, [(UNKNOWN_TOPIC_OR_PARTITION, -1)]);
    }
    // A produce waits for all of its topics.
    assert_eq!(admin.delete_topics(&["u"]), [0]);
    let answer = produced(producer.receive::<ProduceRequest>(PRODUCE, sent));
    assert_eq!(answer, [(UNKNOWN_TOPIC_OR_PARTITION, -1); 2]);
}

/// Before the broker has read the request, while it waits, and while the answer is on its way. What waits is answered
/// as if its time were over, and a produce whose replicas are not far behind as if it had stayed.
#[test]
fn who_closes_the_sending_half_is_answered_whenever_that_is() {
    let broker = Broker::with(&["--replica-lag-ms", "100", "--group-delay-ms", "60000"]);
    let mut witness = broker.client();
    witness.create_topic("t", 1);
    let half_close = |client: &Client| client.socket.shutdown(Shutdown::Write).expect("end");
    let value = batch(&[b"value"]);
    let produce = produce_request(-1, 60_000, "t", &[(0, Some(&value))]);
    let join = join_request("");
    for round in 0..24 {
        let [mut fetches, mut produces, mut joins] = [(); 3].map(|()| broker.client());
        // Nothing is there yet.
        let at_end = fetch_from("t", &[(0, 2 * round)], 60_000);
        let sent = fetches.send(FETCH, &at_end);
        let next = fetches.send(0, &ApiVersionsRequest::default());
        joins.send(3, &join);
        match round % 3 {
            0 => {}
            1 => std::thread::sleep(Duration::from_micros(100 * round as u64)),
            _ => {
                broker.wait_for_figure("fetch", 1);
                broker.wait_for_figure("rebalances", 1);
            }
        }
        [&fetches, &joins].into_iter().for_each(half_close);
        let found = fetches.receive_fetched(sent);
        assert_eq!(records(&found[0]).len(), 0);
        fetches.receive::<ApiVersionsRequest>(0, next);
        fetches.assert_closed();
        let joined = joins.receive::<JoinGroupRequest>(3, 1);
        assert_eq!(joined.error_code, Code::RebalanceInProgress.code());
        joins.assert_closed();
        // Two, of which the second waits behind the first.
        let both = [(); 2].map(|()| produces.send(PRODUCE, &produce));
        half_close(&produces);
        for sent in both {
            let answer = produced(produces.receive::<ProduceRequest>(PRODUCE, sent));
            assert_eq!(answer[0].0, 0, "round {round}");
        }
        produces.assert_closed();
    }
    // A part of a request is none.
    let mut torn = broker.client();
    torn.send_raw(&frame(PRODUCE, 1, &produce)[..20]);
    half_close(&torn);
    torn.assert_closed();
    // A long answer, of which the client has not read much.
    let long = batch(&[&vec![7; 8 << 20]]);
    let (error, offset) = witness.produce_to(-1, "t", 0, &long);
    assert_eq!(error, 0);
    let mut slow = broker.client();
    let sent = slow.send_unread(FETCH, &fetch_from("t", &[(0, offset)], 60_000));
    half_close(&slow);
    std::thread::sleep(Duration::from_millis(200));
    let found = slow.receive_fetched(sent);
    assert_eq!(records(&found[0]).len(), long.len());
    slow.assert_closed();
    let log = broker.log();
    let is_torn = log.len() == 1 && log[0].contains("inside a frame");
    assert!(is_torn, "{log:?}");
}

#[test]
fn a_client_that_leaves_takes_its_requests_along_however_it_leaves() {
    let broker = Broker::with(SLOW);
    broker.client().create_topic("t", 10);
    let produce = produce_request(-1, 60_000, "t", &[(0, Some(&batch(&[b"value"])))]);
    let produce = frame(PRODUCE, 1, &produce);
    let too_many = frame(FETCH, 1, &fetch("t", 1, 60_000)).repeat(600);
    let fetch = frame(FETCH, 1, &fetch("t", 10, 60_000));
    // Its machine crashes: a reset instead of a close, since it leaves an answer unread.
    let crashed = [&frame(0, 0, &ApiVersionsRequest::default())[..], &fetch].concat();
    let torn = [&fetch[..], &[0, 0, 1, 0, 1, 2, 3]].concat();
    for (figure, sent) in [
        ("produce", produce),
        ("fetch", fetch),
        ("fetch", too_many),
        ("fetch", crashed),
        ("fetch", torn),
    ] {
        let mut clients = [(); 10].map(|()| broker.client());
        clients.iter_mut().for_each(|it| it.send_raw(&sent));
        broker.wait_for_figure(figure, 10);
        drop(clients);
        broker.wait_for_figure(figure, 0);
        broker.wait_for_figure("connections", 0);
    }
    // None of them is any trouble, but those that stop in a request.
    let log = broker.log();
    let is_torn = |line: &String| line.contains("inside a frame");
    assert!(log.iter().all(is_torn), "{log:#?}");
}
