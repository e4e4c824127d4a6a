//~ implementation of `FnMut` is not general enough

use request_purgatory::Waits;

fn main() {
    let waits = Waits::<u32>::new("jobs");
    let next = |_| Some(1);
    drop(waits.take([7], None, next, drop));
}
