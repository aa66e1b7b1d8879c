//! Stand-in for the KV transfer between a prefill and a decode engine. Real engines move KV with
//! RDMA or shared memory; here the decode engine asks the prefill engine over HTTP for what a
//! decode needs of it (the first token, which prompt it was, what of it was cached). What is real:
//! which half waits for which, for how long, and which engine holds KV until when.
//!
//! [`TransferTable`] keeps what a prefill engine offers (one task, no locks), `route` is where
//! decode engines ask, `ask` is how. Limits: an offer lives as long as the request that made it; a
//! question is answered within `ASK_TIME_MAX` and then asked again.

mod ask;
mod offers;
mod question;
mod route;
mod settings;

pub(super) use ask::{AskFailed, KvSeeker, Patience, TransferPeer, TransferWanted};
pub(super) use offers::{HandedKv, TransferOffer, TransferTable};
pub(super) use route::{RegistryState, routes};
pub use settings::{KvConnector, SglangTransfer, TransferSettings, VllmTransfer};

use xxhash_rust::xxh3::xxh3_64;

/// Prompt and salt in one number: KV of another prompt is of no use.
pub(super) fn prompt_digest(prompt: &[u32], salt: &str) -> u64 {
    let ids = prompt.iter().flat_map(|id| id.to_le_bytes());
    xxh3_64(&ids.chain(salt.bytes()).collect::<Vec<_>>())
}
