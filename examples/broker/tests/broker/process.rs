//! Processes under test: the broker, and client programs that are not Rust, which may not be installed.

use super::*;
use std::net::SocketAddr;
use std::process::{Command, ExitStatus, Output};
use testing::program::Program;
pub(crate) use testing::program::{Signal, available, run};
pub(crate) use testing::{eventually, found};

/// `broker serve` on a free port, which reports what is parked every few milliseconds.
pub(crate) struct Broker {
    pub(crate) program: Program,
    /// A wait that runs out when it would have ended looks like a check that was forgotten: in this test it may.
    pub(crate) may_miss: bool,
    pub(crate) address: SocketAddr,
}

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
        let program = Program::start(command);
        Self {
            address: program.said("listening on "),
            program,
            may_miss: false,
        }
    }

    pub(crate) fn page(&self) -> SocketAddr {
        self.program.said("metrics on http://")
    }

    pub(crate) fn client(&self) -> Client {
        Client::open(self.address)
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.program.stderr.all()
    }

    /// Waits for a report, printed after this call, with this figure in it: `parked: fetch=1 produce=0 watched=1 ...`.
    pub(crate) fn wait_for_figure(&self, name: &str, value: u64) -> String {
        let figure = format!("{name}={value}");
        // The next one may have been in the pipe already.
        let seen = self.program.stdout.all().len() + 1;
        found(&figure, || {
            let mut reports = self.program.stdout.all().into_iter().skip(seen);
            reports.find(|report| has(report, &figure))
        })
    }

    /// Waits for a line on stderr that holds `text`.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let is_there = || self.log().iter().any(|line| line.contains(text));
        eventually(text, is_there);
    }

    /// Sends a signal, and waits for the process to end.
    pub(crate) fn end(&mut self, signal: Signal) -> ExitStatus {
        self.program.signal(signal);
        self.program.wait()
    }

    /// Checks that, with the last clients gone, nothing is left behind, and no check was forgotten.
    pub(crate) fn assert_clean<C>(&self, clients: C) {
        drop(clients);
        let report = self.wait_for_figure("connections", 0);
        let figures = ["fetch=0", "produce=0", "watched=0", "missed_checks=0"];
        let wanted = &figures[..if self.may_miss { 3 } else { 4 }];
        let is_clean = wanted.iter().all(|figure| has(&report, figure));
        assert!(is_clean, "{report}");
    }
}

/// A test ends without a panic of the broker, and with its clients gone: so with a clean broker, if it still runs.
impl Drop for Broker {
    fn drop(&mut self) {
        let log = self.log().join("\n");
        if std::thread::panicking() {
            return eprintln!("the broker's log: {log}");
        }
        assert!(!log.contains("panicked"), "{log}");
        if self.program.ended().is_none() {
            self.assert_clean(());
        }
    }
}

fn has(report: &str, figure: &str) -> bool {
    report.split(' ').any(|word| word == figure)
}

pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_broker"))
}

pub(crate) fn output(arguments: &[&str]) -> Output {
    run(command().args(arguments), "")
}

pub(crate) fn python() -> String {
    let installed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/python");
    std::env::var("REQUEST_PURGATORY_PYTHON").unwrap_or_else(|_| installed.to_owned())
}
