//! Any sequence of calls, made on two purgatories and on plain maps side by side: both must give the same answers, the
//! same endings and the same counts, in the same order.
//!
//! [`call`] has the calls, [`bytes`] makes them of bytes, [`operation`] is what is parked, [`real`] makes a call on the
//! purgatories, which log what they do. [`sorted_map`] knows what should happen, with [`calls`] and [`passes`], by what
//! it knows of each [`side`], and follows the log. [`pair`] makes a call on both, and [`compare`] asks both everything
//! that can be asked. The property test in `tests/model` and the target `calls` in `fuzz` run this same code.

mod bytes;
pub(crate) mod call;
mod calls;
mod compare;
mod operation;
pub(crate) mod pair;
mod passes;
mod real;
mod side;
mod sorted_map;

use call::Script;
use pair::Pair;

/// Makes every call of `script`, and compares after each of them. Panics where the two differ.
pub(crate) fn run(script: &Script) {
    let mut pair = Pair::new(&script.setup);
    for call in &script.calls {
        pair.call(call);
        pair.compare();
    }
    pair.finish();
}

/// The same for a script that is written in `bytes`. What they do not say any more is chosen by rule, so any bytes are
/// a script.
pub(crate) fn run_bytes(bytes: &[u8]) {
    if let Ok(script) = bytes::script(bytes) {
        run(&script);
    }
}
