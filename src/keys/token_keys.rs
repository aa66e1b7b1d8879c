//! The keys that tokens are signed with: a JSON Web Key Set (RFC 7517), ready to be looked up.
//! The set decides on the algorithms. A token can only choose among those of its key.

use super::token_signature;
use ahash::AHashMap;
use forebay_base::limits::{JWKS_BYTES_MAX, JWKS_KEYS_MAX};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;

/// Algorithms of an RSA key that names none.
const OF_RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// Public keys by their `kid`.
#[derive(Clone, Debug, Default)]
pub struct TokenKeys {
    by_id: AHashMap<String, TokenKey>,
}

/// One public key, with what it may verify.
#[derive(Clone, Debug)]
pub struct TokenKey {
    pub(super) key: DecodingKey,
    pub(super) algorithms: Vec<Algorithm>,
}

impl TokenKeys {
    /// Reads a set. Leaves out keys without `kid`, keys for encryption, shared secrets, and kinds
    /// of keys that are unknown here.
    ///
    /// # Errors
    /// The text is no set, is too long, or has no key that can be used.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > JWKS_BYTES_MAX {
            return Err(format!("the set of keys is longer than {JWKS_BYTES_MAX} bytes"));
        }
        let set: Value =
            serde_json::from_slice(text).map_err(|error| format!("no JSON: {error}"))?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or("no list `keys`")?;
        if keys.len() > JWKS_KEYS_MAX {
            return Err(format!("more than {JWKS_KEYS_MAX} keys"));
        }
        let mut by_id = AHashMap::new();
        for value in keys {
            let Ok(jwk) = serde_json::from_value::<Jwk>(value.clone()) else { continue };
            let Some(id) = jwk.common.key_id.clone() else { continue };
            if let Some(key) = TokenKey::of(&jwk) {
                // Of two keys with one `kid`, nobody can say which is meant: the first counts.
                by_id.entry(id).or_insert(key);
            }
        }
        if by_id.is_empty() {
            return Err("no key with `kid` for RS, PS, ES256, ES384 or EdDSA".to_owned());
        }
        token_signature::install();
        Ok(Self { by_id })
    }

    /// The key with that `kid`.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<&TokenKey> {
        self.by_id.get(id)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_id.len()
    }
}

impl TokenKey {
    fn of(jwk: &Jwk) -> Option<Self> {
        let usage = jwk.common.public_key_use.as_ref();
        if usage.is_some_and(|usage| *usage != PublicKeyUse::Signature) {
            return None;
        }
        let of_kind: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => &OF_RSA,
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => &[Algorithm::ES256],
                EllipticCurve::P384 => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                &[Algorithm::EdDSA]
            }
            _ => return None,
        };
        let named = jwk.common.key_algorithm.as_ref();
        let is_named = |one: &&Algorithm| named.is_none_or(|named| name_of(**one) == Some(*named));
        let algorithms: Vec<Algorithm> = of_kind.iter().filter(is_named).copied().collect();
        if algorithms.is_empty() {
            return None;
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        Some(Self { key, algorithms })
    }
}

/// The same algorithm, as a set of keys names it.
const fn name_of(algorithm: Algorithm) -> Option<KeyAlgorithm> {
    Some(match algorithm {
        Algorithm::RS256 => KeyAlgorithm::RS256,
        Algorithm::RS384 => KeyAlgorithm::RS384,
        Algorithm::RS512 => KeyAlgorithm::RS512,
        Algorithm::PS256 => KeyAlgorithm::PS256,
        Algorithm::PS384 => KeyAlgorithm::PS384,
        Algorithm::PS512 => KeyAlgorithm::PS512,
        Algorithm::ES256 => KeyAlgorithm::ES256,
        Algorithm::ES384 => KeyAlgorithm::ES384,
        Algorithm::EdDSA => KeyAlgorithm::EdDSA,
        _ => return None,
    })
}
