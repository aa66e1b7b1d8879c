//! Tests of parts of the router, without its sockets: what was a program for each is a module here,
//! so that the crate is linked once. `cargo test --test all -- kv_transfer::` runs one of them.

mod anthropic_messages;
mod chat_encoders;
mod chat_templates;
mod demo;
mod engine;
mod engine_captures;
mod engine_disaggregation;
mod engine_faults;
mod engine_halves;
mod engine_overload;
mod engine_sglang;
mod exactness;
mod fuzz_seeds;
mod kv_transfer;
mod http1_cases;
mod image_captures;
mod image_paths;
mod index;
mod json_cases;
mod kv_paths;
mod kv_pools;
mod rig;
