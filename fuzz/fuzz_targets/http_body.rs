#![no_main]

#[path = "../checks/http_body.rs"]
mod http_body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| http_body::check(data));
