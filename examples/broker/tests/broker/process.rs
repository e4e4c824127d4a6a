//! A broker process under test.

use super::*;
#[cfg(target_os = "linux")]
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

/// `broker serve` on a free port, which reports what is parked every few milliseconds. Killed when dropped.
pub(crate) struct Broker {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Where its page is, if it has one.
    pub(crate) page: Option<SocketAddr>,
    report: Arc<Mutex<Report>>,
    log: Arc<Mutex<Vec<String>>>,
}

/// The figures of one report line, by their names: `parked: fetch=1 produce=0 watched=1 connections=1 ...`. None before
/// the first. With them, as `number`, how many reports there have been.
pub(crate) type Report = HashMap<String, u64>;

impl Broker {
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--report-ms", "5"];
        Self::run(command().args(serve).args(arguments))
    }

    /// A broker with a topic "t" of this many partitions, and the client that created it.
    pub(crate) fn with_topic(partitions: i32, arguments: &[&str]) -> (Self, Client) {
        let broker = Self::with(arguments);
        let mut client = broker.client();
        client.create_topic("t", partitions);
        (broker, client)
    }

    /// Runs the program, which says first where it listens.
    pub(crate) fn run(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("start the broker");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        let mut said = said.lines().map_while(Result::ok);
        let (sender, stdout) = mpsc::channel();
        // Until no one wants them any more.
        thread::spawn(move || said.try_for_each(|line| sender.send(line)));
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let stderr = stderr.lines().map_while(Result::ok);
        let log = Arc::<Mutex<Vec<String>>>::default();
        let logged = Arc::clone(&log);
        thread::spawn(move || stderr.for_each(|it| logged.lock().unwrap().push(it)));
        let first = stdout.recv_timeout(PATIENCE);
        let first = first.unwrap_or_else(|_| panic!("no first line: {:?}", log.lock()));
        let address = address(&first, "listening on ");
        let mut broker = Self {
            child,
            address: address.unwrap_or_else(|| panic!("no address in {first:?}")),
            page: None,
            report: Arc::default(),
            log,
        };
        let second = stdout.recv_timeout(PATIENCE).unwrap_or_default();
        broker.page = self::address(&second, "metrics on http://");
        let report = Arc::clone(&broker.report);
        thread::spawn(move || {
            for line in stdout {
                let figures = line.split(' ').filter_map(|word| {
                    let (name, figure) = word.split_once('=')?;
                    Some((name.to_owned(), figure.parse().ok()?))
                });
                let mut report = report.lock().unwrap();
                report.extend(figures);
                *report.entry("number".to_owned()).or_default() += 1;
            }
        });
        broker
    }

    pub(crate) fn client(&self) -> Client {
        Client::open(self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The lines on stderr so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Waits for a report, printed after this call, that satisfies `wanted`.
    pub(crate) fn wait_for(&self, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
        let report = || self.report.lock().unwrap().clone();
        let number = |report: &Report| report.get("number").copied().unwrap_or_default();
        let seen = number(&report());
        // The next one may have been in the pipe already.
        let is_meant = |report: &Report| number(report) > seen + 1 && wanted(report);
        eventually(what, || Some(report()).filter(is_meant))
    }

    pub(crate) fn wait_for_figure(&self, name: &str, value: u64) {
        let what = format!("{name}={value}");
        self.wait_for(&what, |report| report.get(name) == Some(&value));
    }

    /// Waits for a line on stderr that holds `text`.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let is_there = || self.log().iter().any(|line| line.contains(text));
        eventually(text, || is_there().then_some(()));
    }

    /// Bytes of memory in use.
    pub(crate) fn resident_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("read the process's status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = resident.and_then(|rest| rest.split_whitespace().next());
        1024 * kilobytes.expect("VmRSS").parse::<u64>().expect("a number")
    }

    /// Sets a soft limit of the broker. Its hard limit is the one of this process.
    #[cfg(target_os = "linux")]
    pub(crate) fn limit(&self, resource: Resource, current: Option<u64>) {
        let maximum = getrlimit(resource).maximum;
        let pid = Pid::from_raw(self.pid() as i32);
        prlimit(pid, resource, Rlimit { current, maximum }).expect("set a limit");
    }

    /// Sends a signal, and waits for the process to end.
    pub(crate) fn end(&mut self, name: &str) -> ExitStatus {
        signal(self.pid(), name);
        self.wait_for_exit()
    }

    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        eventually("end of the broker", || self.child.try_wait().expect("wait"))
    }

    /// Checks that, with the last clients gone, nothing is left behind, nothing panicked, and no check was forgotten.
    pub(crate) fn assert_clean<C>(&self, clients: C) {
        let report = self.assert_tidy(clients);
        assert_eq!(report["missed_checks"], 0, "{report:?}");
    }

    /// Where a wait may run out in the very moment that would have ended it, that cannot be told from a check that was
    /// forgotten: so this checks all but that.
    pub(crate) fn assert_tidy<C>(&self, clients: C) -> Report {
        drop(clients);
        let report = self.wait_for("quiet broker", |report| report["connections"] == 0);
        for figure in ["fetch", "produce", "watched"] {
            assert_eq!(report[figure], 0, "{report:?}");
        }
        let log = self.log().join("\n");
        assert!(!log.contains("panicked"), "{log}");
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

/// The address behind these words.
fn address(line: &str, behind: &str) -> Option<SocketAddr> {
    let rest = line.strip_prefix(behind)?;
    rest.split(';').next()?.parse().ok()
}

pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_broker"))
}

/// Runs the program to its end.
pub(crate) fn output(arguments: &[&str]) -> Output {
    run(command().args(arguments), "")
}
