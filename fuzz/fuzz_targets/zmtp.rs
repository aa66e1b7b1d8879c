#![no_main]

#[path = "../checks/zmtp.rs"]
mod zmtp;

libfuzzer_sys::fuzz_target!(|data: &[u8]| zmtp::check(data));
