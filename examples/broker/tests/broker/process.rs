//! A broker process under test.

use crate::client::Client;
use crate::programs::{eventually, lines, signal};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// Longest that anything in these tests may take before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

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
/// the first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    figures: HashMap<String, u64>,
    /// How many reports there have been.
    number: u64,
}

impl Report {
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.figures.get(name).copied().unwrap_or_default()
    }
}

impl Broker {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(arguments: &[&str]) -> Self {
        let arguments = [
            &["serve", "--listen", "127.0.0.1:0", "--report-ms", "5"],
            arguments,
        ];
        Self::run(command().args(arguments.concat()))
    }

    /// Runs the program, which says first where it listens.
    pub(crate) fn run(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("start the broker");
        let (sender, stdout) = mpsc::channel();
        lines(child.stdout.take().expect("piped"), sender);
        let (sender, stderr) = mpsc::channel();
        lines(child.stderr.take().expect("piped"), sender);
        let log = Arc::<Mutex<Vec<String>>>::default();
        let logged = Arc::clone(&log);
        thread::spawn(move || {
            stderr
                .iter()
                .for_each(|line| logged.lock().unwrap().push(line))
        });
        let first = stdout.recv_timeout(PATIENCE);
        let first = first.unwrap_or_else(|_| panic!("no first line: {:?}", log.lock()));
        let address = address(&first, &["listening on ", "broker on "]);
        let mut broker = Self {
            child,
            address: address.unwrap_or_else(|| panic!("no address in {first:?}")),
            page: None,
            report: Arc::default(),
            log,
        };
        let second = stdout.recv_timeout(PATIENCE).unwrap_or_default();
        broker.page = self::address(&second, &["metrics on http://"]);
        let report = Arc::clone(&broker.report);
        thread::spawn(move || {
            for line in stdout {
                let mut report = report.lock().unwrap();
                report.number += 1;
                let figures = line.split(' ').filter_map(|word| {
                    let (name, figure) = word.split_once('=')?;
                    Some((name.to_owned(), figure.parse().ok()?))
                });
                report.figures.extend(figures);
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
        let seen = self.report.lock().unwrap().number;
        eventually(what, || {
            let report = self.report.lock().unwrap().clone();
            // The next one may have been in the pipe already.
            (report.number > seen + 1 && wanted(&report)).then_some(report)
        })
    }

    pub(crate) fn wait_for_figure(&self, name: &str, value: u64) {
        self.wait_for(&format!("{name}={value}"), |report| {
            report.get(name) == value
        });
    }

    pub(crate) fn wait_for_parked(&self, fetches: u64) {
        self.wait_for_figure("fetch", fetches);
    }

    /// Waits for a line on stderr that holds `text`.
    pub(crate) fn wait_for_log(&self, text: &str) {
        eventually(text, || {
            self.log()
                .iter()
                .any(|line| line.contains(text))
                .then_some(())
        });
    }

    /// Bytes of memory in use.
    pub(crate) fn resident_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("read the process's status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = resident.and_then(|rest| rest.split_whitespace().next());
        1024 * kilobytes.expect("VmRSS").parse::<u64>().expect("a number")
    }

    /// Sends a signal, and waits for the process to end.
    pub(crate) fn end(&mut self, name: &str) -> ExitStatus {
        signal(self.pid(), name);
        self.wait_for_exit()
    }

    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        eventually("end of the broker", || self.child.try_wait().expect("wait"))
    }

    /// Checks that all clients have left nothing behind, nothing panicked, and no check was forgotten.
    pub(crate) fn assert_clean(&self) {
        let report = self.assert_tidy();
        assert_eq!(report.get("missed_checks"), 0, "{report:?}");
    }

    /// Where a wait may run out in the very moment that would have ended it, that cannot be told from a check that was
    /// forgotten: so this checks all but that.
    pub(crate) fn assert_tidy(&self) -> Report {
        let report = self.wait_for("quiet broker", |report| report.get("connections") == 0);
        for figure in ["fetch", "produce", "watched"] {
            assert_eq!(report.get(figure), 0, "{report:?}");
        }
        let log = self.log();
        assert!(
            !log.iter().any(|line| line.contains("panicked")),
            "{log:#?}"
        );
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

/// The address behind one of these words.
fn address(line: &str, behind: &[&str]) -> Option<SocketAddr> {
    let rest = behind.iter().find_map(|words| line.strip_prefix(words))?;
    rest.split(';').next()?.parse().ok()
}

/// The broker program.
pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_broker"))
}

/// Runs the program to its end.
pub(crate) fn output(arguments: &[&str]) -> Output {
    let output = command().args(arguments).stdin(Stdio::null()).output();
    output.expect("run the broker")
}
