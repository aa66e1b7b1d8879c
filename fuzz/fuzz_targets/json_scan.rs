#![no_main]

#[path = "../checks/json_scan.rs"]
mod json_scan;

libfuzzer_sys::fuzz_target!(|data: &[u8]| json_scan::check(data));
