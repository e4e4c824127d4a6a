//~ the trait bound `String: Borrow<{integer}>` is not satisfied

use request_purgatory::Waits;

fn main() {
    let waits = Waits::<String>::new("topics");
    waits.check_and_complete(&7);
}
