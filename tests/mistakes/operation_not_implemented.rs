//~ `Fetch` is not an operation that a purgatory can park

use request_purgatory::Purgatory;

struct Fetch;

fn main() {
    let purgatory = Purgatory::new("fetch");
    purgatory.try_complete_else_watch(Fetch, [7]).ok();
}
