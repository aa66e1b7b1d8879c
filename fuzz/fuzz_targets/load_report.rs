#![no_main]

#[path = "../checks/load_report.rs"]
mod load_report;

libfuzzer_sys::fuzz_target!(|data: &[u8]| load_report::check(data));
