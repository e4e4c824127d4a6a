//! What the fuzzer has found, replayed.

use crate::interpreter;
use std::fs;
use std::path::Path;

/// Every script that reached something new when it was found, and every one that once failed.
#[test]
fn g10_what_the_fuzzer_has_found_does_what_a_sorted_map_does() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds/calls");
    let mut replayed = 0;
    for seed in fs::read_dir(&seeds).expect("seeds are in the repository") {
        let path = seed.expect("a readable folder").path();
        println!("{}", path.display());
        interpreter::run_bytes(&fs::read(path).expect("a readable file"));
        replayed += 1;
    }
    assert!(replayed > 0, "no seeds in {}", seeds.display());
}
