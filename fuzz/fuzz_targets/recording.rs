#![no_main]

#[path = "../checks/recording.rs"]
mod recording;

libfuzzer_sys::fuzz_target!(|data: &[u8]| recording::check(data));
