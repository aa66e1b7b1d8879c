//! KV events: their publisher, and the wires of vLLM and SGLang.

pub(crate) mod kv_publisher;
pub(crate) mod kv_wire;
mod kv_wire_sglang;
