#![no_main]

#[path = "../checks/handoff.rs"]
mod handoff;

libfuzzer_sys::fuzz_target!(|data: &[u8]| handoff::check(data));
