//! Stand-in for the KV transfer between a prefill and a decode engine. Real engines move KV with
//! RDMA or shared memory; here the decode engine requests over HTTP the data that a decode needs
//! (the first token, the prompt's digest, the number of cached tokens). The waits of each leg,
//! their timeouts, and the time for which an engine holds KV are as in real engines.
//!
//! [`TransferTable`] has the offers of a prefill engine (a single task, no locks), `route` serves
//! decode engines, `ask` is their client. Limits: an offer lives as long as its request; a question
//! is answered within `ASK_TIME_MAX` and then repeated.

mod kv_seeker;
mod offers;
mod question;
mod route;
mod settings;

pub(super) use kv_seeker::{KvSeeker, Patience, SeekError, TransferPeer, TransferRequest};
pub(super) use offers::{HandedKv, TransferOffer, TransferTable};
pub(super) use route::{RegistryState, routes};
pub use settings::{KvConnector, SglangTransfer, TransferSettings, VllmTransfer};

use twox_hash::XxHash3_64;

/// Digest of prompt and salt, because KV of another prompt is of no use.
pub(super) fn prompt_digest(prompt: &[u32], salt: &str) -> u64 {
    let ids = prompt.iter().flat_map(|id| id.to_le_bytes());
    XxHash3_64::oneshot(&ids.chain(salt.bytes()).collect::<Vec<_>>())
}
