#![no_main]

#[path = "../checks/http_head.rs"]
mod http_head;

libfuzzer_sys::fuzz_target!(|data: &[u8]| http_head::check(data));
