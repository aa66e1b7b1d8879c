#![no_main]

#[path = "../checks/kv_decode.rs"]
mod kv_decode;

libfuzzer_sys::fuzz_target!(|data: &[u8]| kv_decode::check(data));
