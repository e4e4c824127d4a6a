//! A node that has no file for one more client says so, and serves it when there is one.

mod support;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use support::{LONG, get, print_row};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Killed with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_a_node_without_a_file_for_a_client_says_so_and_goes_on() {
    let child = Command::new(env!("CARGO_BIN_EXE_gateway"))
        .args(["serve", "--engine", "memory", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut node = Process(child.expect("it starts"));
    let output = node.0.stdout.take().expect("a pipe");
    let mut errors = BufReader::new(node.0.stderr.take().expect("a pipe")).lines();
    let mut line = String::new();
    BufReader::new(output)
        .read_line(&mut line)
        .expect("it speaks");
    let address = line.trim().strip_prefix("listening on http://");
    let address = address.expect("it listens").parse::<SocketAddr>();
    let address = address.expect("an address");

    // Its own files stay open, and there are no more.
    let pid = i32::try_from(node.0.id()).expect("a small number");
    let pid = Pid::from_raw(pid).expect("not zero");
    let none = Rlimit {
        current: Some(3),
        ..getrlimit(Resource::Nofile)
    };
    let before = prlimit(Some(pid), Resource::Nofile, none).expect("it may");
    let asked = Instant::now();
    let client = tokio::spawn(async move { get(address, "/stats").await });
    let told = spawn_blocking(move || errors.next());
    let told = timeout(LONG, told).await.expect("it says so");
    let told = told
        .expect("no panic")
        .expect("a line")
        .expect("it is text");
    assert!(told.contains("Too many open files"), "{told}");
    prlimit(Some(pid), Resource::Nofile, before).expect("it may");
    let answer = timeout(LONG, client).await.expect("it goes on");
    assert_eq!(answer.expect("no panic").status, 200);
    let row = "no file for one more client";
    print_row(row, 1, 0, asked.elapsed(), "it is told");
}
