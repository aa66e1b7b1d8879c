//! A planted fault that the fuzzer must find: that it does shows that coverage guides it. Nobody
//! finds these bytes by chance.

#![no_main]
#![allow(clippy::panic, reason = "a target stops where it finds a fault")]

use std::hint::black_box;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // A call for each byte, which the compiler keeps: the fuzzer sees how far it has come.
    for (at, wanted) in b"pip pip".iter().enumerate() {
        if data.get(at) != Some(wanted) {
            return;
        }
        match at {
            0 => black_box("p"),
            1 => black_box("pi"),
            2 => black_box("pip"),
            3 => black_box("pip "),
            4 => black_box("pip p"),
            5 => black_box("pip pi"),
            _ => black_box("pip pip"),
        };
    }
    panic!("the canary is found");
});
