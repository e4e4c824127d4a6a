//! G1, G5, G6, G9, G10, G12, G14, G16, G17, G18, G22, G25 against a model: any sequence of calls on two purgatories,
//! the operations' own calls among them, and on plain maps and lists must give the same answers, the same endings and
//! the same counts, in the same order.
//!
//! `PROPTEST_CASES` says how many sequences are tried. What the fuzzer has found lies in `tests/seeds/calls`, and is
//! tried each time.

mod interpreter;
mod strategies;

use interpreter::call::{Arriving, Call, Deed, On, Script, Setup};
use interpreter::pair::Pair;
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use strategies::{call, end, setup, uptime};
use support::spans::{Choices, Span};
use testing as support;

proptest! {
    // (What stands beside what is rarer than each of the two.)
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases * 3 / 2,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn g10_any_sequence_of_calls_does_what_a_sorted_map_does(
        setup in setup(),
        uptime in uptime(),
        calls in prop::collection::vec(call(), 1..120),
        end in end(),
        after in prop::collection::vec(call(), 0..20),
    ) {
        let calls = [Call::Pass(uptime)].into_iter().chain(calls).chain([end]).chain(after);
        let calls = calls.collect();
        interpreter::run(&Script { setup, calls });
    }
}

/// Every script that reached something new when the fuzzer found it, and every one that once failed.
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    /// Many timers at once, so that buckets grow over blocks and slices, and nothing but deadlines.
    #[test]
    fn g10_crowded_buckets_fire_in_their_ticks(
        wheel_size in 2..70_usize,
        timeouts in prop::collection::vec(prop_oneof![0..10_u64, 0..5_000_u64], 200..1_500),
        jumps in prop::collection::vec(prop_oneof![0..3_u64, 0..2_000_u64], 1..12),
    ) {
        let choices = Choices { wheel_size, ..Choices::default() };
        let mut crowd = Pair::new(&Setup { choices, ..Setup::default() });
        let share = timeouts.len().div_ceil(jumps.len());
        for (timeouts, jump) in timeouts.chunks(share).zip(jumps) {
            for timeout in timeouts {
                let on = On::plain((*timeout % 200) as u8);
                let op = Arriving::plain(vec![on], Span::Ticks(*timeout, 0));
                crowd.call(&Call::first(Deed::Park(Arc::new(op))));
            }
            crowd.call(&Call::Pass(Span::Ticks(jump, 0)));
            crowd.call(&Call::first(Deed::Advance));
            crowd.compare();
        }
        crowd.call(&Call::Pass(Span::Ticks(10_000, 0)));
        crowd.call(&Call::first(Deed::Advance));
        assert!(crowd.real.side(0).is_empty());
    }
}
