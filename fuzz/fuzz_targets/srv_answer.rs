//! Feeds the bytes of the fuzzer to `checks/srv_answer.rs`, which says what must hold.

#![no_main]
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a target stops where it finds a fault"
)]

#[path = "../checks/srv_answer.rs"]
mod srv_answer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| srv_answer::check(data));
