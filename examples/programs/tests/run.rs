//! Every example, run as its users run it. Each asserts its outcome itself; here is what it says of it, and that it
//! ends.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds, on a loaded machine too. What hangs is ended then.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the example prints. It must succeed, and complain of nothing.
fn run(program: &str, arguments: &[&str]) -> String {
    let (status, printed, complained) = end_of(program, arguments);
    assert!(
        status.success() && complained.is_empty(),
        "{program}: {status}\n{printed}{complained}"
    );
    printed
}

/// How a program ends, and what it prints on stdout and stderr.
fn end_of(program: &str, arguments: &[&str]) -> (ExitStatus, String, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let printed = thread::spawn(move || read(stdout.as_mut().expect("piped")));
    let complained = thread::spawn(move || read(stderr.as_mut().expect("piped")));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child of this process") {
            break status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().expect("a child of this process");
            panic!("{program} still runs after {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let (printed, complained) = (printed.join(), complained.join());
    (status, printed.expect("read"), complained.expect("read"))
}

fn read(from: &mut impl Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).expect("plain text");
    text
}

macro_rules! example {
    ($name:ident $(, $argument:literal)*; $($says:literal),+) => {
        #[test]
        fn $name() {
            let printed = run(env!(concat!("CARGO_BIN_EXE_", stringify!($name))), &[$($argument),*]);
            for says in [$($says),+] {
                assert!(printed.contains(says), "no '{says}' in\n{printed}");
            }
        }
    };
}

example!(demonstration, "--seconds", "0.3", "--requests", "2000"; "parked", "cancelled", "operations per second", "this machine has", "wake-up, from", "every parked request ended once, and none is left.");
example!(connection_pool; "64 tasks on 8 connections", "0 overtaken by a newcomer", "64 aborted, 8 connections idle");
example!(delayed_fetch; "two partitions: 11, Ok(())", "50 ms: 11, Err(Expired), read 1 time", "0 parked, 0 watches, 1 cancelled");
example!(delayed_produce; "100 of 100 produces acknowledged", "REQUEST_TIMED_OUT", "NOT_LEADER");
example!(job_queue; "1000 jobs by 8 workers", "100 workers aborted", "each job done once: true");
example!(leases; "A holds the lease with token 1", "A writes again: Err", "C holds it with token 3");
example!(linger; "a full batch: 100 records", "the rest lingers: 50 records", "a quiet producer: 3 records", "0 records are left");
example!(listener; "followed 1000 records", "0 parked now");
example!(reactor; "room 1 heard \"hello\"", "the driver has ended");
example!(rpc_client; "1800 calls answered, 200 timed out", "attempts to connect were refused");
example!(sessions, "5000"; "closed by their owners    4950", "reported             50");
example!(storage_read; "a fast read: Some(\"records\"), more time: false", "a slow read: Some(\"records\"), more time: true", "a lost read: None, more time: true", "2 satisfied, 1 expired, 2 deadlines put off");
example!(timeouts; "100 connections closed when they were idle");

/// Its exit status tells what its counts are worth.
#[test]
fn the_demonstration_fails_where_its_counts_do_not_add_up() {
    let program = env!("CARGO_BIN_EXE_demonstration");
    let arguments = ["--seconds", "0.1", "--requests", "2000", "--miscount"];
    let (status, printed, complained) = end_of(program, &arguments);
    assert_eq!(status.code(), Some(1), "{printed}{complained}");
    assert!(
        complained.contains("requests and their endings"),
        "{complained}"
    );
    assert!(
        printed.ends_with("the counts do not add up.\n"),
        "{printed}"
    );
}

#[test]
fn the_demonstration_says_how_it_is_called() {
    let help = run(env!("CARGO_BIN_EXE_demonstration"), &["--help"]);
    assert!(
        help.lines().count() == 2 && help.contains("--seconds"),
        "{help}"
    );
}

/// Each small program is run above, and stands in the index; each is of a length to be copied.
#[test]
fn all_of_them_are_indexed_and_short() {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let index = std::fs::read_to_string(format!("{here}/README.md")).expect("an index");
    let tests = include_str!("run.rs");
    let files = std::fs::read_dir(here).expect("the package");
    let mut programs = 0;
    for file in files {
        let path = file.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        programs += 1;
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .expect("a name");
        let lines = std::fs::read_to_string(&path)
            .expect("source")
            .lines()
            .count();
        assert!((60..=150).contains(&lines), "{name}.rs has {lines} lines");
        assert!(
            index.contains(&format!("\n[{name}]: {name}.rs\n")),
            "{name}.rs is not in README.md"
        );
        let run = [",", ";"]
            .iter()
            .any(|end| tests.contains(&format!("example!({name}{end}")));
        assert!(run, "{name}.rs is not run");
    }
    assert_ne!(programs, 0);
}
