//! Feeds the bytes of the fuzzer to `checks/chat_encoder.rs`, which says what must hold.

#![no_main]
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a target stops where it finds a fault"
)]

#[path = "../checks/chat_encoder.rs"]
mod chat_encoder;

libfuzzer_sys::fuzz_target!(|data: &[u8]| chat_encoder::check(data));
