//! `cargo run --release -p broker`: see the library beside this file.

fn main() -> std::process::ExitCode {
    broker::run()
}
