//! The requests of groups, in every version, and what no client library would send.

use crate::admin::delete_topics;
use crate::data::Folder;
use crate::process::Broker;
use crate::requests::create_topic;
use crate::wire::{
    Connection, DELETE_GROUPS, DESCRIBE_GROUPS, FIND_COORDINATOR, HEARTBEAT, JOIN_GROUP,
    LEAVE_GROUP, LIST_GROUPS, OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, Reader, SYNC_GROUP,
    Writer, frame,
};

const MEMBER_ID_REQUIRED: i16 = 79;
const NEWEST: i16 = 9;

/// A client that speaks every request in the version with this number, or in the next one that there is.
struct Client {
    broker: Broker,
    connection: Connection,
    round: i16,
}

impl Client {
    fn new(round: i16) -> Self {
        let broker = Broker::with_arguments(&["--group-delay-ms", "0"]);
        let mut connection = Connection::open(broker.address());
        create_topic(&mut connection, "t", 2);
        Self {
            broker,
            connection,
            round,
        }
    }

    fn body(&self, api: i16, first: i16, last: i16) -> Writer {
        Writer::body(api, self.round.clamp(first, last))
    }

    /// Sends a request, and skips what most answers begin with.
    fn ask(&mut self, api: i16, body: Writer, throttled_since: i16) -> Reader {
        let mut answer = self.connection.request(api, &body);
        answer.since(throttled_since, |answer| {
            assert_eq!(answer.int32(), 0, "throttle time")
        });
        answer
    }

    fn find_coordinator(&mut self) {
        let mut body = self.body(FIND_COORDINATOR, 0, 4);
        body = match body.version {
            0..=3 => body.string("g").since(1, |body| body.int8(0)),
            _ => body.int8(0).count(1).string("g"),
        };
        let address = self.broker.address();
        let mut answer = self.ask(FIND_COORDINATOR, body.end(), 1);
        if answer.version < 4 {
            assert_eq!(answer.int16(), 0);
            answer.since(1, |answer| answer.string());
            check_node(&mut answer, &address.to_string());
        } else {
            answer.list(|answer| {
                assert_eq!(answer.string().as_deref(), Some("g"));
                check_node(answer, &address.to_string());
                assert_eq!(answer.int16(), 0);
                answer.string();
                answer.end();
            });
        }
        answer.end();
        answer.finish();
    }

    /// Joins until it is a member; returns its id. It is alone, so it leads.
    fn join(&mut self) -> String {
        let mut member = String::new();
        loop {
            let body = self
                .body(JOIN_GROUP, 0, 9)
                .string("g")
                .int32(10_000)
                .since(1, |body| body.int32(10_000))
                .string(&member)
                .since(5, |body| body.null_string())
                .string("consumer")
                .count(1)
                .string("range")
                .blob(b"metadata")
                .end()
                .since(8, |body| body.string("because"))
                .end();
            let mut answer = self.ask(JOIN_GROUP, body, 2);
            let error = answer.int16();
            let generation = answer.int32();
            answer.since(7, |answer| answer.string());
            let protocol = answer.string().expect("a protocol");
            let leader = answer.string().expect("a leader");
            answer.since(9, |answer| assert_eq!(answer.int8(), 0, "skip assignment"));
            member = answer.string().expect("a member id");
            let version = answer.version;
            let members = answer.list(|answer| {
                let id = answer.string().expect("a member id");
                if version >= 5 {
                    assert_eq!(answer.string(), None, "instance");
                }
                assert_eq!(answer.blob().as_deref(), Some(&b"metadata"[..]));
                answer.end();
                id
            });
            answer.end();
            answer.finish();
            if error == MEMBER_ID_REQUIRED {
                assert!(version >= 4, "version {version}");
                assert_eq!(generation, -1);
                continue;
            }
            assert_eq!((error, generation, &*protocol), (0, 1, "range"));
            assert_eq!((&leader, &members), (&member, &vec![member.clone()]));
            return member;
        }
    }

    fn sync(&mut self, member: &str) {
        let body = self
            .body(SYNC_GROUP, 0, 5)
            .string("g")
            .int32(1)
            .string(member)
            .since(3, |body| body.null_string())
            .since(5, |body| body.string("consumer").string("range"))
            .count(1)
            .string(member)
            .blob(b"assignment")
            .end()
            .end();
        let mut answer = self.ask(SYNC_GROUP, body, 1);
        assert_eq!(answer.int16(), 0);
        answer.since(5, |answer| {
            assert_eq!(answer.string().as_deref(), Some("consumer"))
        });
        answer.since(5, |answer| {
            assert_eq!(answer.string().as_deref(), Some("range"))
        });
        assert_eq!(answer.blob().as_deref(), Some(&b"assignment"[..]));
        answer.end();
        answer.finish();
    }

    fn heartbeat(&mut self, member: &str) -> i16 {
        let body = self
            .body(HEARTBEAT, 0, 4)
            .string("g")
            .int32(1)
            .string(member)
            .since(3, |body| body.null_string())
            .end();
        let mut answer = self.ask(HEARTBEAT, body, 1);
        let error = answer.int16();
        answer.end();
        answer.finish();
        error
    }

    fn commit(&mut self, member: &str) {
        let mut body = self
            .body(OFFSET_COMMIT, 2, 8)
            .string("g")
            .int32(1)
            .string(member)
            .since(7, |body| body.null_string());
        if body.version <= 4 {
            body = body.int64(-1);
        }
        let body = body
            .count(1)
            .string("t")
            .count(1)
            .int32(1)
            .int64(42)
            .since(6, |body| body.int32(7))
            .string("so far")
            .end()
            .end()
            .end();
        let mut answer = self.ask(OFFSET_COMMIT, body, 3);
        let errors = answer.list(|answer| {
            assert_eq!(answer.string().as_deref(), Some("t"));
            let errors = answer.list(|answer| {
                let outcome = (answer.int32(), answer.int16());
                answer.end();
                outcome
            });
            answer.end();
            errors
        });
        assert_eq!(errors.concat(), [(1, 0)]);
        answer.end();
        answer.finish();
    }

    /// Partition, offset, metadata: of partitions 0 and 1, or of all that have any.
    fn committed(&mut self, all: bool) -> Vec<(i32, i64, String)> {
        let mut body = self.body(OFFSET_FETCH, 1, 8);
        if body.version >= 8 {
            body = body.count(1).string("g");
        } else {
            body = body.string("g");
        }
        body = match all {
            true => body.null(),
            false => body.count(1).string("t").count(2).int32(0).int32(1).end(),
        };
        let body = body
            .since(8, |body| body.end())
            .since(7, |body| body.int8(1))
            .end();
        let mut answer = self.ask(OFFSET_FETCH, body, 3);
        let version = answer.version;
        let mut found = Vec::new();
        let mut topics = |answer: &mut Reader| {
            let partitions = answer.list(|answer| {
                assert_eq!(answer.string().as_deref(), Some("t"));
                let partitions = answer.list(|answer| {
                    let (index, offset) = (answer.int32(), answer.int64());
                    answer.since(5, |answer| {
                        let epoch = if version >= 6 && offset >= 0 { 7 } else { -1 };
                        assert_eq!(answer.int32(), epoch, "leader epoch");
                    });
                    let metadata = answer.string().expect("metadata");
                    assert_eq!(answer.int16(), 0);
                    answer.end();
                    (index, offset, metadata)
                });
                answer.end();
                partitions
            });
            found = partitions.concat();
        };
        if version >= 8 {
            answer.list(|answer| {
                assert_eq!(answer.string().as_deref(), Some("g"));
                topics(answer);
                assert_eq!(answer.int16(), 0);
                answer.end();
            });
        } else {
            topics(&mut answer);
            answer.since(2, |answer| assert_eq!(answer.int16(), 0));
        }
        answer.end();
        answer.finish();
        found
    }

    fn list(&mut self) -> Vec<String> {
        let body = self
            .body(LIST_GROUPS, 0, 4)
            .since(4, |body| body.count(2).string("Stable").string("Empty"))
            .end();
        let mut answer = self.ask(LIST_GROUPS, body, 1);
        assert_eq!(answer.int16(), 0);
        let version = answer.version;
        let groups = answer.list(|answer| {
            let id = answer.string().expect("an id");
            assert_eq!(answer.string().as_deref(), Some("consumer"));
            if version >= 4 {
                answer.string().expect("a state");
            }
            answer.end();
            id
        });
        answer.end();
        answer.finish();
        groups
    }

    fn describe(&mut self, member: &str) {
        let body = self
            .body(DESCRIBE_GROUPS, 0, 5)
            .count(1)
            .string("g")
            .since(3, |body| body.int8(0))
            .end();
        let mut answer = self.ask(DESCRIBE_GROUPS, body, 1);
        let version = answer.version;
        answer.list(|answer| {
            assert_eq!(answer.int16(), 0);
            let texts = [(); 4].map(|()| answer.string().expect("a text"));
            assert_eq!(texts, ["g", "Stable", "consumer", "range"]);
            let members = answer.list(|answer| {
                let id = answer.string().expect("an id");
                if version >= 4 {
                    assert_eq!(answer.string(), None, "instance");
                }
                assert_eq!(answer.string().as_deref(), Some("test"), "client id");
                assert_eq!(answer.string().as_deref(), Some("/127.0.0.1"));
                assert_eq!(answer.blob().as_deref(), Some(&b"metadata"[..]));
                assert_eq!(answer.blob().as_deref(), Some(&b"assignment"[..]));
                answer.end();
                id
            });
            assert_eq!(members, [member]);
            if version >= 3 {
                answer.int32();
            }
            answer.end();
        });
        answer.end();
        answer.finish();
    }

    fn leave(&mut self, member: &str) {
        let mut body = self.body(LEAVE_GROUP, 0, 5).string("g");
        body = match body.version {
            0..=2 => body.string(member),
            _ => body
                .count(1)
                .string(member)
                .null_string()
                .since(5, |body| body.string("because"))
                .end(),
        };
        let mut answer = self.ask(LEAVE_GROUP, body.end(), 1);
        assert_eq!(answer.int16(), 0);
        answer.since(3, |answer| {
            let left = answer.list(|answer| {
                let left = (answer.string(), answer.string(), answer.int16());
                answer.end();
                left
            });
            assert_eq!(left, [(Some(member.to_owned()), None, 0)]);
        });
        answer.end();
        answer.finish();
    }

    fn delete_offset(&mut self) {
        let body = Writer::body(OFFSET_DELETE, 0)
            .string("g")
            .count(1)
            .string("t")
            .count(1)
            .int32(1);
        let mut answer = self.connection.request(OFFSET_DELETE, &body);
        assert_eq!((answer.int16(), answer.int32()), (0, 0));
        let deleted = answer.list(|answer| {
            answer.string();
            answer.list(|answer| (answer.int32(), answer.int16()))
        });
        assert_eq!(deleted.concat(), [(1, 0)]);
        answer.finish();
    }

    fn delete(&mut self) -> i16 {
        let body = self.body(DELETE_GROUPS, 0, 2).count(1).string("g").end();
        let mut answer = self.ask(DELETE_GROUPS, body, 0);
        let errors = answer.list(|answer| {
            answer.string();
            let error = answer.int16();
            answer.end();
            error
        });
        answer.end();
        answer.finish();
        errors[0]
    }
}

fn check_node(answer: &mut Reader, address: &str) {
    assert_eq!(answer.int32(), 1, "node");
    let host = answer.string().expect("a host");
    assert_eq!(format!("{host}:{}", answer.int32()), address);
}

#[test]
fn every_request_of_groups_is_answered_in_every_version() {
    for round in 0..=NEWEST {
        let mut client = Client::new(round);
        client.find_coordinator();
        let member = client.join();
        client.sync(&member);
        assert_eq!(client.heartbeat(&member), 0);
        assert_eq!(
            client.committed(false),
            [(0, -1, String::new()), (1, -1, String::new())]
        );
        client.commit(&member);
        let committed = (1, 42, "so far".to_owned());
        assert_eq!(
            client.committed(false),
            [(0, -1, String::new()), committed.clone()]
        );
        // Version 1 cannot ask for all.
        if round >= 2 {
            assert_eq!(client.committed(true), [committed]);
        }
        assert_eq!(client.list(), ["g"]);
        client.describe(&member);
        assert_eq!(client.delete(), 68, "NON_EMPTY_GROUP");
        client.leave(&member);
        client.delete_offset();
        assert_eq!(client.committed(false)[1].1, -1);
        assert_eq!(client.delete(), 0);
        drop(client.connection);
        client.broker.assert_clean();
    }
}

/// A client that vanishes while it waits leaves nothing behind that waits for it, once its session is over.
#[test]
fn a_client_that_leaves_while_it_joins_is_forgotten() {
    let broker = Broker::with_arguments(&["--group-delay-ms", "60000"]);
    let mut connections: Vec<_> = (0..3).map(|_| Connection::open(broker.address())).collect();
    for connection in &mut connections {
        let body = Writer::body(JOIN_GROUP, 3)
            .string("g")
            .int32(1_000)
            .int32(600_000)
            .string("")
            .string("consumer")
            .count(1)
            .string("range")
            .blob(b"");
        connection.send(JOIN_GROUP, &body);
    }
    broker.wait_for("members", |report| (report.members, report.joins) == (3, 1));
    drop(connections);
    broker.wait_for("nobody", |report| (report.members, report.joins) == (0, 0));
    let report = broker.assert_tidy();
    assert_eq!(report.abandoned, 3);
}

/// Truncated, with absurd counts, with nulls where there may be none: the connection is closed, the broker goes on.
#[test]
fn malformed_requests_of_groups_close_their_connection() {
    let broker = Broker::start();
    let apis = [
        (OFFSET_COMMIT, 2..=8),
        (OFFSET_FETCH, 1..=8),
        (FIND_COORDINATOR, 0..=4),
        (JOIN_GROUP, 0..=9),
        (HEARTBEAT, 0..=4),
        (LEAVE_GROUP, 0..=5),
        (SYNC_GROUP, 0..=5),
        (DESCRIBE_GROUPS, 0..=5),
        (LIST_GROUPS, 4..=4),
        (DELETE_GROUPS, 0..=2),
        (OFFSET_DELETE, 0..=0),
    ];
    for (api, versions) in apis {
        for version in versions {
            let absurd = [&[0x7f, 0xff, 0xff, 0xff][..], &[0xff; 24], &[]];
            for bytes in absurd {
                let mut connection = Connection::open(broker.address());
                let body = Writer::body(api, version).raw(bytes);
                connection.send_raw(&frame(api, 1, &body));
                connection.assert_closed();
            }
        }
    }
    assert!(broker.resident_memory() < 200 << 20);
    broker.assert_clean();
}

/// Killed and started again on its folder, the broker knows what was committed, and not what was deleted since.
#[test]
fn offsets_are_kept_over_a_restart_of_the_broker() {
    let data = Folder::new("offsets");
    let start = |round| {
        let broker = Broker::with_arguments(&["--group-delay-ms", "0", "--data", data.argument()]);
        let connection = Connection::open(broker.address());
        Client {
            broker,
            connection,
            round,
        }
    };
    let mut client = start(8);
    create_topic(&mut client.connection, "t", 2);
    create_topic(&mut client.connection, "u", 1);
    let member = client.join();
    client.sync(&member);
    client.commit(&member);
    // A member commits as often as it likes: the file is written anew now and then.
    for _ in 0..3_000 {
        client.commit(&member);
    }
    // Killed.
    drop(client);
    let length = data
        .path()
        .join("+offsets")
        .metadata()
        .expect("offsets")
        .len();
    assert!(length < 64 << 10, "{length} bytes for one offset");
    let mut client = start(8);
    assert_eq!(client.heartbeat(&member), 25, "UNKNOWN_MEMBER_ID");
    let committed = vec![(1, 42, "so far".to_owned())];
    assert_eq!(client.committed(true), committed);
    drop(client);

    // The last line was cut off by a crash.
    let path = data.path().join("+offsets");
    let mut bytes = std::fs::read(&path).expect("offsets");
    bytes.extend_from_slice(b"[\"g\",\"t\",0,7");
    std::fs::write(&path, bytes).expect("offsets");
    let mut client = start(8);
    assert_eq!(client.committed(true), committed);
    assert_eq!(delete_topics(&mut client.connection, 1, &["t"]), [0]);
    assert_eq!(client.committed(true), []);
    drop(client);
    assert_eq!(start(8).committed(true), []);

    let mut client = start(8);
    create_topic(&mut client.connection, "t", 2);
    let member = client.join();
    client.sync(&member);
    client.commit(&member);
    client.leave(&member);
    assert_eq!(client.delete(), 0);
    drop(client);
    assert_eq!(start(8).committed(true), []);
}
