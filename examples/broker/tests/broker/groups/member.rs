//! A member of a group: a stock client in a process of its own.

use crate::clients::available;
use crate::python;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long members may be silent; as the script says it.
pub(super) const SESSION: Duration = Duration::from_secs(3);

/// Longest that members may take for anything.
pub(super) const PATIENCE: Duration = Duration::from_secs(25);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    ConfluentKafka,
    KafkaPython,
    Kcat,
}

/// What a member tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// It has new partitions: see [`Member::assigned`].
    Assigned,
    Record(i32, i64),
    Committed(i32, i64),
    Closed,
}

/// Killed when dropped.
pub(super) struct Member {
    client: Client,
    child: Child,
    lines: mpsc::Receiver<String>,
    assigned: Vec<i32>,
}

impl Client {
    fn module(self) -> &'static str {
        match self {
            Self::ConfluentKafka => "confluent_kafka",
            Self::KafkaPython => "kafka_python",
            Self::Kcat => "kcat",
        }
    }

    pub(super) fn is_installed(self) -> bool {
        match self {
            Self::ConfluentKafka => {
                available(&python::interpreter(), &["-c", "import confluent_kafka"])
            }
            Self::KafkaPython => available(&python::interpreter(), &["-c", "import kafka"]),
            Self::Kcat => available("kcat", &["-V"]),
        }
    }

    fn command(self, address: SocketAddr, instance: Option<&str>) -> Command {
        let address = address.to_string();
        if self == Self::Kcat {
            let mut command = Command::new("kcat");
            command.args(["-b", &address, "-G", "g", "-u", "-f", "record %p %o\n"]);
            let session = format!("session.timeout.ms={}", SESSION.as_millis());
            let settings = [
                "auto.offset.reset=earliest",
                "heartbeat.interval.ms=300",
                "topic.metadata.refresh.interval.ms=1000",
                &session,
            ];
            for setting in settings {
                command.args(["-X", setting]);
            }
            command.arg("t");
            return command;
        }
        let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
        let mut command = Command::new(python::interpreter());
        command.arg("-B").arg(scripts.join("group_member.py"));
        command
            .args([self.module(), &address, "g", "t"])
            .args(instance);
        command
    }
}

impl Member {
    pub(super) fn start(client: Client, address: SocketAddr, instance: Option<&str>) -> Self {
        let mut child = client
            .command(address, instance)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the client");
        let (sender, lines) = mpsc::channel();
        read_lines(child.stdout.take().expect("piped"), sender.clone());
        // kcat tells there what it is assigned.
        read_lines(child.stderr.take().expect("piped"), sender);
        Self {
            client,
            child,
            lines,
            assigned: Vec::new(),
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{} {}", self.client.module(), self.child.id())
    }

    /// What it was assigned last.
    pub(super) fn assigned(&self) -> Vec<i32> {
        self.assigned.clone()
    }

    /// What it has told since.
    pub(super) fn events(&mut self) -> Vec<Event> {
        let lines: Vec<_> = self.lines.try_iter().collect();
        lines.iter().filter_map(|line| self.event(line)).collect()
    }

    fn event(&mut self, line: &str) -> Option<Event> {
        if let Some((_, partitions)) = line.split_once("): assigned: ") {
            // % Group g rebalanced (memberid x): assigned: t [0], t [1]
            let partitions = partitions.split(", ").filter_map(|part| {
                let index = part.trim_start_matches("t [").trim_end_matches(']');
                index.parse().ok()
            });
            self.assigned = partitions.collect();
            return Some(Event::Assigned);
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut numbers = rest
            .split(' ')
            .filter_map(|number| number.parse::<i64>().ok());
        match word {
            "assigned" => {
                self.assigned = numbers.map(|number| number as i32).collect();
                Some(Event::Assigned)
            }
            "record" => Some(Event::Record(numbers.next()? as i32, numbers.next()?)),
            "committed" => Some(Event::Committed(numbers.next()? as i32, numbers.next()?)),
            "closed" => Some(Event::Closed),
            _ => None,
        }
    }

    /// Leaves the group in order.
    pub(super) fn leave(mut self) {
        let sent = Command::new("kill")
            .args(["-s", "TERM", &self.child.id().to_string()])
            .status();
        assert!(sent.expect("run kill").success());
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait for the client") {
                let events = self.events();
                assert!(status.success(), "{}: {status}", self.name());
                let closed = events.contains(&Event::Closed) || self.client == Client::Kcat;
                assert!(closed, "{} has not closed: {events:?}", self.name());
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{} does not end", self.name());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// `kill -9`.
    pub(super) fn kill(mut self) {
        self.child.kill().expect("kill the client");
        self.child.wait().expect("wait for the client");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(pipe: impl Read + Send + 'static, sender: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
}
