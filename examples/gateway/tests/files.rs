//! A node that has no file for one more client says so, and serves it when there is one.

mod support;

use std::time::Instant;
use support::{LONG, eventually, get, print_row, start_process};
use testing::program::Resource;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_a_node_without_a_file_for_a_client_says_so_and_goes_on() {
    let (node, address) = start_process();
    // Its own files stay open, and there are no more.
    let before = node.limit(Resource::Nofile, Some(3));
    let asked = Instant::now();
    let client = tokio::spawn(get(address, "/stats"));
    let trouble = "Too many open files";
    let is_told = || node.stderr.all().iter().any(|line| line.contains(trouble));
    eventually("it says so", is_told).await;
    node.limit(Resource::Nofile, before);
    let answer = timeout(LONG, client).await.expect("it goes on");
    assert_eq!(answer.expect("no panic").status, 200);
    let row = "no file for one more client";
    print_row(row, 1, 0, asked.elapsed(), "it is told");
}
