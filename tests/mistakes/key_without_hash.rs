//~ the trait bound `Topic: Hash` is not satisfied

use request_purgatory::Waits;

#[derive(Clone, PartialEq, Eq)]
struct Topic(u32);

fn main() {
    let waits = Waits::<Topic>::new("topics");
    waits.check_and_complete(&Topic(7));
}
