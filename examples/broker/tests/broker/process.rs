//! Processes under test: the broker, and client programs that are not Rust, which may not be installed.

use super::*;
use procfs_core::{FromRead, process::Status};
pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
#[cfg(target_os = "linux")]
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

/// Longest that anything in these tests may take before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Longest that a client may run. Their own limits are shorter.
const LIMIT: Duration = Duration::from_secs(60);

/// `broker serve` on a free port, which reports what is parked every few milliseconds.
pub(crate) struct Broker {
    child: Running,
    /// A wait that runs out when it would have ended looks like a check that was forgotten: in this test it may.
    pub(crate) may_miss: bool,
    pub(crate) address: SocketAddr,
    stdout: Lines,
    stderr: Lines,
}

/// What a program has written so far.
type Lines = Arc<Mutex<Vec<String>>>;

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
        let mut broker = Self {
            address: ([0; 4], 0).into(),
            stdout: gather(child.stdout.take().expect("piped")),
            stderr: gather(child.stderr.take().expect("piped")),
            child: Running(child),
            may_miss: false,
        };
        broker.address = broker.said("listening on ");
        broker
    }

    fn said(&self, words: &str) -> SocketAddr {
        eventually(words, || {
            // One that does not start says why elsewhere.
            assert!(Arc::strong_count(&self.stdout) > 1, "no {words}");
            let lines = self.stdout.lock().unwrap();
            let rest = lines.iter().find_map(|line| line.strip_prefix(words))?;
            rest.split(';').next()?.parse().ok()
        })
    }

    pub(crate) fn page(&self) -> SocketAddr {
        self.said("metrics on http://")
    }

    pub(crate) fn client(&self) -> Client {
        Client::open(self.address)
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.stderr.lock().unwrap().clone()
    }

    /// Waits for a report, printed after this call, with this figure in it: `parked: fetch=1 produce=0 watched=1 ...`.
    pub(crate) fn wait_for_figure(&self, name: &str, value: u64) -> String {
        let figure = format!("{name}={value}");
        // The next one may have been in the pipe already.
        let seen = self.stdout.lock().unwrap().len() + 1;
        eventually(&figure, || {
            let lines = self.stdout.lock().unwrap();
            let mut reports = lines.iter().skip(seen);
            reports.find(|report| has(report, &figure)).cloned()
        })
    }

    /// Waits for a line on stderr that holds `text`.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let is_there = || self.log().iter().any(|line| line.contains(text));
        eventually(text, || is_there().then_some(()));
    }

    pub(crate) fn resident_memory(&self) -> u64 {
        let status = Status::from_file(format!("/proc/{}/status", self.child.0.id()));
        1024 * status.ok().and_then(|it| it.vmrss).expect("this is Linux")
    }

    /// Sets a soft limit of the broker. Its hard limit is the one of this process.
    #[cfg(target_os = "linux")]
    pub(crate) fn limit(&self, resource: Resource, current: Option<u64>) {
        let maximum = getrlimit(resource).maximum;
        let pid = Pid::from_child(&self.child.0);
        prlimit(Some(pid), resource, Rlimit { current, maximum }).expect("set a limit");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child.0), signal).expect("it runs");
    }

    /// Sends a signal, and waits for the process to end.
    pub(crate) fn end(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.wait_for_exit()
    }

    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        eventually("end", || self.child.0.try_wait().expect("wait"))
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
        if thread::panicking() {
            return eprintln!("the broker's log: {log}");
        }
        assert!(!log.contains("panicked"), "{log}");
        if matches!(self.child.0.try_wait(), Ok(None)) {
            self.assert_clean(());
        }
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has(report: &str, figure: &str) -> bool {
    report.split(' ').any(|word| word == figure)
}

fn gather(output: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let gathered = Arc::clone(&lines);
    let output = BufReader::new(output).lines().map_while(Result::ok);
    thread::spawn(move || output.for_each(|line| gathered.lock().unwrap().push(line)));
    lines
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

/// Whether a program runs. If it does not, and clients are required, that fails the test.
pub(crate) fn available(program: &str, probe: &[&str]) -> bool {
    let ran = Command::new(program).args(probe).output();
    if ran.is_ok_and(|output| output.status.success()) {
        return true;
    }
    let asked = std::env::var_os("REQUEST_PURGATORY_REQUIRE_CLIENTS");
    let required = std::env::var_os("CI").is_some() || asked.is_some_and(|value| value == "1");
    let says = format!("{program} is not installed; .ci/install clients does it");
    assert!(!required, "{says}");
    eprintln!("skipped: {says}");
    false
}

/// Runs a client to its end with this input. One that does not end fails the test.
pub(crate) fn run(command: &mut Command, input: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn();
    let mut child = child.expect("start the client");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    // A client that ends early leaves input unread.
    thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let (sender, ended) = mpsc::channel();
    let pid = Pid::from_child(&child);
    thread::spawn(move || sender.send(child.wait_with_output()));
    let output = ended.recv_timeout(LIMIT).unwrap_or_else(|_| {
        kill_process(pid, Signal::KILL).expect("it runs");
        panic!("{command:?} did not end")
    });
    output.expect("wait for the client")
}

pub(crate) fn eventually<T>(what: &str, mut wanted: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = wanted() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "no {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
