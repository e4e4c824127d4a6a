//! Bytes are what a client sends to the example broker: see `examples/broker/tests/decoder`.
#![no_main]

#[path = "../../examples/broker/tests/decoder/drive.rs"]
mod drive;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drive::receive(bytes));
