//! The word on one thread, against its truth table written out in plain variables. (What threads do to each other is
//! the matter of the models.)

use super::{Claimed, Mark, State, Unreleased};
use crate::sync::LAST_GENERATION;
use proptest::prelude::*;

const MARKS: [Mark; 5] = [
    Mark::Recheck,
    Mark::Force,
    Mark::Cancel,
    Mark::Expire,
    Mark::ShutDown,
];

/// What the word should say.
#[derive(Debug, Default)]
struct Table {
    generation: u32,
    parked: bool,
    held: bool,
    /// As in [`MARKS`].
    marks: [bool; 5],
}

impl Table {
    fn release(&mut self, examine_again: bool) -> Result<bool, Unreleased> {
        let asked = std::mem::take(&mut self.marks[0]);
        if asked && examine_again {
            return Err(Unreleased::Recheck);
        }
        if let Some(first) = (1..5).find(|mark| self.marks[*mark]) {
            self.marks[0] = asked;
            return Err(Unreleased::End {
                mark: MARKS[first],
                unexamined: asked,
            });
        }
        self.held = false;
        Ok(asked)
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// With a reference to the present occupant, or to an earlier one.
    Claim(u32, usize),
    Release(bool),
    End,
    Occupy,
}

fn step() -> impl Strategy<Value = Step> {
    let back = || prop_oneof![5 => Just(0), 1 => 1..3_u32];
    prop_oneof![
        7 => (back(), 0..5_usize).prop_map(|(back, mark)| Step::Claim(back, mark)),
        3 => any::<bool>().prop_map(Step::Release),
        1 => Just(Step::End),
        2 => Just(Step::Occupy),
    ]
}

proptest! {
    #[test]
    fn every_transition_is_as_in_the_table(
        first in prop_oneof![Just(0), Just(7), Just(LAST_GENERATION - 3)],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let word = State::vacant();
        word.skip_to_generation(first);
        let mut table = Table { generation: first, ..Table::default() };
        for step in steps {
            match step {
                Step::Claim(back, mark) => {
                    let expected = match () {
                        () if !table.parked || back != 0 => Claimed::Stale,
                        () if table.held => Claimed::Marked,
                        () => Claimed::Held,
                    };
                    table.held |= expected == Claimed::Held;
                    table.marks[mark] |= expected == Claimed::Marked;
                    let generation = table.generation.wrapping_sub(back);
                    prop_assert_eq!(word.claim_or_mark(generation, MARKS[mark]), expected);
                }
                Step::Release(examine_again) if table.held => {
                    let expected = table.release(examine_again);
                    prop_assert_eq!(word.release(table.generation, examine_again), expected);
                }
                Step::End if table.held => {
                    word.end(table.generation);
                    // The one after the last is 0.
                    let generation = table.generation.wrapping_add(1);
                    table = Table { generation, ..Table::default() };
                    prop_assert_eq!(word.is_retired(), generation == 0);
                    if generation == 0 {
                        return Ok(());
                    }
                }
                Step::Occupy if !table.parked => {
                    (table.parked, table.held) = (true, true);
                    prop_assert_eq!(word.occupy(), table.generation);
                }
                _ => {}
            }
            prop_assert_eq!(word.is_parked(table.generation), table.parked);
            prop_assert!(!word.is_parked(table.generation.wrapping_sub(1)));
            prop_assert_eq!(word.occupant(), table.parked.then_some(table.generation));
        }
    }
}
