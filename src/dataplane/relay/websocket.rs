//! The proof that a server has read a WebSocket handshake (RFC 6455 section 4.2.2).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

/// Of the protocol, so that no other server gives the answer by chance.
const PROTOCOL_ID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Base64 of a hash of 20 bytes.
const ACCEPT_BYTES: usize = 28;

/// Is this the answer to the key of a client? The answer has no secret. It proves that a server has
/// read a WebSocket request, and that no cache or other protocol has answered.
#[must_use]
pub fn answers_key(key: &[u8], accept: &[u8]) -> bool {
    let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key);
    hash.update(PROTOCOL_ID);
    let mut wanted = [0; ACCEPT_BYTES];
    let written = STANDARD.encode_slice(hash.finish(), &mut wanted);
    written == Ok(ACCEPT_BYTES) && accept == wanted
}

#[cfg(test)]
mod tests {
    use super::answers_key;

    #[test]
    fn the_example_of_the_rfc() {
        let key = b"dGhlIHNhbXBsZSBub25jZQ==";
        assert!(answers_key(key, b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        for wrong in
            [&b""[..], key, b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo", b"s3pplmbitxaq9kygzzhzrbk+xoo="]
        {
            assert!(!answers_key(key, wrong));
        }
        assert!(!answers_key(b"dGhlIHNhbXBsZSBub25jZR==", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    }
}
