//! The decoder on whatever may come: what the fuzzer has found lies in `tests/seeds/decoder`, and is tried each time.

mod drive;

use std::fs;
use std::path::Path;

#[test]
fn whatever_a_client_sends_is_decoded_or_refused() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/seeds/decoder");
    let mut replayed = 0;
    for seed in fs::read_dir(&seeds).expect("seeds are in the repository") {
        let path = seed.expect("a readable folder").path();
        println!("{}", path.display());
        drive::receive(&fs::read(path).expect("a readable file"));
        replayed += 1;
    }
    assert!(replayed > 0, "no seeds in {}", seeds.display());
}
