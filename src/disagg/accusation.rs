//! Error messages of an engine that blame the other leg. SGLang's two engines wait for each other,
//! so the engine that reports the error is often healthy.
//!
//! From SGLang 0.5.23, `disaggregation/{prefill,decode}.py`, `common/conn.py` and the transfer
//! backends beside it:
//!
//! | engine | message | cause |
//! |---|---|---|
//! | prefill | `timed out after 300.0s in KVPoll.Bootstrapping` | decode never connected |
//! | prefill, Mori | `waiting for decode handshake` | decode never connected |
//! | decode | `timed out after 300.0s in KVPoll.WaitingForInput` | prefill never sent |
//! | decode | `Could not fetch prefill parallel info from ..` | 15 times no registry answered |
//! | decode | `Lost connection with prefill instance ..` | twice no registry answered |
//! | both | `Prefill`/`Decode` ... `failed for request ..` | a transfer that failed |
//! | both | `KVTransferError(..)` | a transfer that failed |
//!
//! After a failed transfer each leg blames the other.

use super::error::MESSAGE_CHARS_MAX;
use forebay_fleet::worker::KvTransfer;
use memchr::memmem;
use serde_json::Value;

/// Blame of the other leg in an engine's error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accusation {
    /// The other leg never connected, or is gone.
    Missing,
    /// The KV transfer failed: either leg may be at fault, or the network between them.
    Transfer,
}

const MISSING: [&str; 5] = [
    "in KVPoll.Bootstrapping",
    "waiting for decode handshake",
    "in KVPoll.WaitingForInput",
    "Could not fetch prefill parallel info",
    "Lost connection with prefill instance",
];
const TRANSFER: [&str; 5] = [
    "KVTransferError",
    "Prefill bootstrap failed",
    "Prefill transfer failed",
    "Decode handshake failed",
    "Decode transfer failed",
];

impl Accusation {
    /// The accusation in the body of a failed leg's answer, or in a message of it.
    #[must_use]
    pub fn in_words(kv_transfer: &KvTransfer, words: &[u8]) -> Option<Self> {
        let has = |phrase: &&str| memmem::find(words, phrase.as_bytes()).is_some();
        match kv_transfer {
            // vLLM reports failures without a cause.
            KvTransfer::TwoPhase | KvTransfer::Push(_) | KvTransfer::Mooncake(_) => None,
            KvTransfer::Bootstrap(_) if MISSING.iter().any(has) => Some(Self::Missing),
            KvTransfer::Bootstrap(_) => TRANSFER.iter().any(has).then_some(Self::Transfer),
        }
    }
}

/// The message in the body of an engine's error, shortened; the body itself without a message.
#[must_use]
pub fn message_of(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = value.pointer("/error/message").or_else(|| value.get("message"));
    match message.and_then(Value::as_str) {
        Some(message) => message.chars().take(MESSAGE_CHARS_MAX).collect(),
        None => {
            let start = body.get(..body.len().min(4 * MESSAGE_CHARS_MAX)).unwrap_or_default();
            String::from_utf8_lossy(start).chars().take(MESSAGE_CHARS_MAX).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fleet::worker::Bootstrap;

    #[test]
    fn the_one_that_speaks_is_well() {
        let host = "h".into();
        let sglang =
            KvTransfer::Bootstrap(Bootstrap { host, port: None, dp_size: 1, follows_room: true });
        let said = |words: &str| Accusation::in_words(&sglang, words.as_bytes());
        let of = |what: &str, why: &str| {
            format!(
                "{what} failed for request rank=0 req.rid='fb-1' req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): {why}"
            )
        };
        for (what, why, expected) in [
            (
                "Prefill bootstrap",
                "Request 7 timed out after 300.1s in KVPoll.Bootstrapping",
                Accusation::Missing,
            ),
            (
                "Prefill bootstrap",
                "Request 7 timed out after 300.1s waiting for decode handshake",
                Accusation::Missing,
            ),
            (
                "Decode transfer",
                "Request 7 timed out after 300.0s in KVPoll.WaitingForInput",
                Accusation::Missing,
            ),
            (
                "Decode handshake",
                "Could not fetch prefill parallel info from h:8998 after 15 attempts",
                Accusation::Missing,
            ),
            (
                "Decode transfer",
                "Lost connection with prefill instance (bootstrap_addr: h:8998)",
                Accusation::Missing,
            ),
            // They say so of each other when what lies between them is broken.
            (
                "Prefill transfer",
                "Decode instance could be dead, remote mooncake session h:1 is not alive",
                Accusation::Transfer,
            ),
            (
                "Decode transfer",
                "Failed to get kvcache from prefill instance, it might be dead",
                Accusation::Transfer,
            ),
            ("Prefill transfer", "Failed to send kv chunk of 7 to h:1", Accusation::Transfer),
            ("Prefill bootstrap", "Aborted by AbortReq.", Accusation::Transfer),
        ] {
            assert_eq!(said(&of(what, why)), Some(expected), "{what}: {why}");
        }
        assert_eq!(said("CUDA error: out of memory"), None);
        let vllm = KvTransfer::TwoPhase;
        assert_eq!(Accusation::in_words(&vllm, b"KVTransferError in KVPoll.Bootstrapping"), None);
    }

    #[test]
    fn messages_of_all_shapes() {
        for body in [
            r#"{"error":{"object":"error","message":"m","type":"x","param":null,"code":500}}"#,
            r#"{"object":"error","message":"m","type":"x","param":null,"code":500}"#,
            "m",
        ] {
            assert_eq!(message_of(body.as_bytes()), "m");
        }
        assert_eq!(message_of("é".repeat(4_000).as_bytes()).chars().count(), MESSAGE_CHARS_MAX);
        assert_eq!(message_of(b""), "");
    }
}
