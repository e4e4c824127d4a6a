//! A broker process under test.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Longest that anything in these tests may take before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// `broker serve` on a free port, which reports what is parked every few milliseconds. Killed when dropped.
pub(crate) struct Broker {
    child: Child,
    address: SocketAddr,
    report: Arc<Mutex<Report>>,
    log: Arc<Mutex<Vec<String>>>,
}

/// The figures of one report line. All zero before the first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) parked_fetch: u64,
    pub(crate) parked_produce: u64,
    pub(crate) watched: u64,
    pub(crate) connections: u64,
    pub(crate) received: u64,
    pub(crate) answered: u64,
    pub(crate) abandoned: u64,
    pub(crate) missed_checks: u64,
    /// Rebalances that wait, in either phase.
    pub(crate) joins: u64,
    pub(crate) syncs: u64,
    /// Members of groups.
    pub(crate) members: u64,
    pub(crate) rebalances: u64,
    /// How many reports there have been.
    pub(crate) number: u64,
}

impl Broker {
    pub(crate) fn start() -> Self {
        Self::with_arguments(&[])
    }

    pub(crate) fn with_arguments(arguments: &[&str]) -> Self {
        let mut child = command()
            .args(["serve", "--listen", "127.0.0.1:0", "--report-ms", "5"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the broker");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut first = String::new();
        stdout.read_line(&mut first).expect("read the first line");
        let address = first
            .trim()
            .strip_prefix("listening on ")
            .and_then(|address| address.parse().ok())
            .unwrap_or_else(|| panic!("no address in the first line {first:?}"));

        let broker = Self {
            child,
            address,
            report: Arc::default(),
            log: Arc::default(),
        };
        broker.read_reports(stdout);
        broker.read_log(stderr);
        broker
    }

    fn read_reports(&self, stdout: BufReader<ChildStdout>) {
        let report = Arc::clone(&self.report);
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let mut report = report.lock().expect("not poisoned");
                *report = Report::parse(&line, report.number + 1);
            }
        });
    }

    fn read_log(&self, stderr: BufReader<ChildStderr>) {
        let log = Arc::clone(&self.log);
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                log.lock().expect("not poisoned").push(line);
            }
        });
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The lines on stderr so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().expect("not poisoned").clone()
    }

    /// Waits for a report, printed after this call, that satisfies `wanted`.
    pub(crate) fn wait_for(&self, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
        let started = Instant::now();
        let seen = self.report.lock().expect("not poisoned").number;
        loop {
            let report = self.report.lock().expect("not poisoned").clone();
            // The next one may have been in the pipe already.
            if report.number > seen + 1 && wanted(&report) {
                return report;
            }
            assert!(started.elapsed() < PATIENCE, "no {what}: {report:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn wait_for_parked(&self, fetches: u64) {
        self.wait_for("parked fetches", |report| report.parked_fetch == fetches);
    }

    /// Waits for a line on stderr that holds `text`.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let started = Instant::now();
        while !self.log().iter().any(|line| line.contains(text)) {
            let log = self.log();
            assert!(started.elapsed() < PATIENCE, "no {text:?} in {log:#?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Bytes of memory in use.
    pub(crate) fn resident_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("read the process's status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = resident.and_then(|rest| rest.split_whitespace().next());
        1024 * kilobytes.expect("VmRSS").parse::<u64>().expect("a number")
    }

    /// Sends SIGTERM or SIGINT.
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args(["-s", signal, &self.pid().to_string()])
            .status();
        assert!(sent.expect("run kill").success());
    }

    /// Waits for the process to end by itself.
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait for the broker") {
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "the broker does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Checks that all clients have left nothing behind, nothing panicked, and no check was forgotten.
    pub(crate) fn assert_clean(&self) {
        let report = self.assert_tidy();
        assert_eq!(report.missed_checks, 0, "{report:?}");
    }

    /// The same for tests in which a wait may run out in the very moment that would have ended it: that cannot
    /// be told from a check that was forgotten.
    pub(crate) fn assert_tidy(&self) -> Report {
        let report = self.wait_for("quiet broker", |report| report.connections == 0);
        let log = self.log();
        assert_eq!(report.parked_fetch, 0, "{report:?}");
        assert_eq!(report.parked_produce, 0, "{report:?}");
        assert_eq!(report.watched, 0, "{report:?}");
        let ended = report.answered + report.abandoned;
        assert_eq!(report.received, ended, "{report:?}");
        let panicked = log.iter().any(|line| line.contains("panicked"));
        assert!(!panicked, "{log:#?}");
        report
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the broker's log: {:#?}", self.log());
        }
    }
}

impl Report {
    /// `parked: fetch=1 produce=0 watched: fetch=1 produce=0 connections=1 ...`
    fn parse(line: &str, number: u64) -> Self {
        let mut section = "";
        let mut figures = HashMap::new();
        for word in line.split_whitespace() {
            if let Some((name, figure)) = word.split_once('=') {
                let key = match name {
                    "fetch" | "produce" => format!("{section}{name}"),
                    _ => name.to_owned(),
                };
                figures.insert(key, figure.parse::<u64>().expect("a number"));
            } else {
                section = word;
            }
        }
        let figure = |key| figures.get(key).copied().unwrap_or_default();
        Self {
            parked_fetch: figure("parked:fetch"),
            parked_produce: figure("parked:produce"),
            watched: figure("watched:fetch") + figure("watched:produce"),
            connections: figure("connections"),
            received: figure("received"),
            answered: figure("answered"),
            abandoned: figure("abandoned"),
            missed_checks: figure("missed_checks"),
            joins: figure("joins"),
            syncs: figure("syncs"),
            members: figure("members"),
            rebalances: figure("rebalances"),
            number,
        }
    }
}

/// The broker program.
pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_broker"))
}
