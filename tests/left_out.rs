//! Tests nothing: `cargo test` says by this what it leaves out. Whoever asks for a list of tests, as nextest does, gets
//! an empty one.

fn main() {
    if std::env::args().len() == 1 {
        println!(
            "\nleft out: the models (loom-tests), the random schedules (shuttle-tests), and the tests of the other packages\n\
             of the workspace, some of which need servers and clients. `.ci/run tests` installs these and runs everything.\n"
        );
    }
}
