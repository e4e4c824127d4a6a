//~ type annotations needed for `Purgatory<WaitOperation<_>>`

use request_purgatory::Waits;

fn main() {
    let waits = Waits::new("topics");
    waits.check_and_complete("news");
}
