//! Worlds of the queue simulator: shards, engines, clients and the request machine that ships. The
//! bytes of the fuzzer say in which order things happen, `tests/sim/check.rs` what must hold.

#![no_main]

#[path = "../../tests/sim/simulator.rs"]
#[allow(dead_code, unused_imports, unreachable_pub, reason = "its tests are another program")]
mod simulator;

libfuzzer_sys::fuzz_target!(|data: &[u8]| simulator::run_by_tape(data));
