//~ expected `&_`, found integer

use request_purgatory::Waits;

fn main() {
    let waits = Waits::<u32>::new("topics");
    waits.check_and_complete(7);
}
