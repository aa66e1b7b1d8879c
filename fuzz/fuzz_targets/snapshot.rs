#![no_main]

#[path = "../checks/snapshot.rs"]
mod snapshot;

libfuzzer_sys::fuzz_target!(|data: &[u8]| snapshot::check(data));
