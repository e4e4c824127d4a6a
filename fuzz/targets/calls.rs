//! Bytes are a script of calls, made on a purgatory and on a sorted map: see `tests/model/interpreter`.
#![no_main]

#[path = "../../tests/model/interpreter/mod.rs"]
mod interpreter;

use testing as support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| interpreter::run_bytes(bytes));
