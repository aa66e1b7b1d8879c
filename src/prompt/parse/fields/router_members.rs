//! Members of a body that only the router may set.

use crate::parse::transfer;

/// Keys by which a router makes an engine contact another engine. A client that could set them
/// would reach hosts inside the fleet. vLLM's other objects of this kind are read by [`transfer`]:
/// clients use parts of them.
pub(crate) const OWNED: [&str; 7] = [
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "ec_transfer_params",
];

/// The key, if only the router may set it, or if it takes an object.
pub(crate) fn is_owned(name: &[u8]) -> Option<&'static str> {
    let mut keys = OWNED.into_iter().chain(transfer::KEYS);
    keys.find(|key| key.as_bytes() == name)
}
