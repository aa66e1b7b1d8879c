//! Caches the tokens that a shard has verified, so that a client pays for a signature once and not
//! with each request. Stores hashes, never tokens.

use super::digest::KeyDigest;
use super::token::{TokenGrant, TokenVerifier};
use ahash::AHashMap;
use forebay_base::limits::{JWT_BYTES_MAX, JWT_CACHED_MAX};
use std::sync::Arc;

/// Verified tokens of a shard.
#[derive(Debug, Default)]
pub struct TokenCache {
    /// Verifier of these tokens. A verifier with other keys clears the cache.
    verifier: Option<Arc<TokenVerifier>>,
    /// By [`KeyDigest::start`]: a second token with the same start replaces the first.
    grants: AHashMap<u64, Arc<TokenGrant>>,
}

impl TokenCache {
    /// Rights of the token at that second since 1970; `None`: the token is invalid.
    pub fn grant(
        &mut self,
        verifier: &Arc<TokenVerifier>,
        token: &[u8],
        now_s: u64,
    ) -> Option<Arc<TokenGrant>> {
        // Before the hash, to bound its time.
        if token.len() > JWT_BYTES_MAX || !TokenVerifier::is_token(token) {
            return None;
        }
        if !self.verifier.as_ref().is_some_and(|known| Arc::ptr_eq(known, verifier)) {
            self.grants.clear();
            self.verifier = Some(Arc::clone(verifier));
        }
        let digest = KeyDigest::of_token(token)?;
        let known = self.grants.get(&digest.start());
        if let Some(known) = known.filter(|known| known.key.digest == digest) {
            // `nbf` held at the verification, and time does not go back.
            return (now_s < known.ends_at_s).then(|| Arc::clone(known));
        }
        let grant = Arc::new(verifier.verify(token, now_s)?);
        if self.grants.len() >= JWT_CACHED_MAX {
            self.grants.clear();
        }
        self.grants.insert(digest.start(), Arc::clone(&grant));
        Some(grant)
    }
}
