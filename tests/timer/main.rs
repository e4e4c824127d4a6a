//! The guarantees of `Timer`, on every timer scheme. (G1 to G6 are about keys and `try_complete`, which it has not.)
//!
//! A scheme is added to these tests by one line in `schemes!` below. `PROPTEST_CASES` says how many sequences the
//! property tests try.

mod callbacks;
mod model;
mod shutdown;
mod stress;
mod tested;
mod time;

use request_purgatory::scheme;
use tested::Tested;
use testing as support;

macro_rules! schemes {
    ($($name:ident: $scheme:path, endless: $endless:literal;)*) => {$(
        impl Tested for $scheme {
            const ENDLESS: bool = $endless;
        }

        mod $name {
            use super::*;
            each! { $scheme:
                time::g09_a_timer_that_was_idle_for_long_takes_any_timeout,
                time::g10_fires_after_the_deadline_and_soon,
                time::g11_a_jump_of_a_century_costs_little,
                time::g07_an_earlier_deadline_wakes_the_reaper,
                time::g07_an_earlier_deadline_wakes_a_reactor,
                model::g10_any_sequence_of_calls_does_what_a_sorted_map_does,
                callbacks::g08_what_a_callback_starts_is_left_for_the_next_pass,
                callbacks::g13_a_slow_callback_does_not_hold_up_the_timer,
                callbacks::g13_an_inline_callback_runs_where_the_timer_is_driven,
                callbacks::g14_a_chain_of_callbacks_needs_no_stack,
                callbacks::g12_a_queued_call_that_panics_costs_the_pass_nothing,
                callbacks::g12_a_queued_call_that_panics_costs_the_last_drop_nothing,
                time::g12_a_panic_in_your_own_start_is_yours_and_leaves_nothing,
                time::g29_past_its_deadline_a_timer_is_not_rescheduled,
                shutdown::g15_remains_are_returned_once_and_threads_joined,
                shutdown::g15_what_remains_is_returned_to_the_first_who_shuts_down,
                shutdown::g15_a_shutdown_at_any_moment_loses_nothing,
                shutdown::g15_a_timer_that_is_closed_returns_what_runs_and_does_not_wait,
                stress::g16_every_payload_ends_once_on_a_real_clock,
                stress::g16_every_payload_ends_once_by_hand,
            }
        }
    )*};
}

macro_rules! each {
    ($scheme:path: $($file:ident::$test:ident,)*) => {$(
        #[test]
        fn $test() {
            $file::$test::<$scheme>();
        }
    )*};
}

schemes! {
    hierarchical_wheel: scheme::HierarchicalWheel, endless: true;
    heap: scheme::Heap, endless: true;
    hashed_wheel: scheme::HashedWheel, endless: true;
    stepped_wheel: scheme::SteppedWheel, endless: true;
    unordered_list: scheme::UnorderedList, endless: true;
    ordered_list: scheme::OrderedList, endless: true;
    simple_wheel: scheme::SimpleWheel, endless: false;
    sorted_hashed_wheel: scheme::SortedHashedWheel, endless: true;
}
