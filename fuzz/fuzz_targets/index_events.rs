#![no_main]

#[path = "../checks/index_events.rs"]
mod index_events;

libfuzzer_sys::fuzz_target!(|data: &[u8]| index_events::check(data));
