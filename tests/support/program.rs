//! The example programs, which `cargo test` has built beside the tests.

use std::process::Command;

/// An example, to be run.
pub(crate) fn example(name: &str) -> Command {
    let mut path = std::env::current_exe().expect("path of the test");
    // target/<profile>/deps/<test> -> target/<profile>/examples/<name>
    path.pop();
    path.pop();
    path.push("examples");
    path.push(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "{} is missing: run the whole 'cargo test', or 'cargo build --example {name}' first",
        path.display()
    );
    Command::new(path)
}
