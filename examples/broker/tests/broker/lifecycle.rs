//! The program itself: where it listens, its end, and its demonstration.

use super::*;
use std::net::ToSocketAddrs;
use std::process::Command;

#[test]
fn a_name_is_served_at_all_its_addresses_or_refused() {
    let broker = Broker::with(&["--listen", "localhost:0"]);
    let addresses = ("localhost", broker.address.port()).to_socket_addrs();
    for address in addresses.expect("localhost is known") {
        Client::open(address).create_topic(&format!("t{}", address.is_ipv4()), 1);
    }
    let taken = broker.address.to_string();
    for taken in [&*taken, "no.such.host.invalid:9092", "nowhere"] {
        let output = output(&["serve", "--listen", taken]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        let reason = format!("cannot listen on {taken}");
        assert!(stderr.contains(&reason), "{stderr}");
    }
}

/// A machine has many addresses, and a client knows that by which it has come.
#[test]
fn clients_are_sent_to_the_address_where_they_reached_the_broker() {
    let broker = Broker::with(&["--listen", "0.0.0.0:0"]);
    let port = broker.address.port();
    let mut client = Client::open(([127, 0, 0, 2], port).into());
    let from = client.socket.local_addr().unwrap().ip();
    assert_ne!(from, client.socket.peer_addr().unwrap().ip());
    let found = client.request(2, &FindCoordinatorRequest::default());
    assert_eq!((&*found.host, found.port), ("127.0.0.2", i32::from(port)));
    let found = &client.request(8, &MetadataRequest::default()).brokers[0];
    assert_eq!((&*found.host, found.port), ("127.0.0.2", i32::from(port)));
    // An administrator is told where they came from.
    client.send(3, &join_request("").with_rebalance_timeout_ms(60_000));
    broker.wait_for_figure("members", 1);
    let group = DescribeGroupsRequest::default().with_groups(vec![group(GROUP)]);
    let found = &broker.client().request(5, &group).groups[0].members[0];
    assert_eq!(*found.client_host, *format!("/{from}"));
}

/// There is no file descriptor left for a while: who connects meanwhile is served later.
#[test]
#[cfg(target_os = "linux")]
fn a_broker_that_cannot_accept_goes_on() {
    use testing::program::Resource::Nofile;
    let broker = Broker::with(&["--report-ms", "0"]);
    let before = broker.program.limit(Nofile, Some(1));
    let mut client = broker.client();
    broker.wait_for_log("cannot accept a connection");
    broker.program.limit(Nofile, before);
    client.create_topic("t", 1);
}

#[test]
fn a_signal_answers_every_parked_request() {
    for signal in [Signal::TERM, Signal::INT] {
        let options = ["--replica-lag-ms", "60000", "--group-delay-ms", "60000"];
        let (mut broker, mut producer) = Broker::with_topic(10, &options);
        let mut consumers: Vec<_> = (0..50).map(|_| broker.client()).collect();
        // Another request is right behind it, and is not taken up any more.
        let next = frame(0, 2, &ApiVersionsRequest::default());
        let both = [frame(FETCH, 1, &fetch("t", 10, 60_000)), next].concat();
        consumers.iter_mut().for_each(|it| it.send_raw(&both));
        let request = produce_request(-1, 60_000, "t", &[(0, Some(&batch(&[b"value"])))]);
        let sent = producer.send(PRODUCE, &request);
        broker.wait_for_figure("fetch", 50);
        let mut members = [(); 2].map(|()| broker.client());
        let join = join_request("").with_rebalance_timeout_ms(60_000);
        members.iter_mut().for_each(|it| _ = it.send(3, &join));
        broker.wait_for_figure("watched", 50 * 10 + 1);
        broker.wait_for_figure("members", 2);
        broker.wait_for_figure("rebalances", 1);
        broker.program.signal(signal);
        for consumer in &mut consumers {
            let fetched = consumer.receive_fetched(1);
            assert!(fetched.len() == 10 && fetched.iter().all(|data| records(data).is_empty()));
            consumer.assert_closed();
        }
        let answer = produced(producer.receive::<ProduceRequest>(PRODUCE, sent));
        assert_eq!(answer[0].0, 7, "REQUEST_TIMED_OUT");
        producer.assert_closed();
        for mut member in members {
            let joined = member.receive::<JoinGroupRequest>(3, 1);
            assert_eq!(joined.error_code, 16, "NOT_COORDINATOR");
            member.assert_closed();
        }
        assert_eq!(broker.program.wait().code(), Some(0));
        // After five seconds it would say that some did not take their answers.
        assert_eq!(broker.log(), [""; 0]);
    }
}

/// Heartbeats lie in its socket meanwhile. Of what is over all is over, and of what is not nothing. There are so many
/// members that most heartbeats come before their groups know of the expiry. (Whether one comes before the thread that
/// expires sessions is chance here: `a_member_whose_session_is_over_is_told_so_whatever_it_asks` is about that.)
#[test]
fn a_stall_ends_all_sessions_that_were_over_by_the_clock_and_no_other() {
    const MEMBERS: usize = 1_000;
    let broker = Broker::with(&["--group-delay-ms", "0"]);
    let mut client = broker.client();
    // Each is in a group of its own, which only its own session can end. Every other one has a minute.
    let joins = (0..MEMBERS).map(|number| {
        let join = join_request("").with_group_id(group(&number.to_string()));
        join.with_session_timeout_ms([60_000, 6_000][number % 2])
    });
    let joins: Vec<_> = joins.collect();
    let sent: Vec<_> = joins.iter().map(|join| client.send(3, join)).collect();
    let beats = joins.into_iter().zip(sent).map(|(join, sent)| {
        let joined = client.receive::<JoinGroupRequest>(3, sent);
        heartbeat_request(&joined.member_id, joined.generation_id).with_group_id(join.group_id)
    });
    let beats: Vec<_> = beats.collect();
    let over = Code::UnknownMemberId.code();
    // Who was told that it lives does, and the others do not.
    for (seconds, expected) in [(0, [0, 0]), (7, [0, over]), (0, [0, over])] {
        broker.program.signal(Signal::STOP);
        let sent: Vec<_> = beats.iter().map(|beat| client.send(0, beat)).collect();
        std::thread::sleep(Duration::from_secs(seconds));
        broker.program.signal(Signal::CONT);
        for (number, sent) in sent.into_iter().enumerate() {
            let answer = client.receive::<HeartbeatRequest>(0, sent);
            assert_eq!(answer.error_code, expected[number % 2], "{number}");
        }
    }
    broker.wait_for_figure("members", MEMBERS as u64 / 2);
}

#[test]
fn the_demonstration_answers_everything() {
    let output = output(&["demo", "--seconds", "2"]);
    let [stdout, stderr] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    let figure = |name: &str| {
        let rest = stdout.lines().find_map(|line| line.strip_prefix(name));
        let number = rest.and_then(|rest| rest.trim_start().split([' ', '.', '\n']).next());
        let number = number.unwrap_or_else(|| panic!("no {name} in {stdout}"));
        number.parse::<u64>().expect("a number")
    };
    assert_eq!(figure("ended by shutdown"), 0);
    // The follower is 10 ms behind, and a consumer sees nothing before.
    for name in ["produce to consumer", "produce to its answer"] {
        assert!(figure(name) >= 10, "{name}: {stdout}");
    }
    for name in ["completed or client left", "expired"] {
        assert!(figure(name) > 100, "{name}: {}", figure(name));
    }
    assert_eq!(stdout.matches("requests/s").count(), 2);
    // `broker | head -n 1` is no failure. (Without a command it is the demonstration as well.)
    let script = "set -o pipefail; \"$0\" demo --seconds 600 | head -n 1 && \"$0\" | head -n 1";
    let mut piped = Command::new("bash");
    let output = run(piped.args(["-c", script]).arg(command().get_program()), "");
    let stderr = String::from_utf8_lossy(&output.stderr);
    // On a loaded machine a check may come after a deadline, which a debug build reports.
    let mut said = stderr
        .lines()
        .filter(|line| !line.starts_with("request-purgatory: "));
    assert_eq!((output.status.code(), said.next()), (Some(0), None));
}
