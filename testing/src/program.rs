//! A program under test: started, listened to, signalled, and killed when it is dropped. And client programs, which run
//! to their end, and may not be installed.

use crate::found;
use crate::process::Process;
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process, waitid};
pub use rustix::process::{Resource, Signal};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// Longest that a client may run. Their own limits are shorter.
const LIMIT: Duration = Duration::from_secs(60);

/// A running program, whose output is gathered. A test that fails leaves none behind.
#[derive(Debug)]
pub struct Program {
    child: Child,
    pub stdout: Lines,
    pub stderr: Lines,
}

impl Program {
    /// # Panics
    /// The program cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            stdout: Lines::gather(child.stdout.take().expect("piped")),
            stderr: Lines::gather(child.stderr.take().expect("piped")),
            child,
        }
    }

    /// The address that follows `words` at the start of a line of the standard output, up to a `;`.
    ///
    /// # Panics
    /// The program ends before it says so, or does not say so in time.
    pub fn said(&self, words: &str) -> SocketAddr {
        found(words, || {
            let has_ended = self.stdout.has_ended();
            let said = self.stdout.all().into_iter().find_map(|line| {
                let rest = line.strip_prefix(words)?;
                rest.split(';').next()?.parse().ok()
            });
            let is_to_come = said.is_some() || !has_ended;
            assert!(is_to_come, "no {words:?}: {:#?}", self.stderr.all());
            said
        })
    }

    /// Resident memory, in bytes.
    ///
    /// # Panics
    /// There is no `/proc`, or the program has ended.
    pub fn resident_memory(&self) -> u64 {
        let resident = Process::of(self.child.id()).resident();
        resident.expect("it runs, on Linux")
    }

    /// After [`Signal::STOP`], returns when the program has stopped: until then its other threads go on.
    ///
    /// # Panics
    /// The program has ended, and was waited for.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it runs");
        if signal == Signal::STOP {
            waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).expect("it is a child");
        }
    }

    /// Sets a soft limit of the program, and returns the one before.
    ///
    /// # Panics
    /// The program has ended, or the limit is above the hard limit of this process.
    #[cfg(target_os = "linux")]
    pub fn limit(&self, resource: Resource, current: Option<u64>) -> Option<u64> {
        use rustix::process::{Rlimit, getrlimit, prlimit};
        let maximum = getrlimit(resource).maximum;
        let pid = Some(Pid::from_child(&self.child));
        let before = prlimit(pid, resource, Rlimit { current, maximum });
        before.expect("it may").current
    }

    /// Waits for the program to end.
    ///
    /// # Panics
    /// It does not end in time.
    pub fn wait(&mut self) -> ExitStatus {
        found("end", || self.ended())
    }

    /// How the program has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program has written so far, line by line. A clone is another handle.
#[derive(Debug, Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn gather(output: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let gathered = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let mut lines = gathered.0.lock().unwrap_or_else(PoisonError::into_inner);
                lines.push(line);
            }
        });
        lines
    }

    pub fn all(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether the program has closed this output, and all of it is here.
    pub fn has_ended(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// Whether a client runs.
///
/// # Panics
/// It does not, and clients are required: `CI` is set, or `REQUEST_PURGATORY_REQUIRE_CLIENTS=1`.
pub fn available(client: &str, probe: &[&str]) -> bool {
    let ran = Command::new(client).args(probe).output();
    if ran.is_ok_and(|output| output.status.success()) {
        return true;
    }
    let asked = std::env::var_os("REQUEST_PURGATORY_REQUIRE_CLIENTS");
    let required = std::env::var_os("CI").is_some() || asked.is_some_and(|value| value == "1");
    let probe = probe.join(" ");
    let says = format!("{client} {probe} fails; .ci/install clients installs it");
    assert!(!required, "{says}");
    eprintln!("skipped: {says}");
    false
}

/// Runs a client to its end with this input.
///
/// # Panics
/// It cannot be started, or does not end in time.
pub fn run(client: &mut Command, input: &str) -> Output {
    let client = client.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = client.stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{client:?}: {error}"));
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    // A client that ends early leaves input unread.
    thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let (sender, ended) = mpsc::channel();
    let pid = Pid::from_child(&child);
    thread::spawn(move || sender.send(child.wait_with_output()));
    let output = ended.recv_timeout(LIMIT).unwrap_or_else(|_| {
        kill_process(pid, Signal::KILL).expect("it runs");
        panic!("{client:?} did not end")
    });
    output.expect("wait for the client")
}
