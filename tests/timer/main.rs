//! The guarantees of `Timer`, on every timer scheme. (G1 to G6 are about keys and `try_complete`, which it has not.)
//!
//! A scheme is added to these tests by one line in `schemes!` below. `PROPTEST_CASES` says how many sequences the
//! property tests try.

mod callbacks;
mod idle;
mod limits;
mod model;
mod shutdown;
mod stress;
mod tested;
mod time;

use request_purgatory::scheme;
use tested::Tested;
use testing as support;

macro_rules! schemes {
    ($($name:ident: $scheme:path, sleeps: $sleeps:literal, endless: $endless:literal;)*) => {$(
        impl Tested for $scheme {
            const SLEEPS: bool = $sleeps;
            const ENDLESS: bool = $endless;
        }

        mod $name {
            use super::*;
            each! { $scheme:
                time::g09_any_duration_at_any_uptime,
                time::g09_never_may_become_soon_and_soon_never,
                time::g09_a_timer_that_was_idle_for_long_takes_a_timeout_under_a_lock,
                time::g10_fires_after_the_deadline_and_soon,
                time::g11_a_jump_of_a_century_costs_little,
                time::g07_an_earlier_deadline_wakes_the_reaper,
                model::g10_any_sequence_of_calls_does_what_a_sorted_map_does,
                callbacks::g08_what_a_callback_starts_is_left_for_the_next_pass,
                callbacks::g08_what_a_callback_starts_is_left_whatever_shard_it_lies_in,
                callbacks::g12_a_panic_ends_that_payload_only,
                callbacks::g13_a_slow_callback_does_not_hold_up_the_timer,
                callbacks::g13_an_inline_callback_runs_where_the_timer_is_driven,
                callbacks::g14_a_chain_of_callbacks_needs_no_stack,
                callbacks::g12_a_queued_call_that_panics_costs_the_pass_nothing,
                callbacks::g12_a_queued_call_that_panics_costs_the_last_drop_nothing,
                callbacks::g14_a_callback_may_drive_the_timer,
                limits::g12_a_panic_in_your_own_start_is_yours_and_leaves_nothing,
                limits::g29_past_its_deadline_a_timer_is_not_rescheduled,
                limits::g18_stale_and_foreign_ids_do_nothing,
                limits::g09_the_longest_tick_is_a_tick,
                shutdown::g15_remains_are_returned_once_and_threads_joined,
                shutdown::g15_what_remains_is_returned_to_the_first_who_shuts_down,
                shutdown::g15_a_shutdown_is_legal_from_the_callback,
                shutdown::g15_a_shutdown_at_any_moment_loses_nothing,
                shutdown::g15_callbacks_under_way_are_waited_for,
                shutdown::g15_a_timer_that_is_closed_returns_what_runs_and_does_not_wait,
                idle::g19_idle_means_idle,
                idle::a_shared_reaper_serves_many_timers,
                idle::a_reactor_is_woken_for_earlier_deadlines,
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
    hierarchical_wheel: scheme::HierarchicalWheel, sleeps: true, endless: true;
    heap: scheme::Heap, sleeps: true, endless: true;
    hashed_wheel: scheme::HashedWheel, sleeps: false, endless: true;
    stepped_wheel: scheme::SteppedWheel, sleeps: false, endless: true;
    unordered_list: scheme::UnorderedList, sleeps: true, endless: true;
    ordered_list: scheme::OrderedList, sleeps: true, endless: true;
    simple_wheel: scheme::SimpleWheel, sleeps: false, endless: false;
    sorted_hashed_wheel: scheme::SortedHashedWheel, sleeps: false, endless: true;
}
