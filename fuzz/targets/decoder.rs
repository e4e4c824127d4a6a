//! Bytes are what a client sends to the example broker: see `tests/broker_decoder`.
#![no_main]
#![allow(
    dead_code,
    reason = "the decoder's modules have more in them than decoding"
)]

#[path = "../../examples/broker/apis.rs"]
mod apis;
#[path = "../../examples/broker/batch.rs"]
mod batch;
#[path = "../../examples/broker/crc32c.rs"]
mod crc32c;
#[path = "../../tests/broker_decoder/drive.rs"]
mod drive;
#[path = "../../examples/broker/frame.rs"]
mod frame;
#[path = "../../examples/broker/producers.rs"]
mod producers;
#[path = "../../examples/broker/request.rs"]
mod request;
#[path = "../../examples/broker/shape.rs"]
mod shape;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drive::receive(bytes));
