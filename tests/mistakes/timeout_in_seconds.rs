//~ the trait bound `Deadline: From<{integer}>` is not satisfied

use request_purgatory::{Waits, future::block_on};

fn main() {
    let waits = Waits::<u32>::new("topics");
    println!("{:?}", block_on(waits.wait([7], 30, || Some(1))));
}
