//! Keys that verify tokens: a JSON Web Key Set (RFC 7517), indexed for lookup. The set determines
//! the algorithms: a token can only use an algorithm of its key.

use super::token_signature;
use ahash::AHashMap;
use forebay_base::limits::{JWKS_BYTES_MAX, JWKS_KEYS_MAX};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;
use std::ops::RangeInclusive;

/// Algorithms of an RSA key without `alg`.
const OF_RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// RSA keys with fewer bits are too weak for signatures (RFC 7518, section 3.3); larger keys cost
/// too much to verify.
const RSA_BITS: RangeInclusive<usize> = 2_048..=8_192;
/// Most keys per `kid`. Each costs a verification when a token names that `kid`.
const KEYS_OF_ID_MAX: usize = 4;

/// Public keys by their `kid`.
#[derive(Clone, Debug, Default)]
pub struct TokenKeys {
    by_id: AHashMap<String, Vec<TokenKey>>,
    /// Ignored keys of the set, with reasons.
    left_out: Vec<String>,
}

/// A public key and its algorithms.
#[derive(Clone, Debug)]
pub struct TokenKey {
    pub(super) key: DecodingKey,
    pub(super) algorithms: Vec<Algorithm>,
}

impl TokenKeys {
    /// Parses a set. Ignores keys without `kid`, encryption keys, shared secrets, unknown key
    /// types, and RSA keys outside of `RSA_BITS`. Keys may share a `kid`: a set may have a key for
    /// each algorithm (RFC 7517, section 4.5).
    ///
    /// # Errors
    /// The text is no key set, is too long, or has no usable key.
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
        let mut by_id: AHashMap<String, Vec<TokenKey>> = AHashMap::new();
        let mut left_out = Vec::new();
        for value in keys {
            let Ok(jwk) = serde_json::from_value::<Jwk>(value.clone()) else { continue };
            let Some(id) = jwk.common.key_id.clone() else { continue };
            if let Some(why) = weakness(&jwk) {
                left_out.push(format!("the key {id:?} {why}"));
                continue;
            }
            let Some(key) = TokenKey::of(&jwk) else { continue };
            let keys = by_id.entry(id).or_default();
            if keys.len() < KEYS_OF_ID_MAX {
                keys.push(key);
            } else {
                let id = jwk.common.key_id.unwrap_or_default();
                left_out.push(format!("{KEYS_OF_ID_MAX} keys before it are {id:?} too"));
            }
        }
        if by_id.is_empty() {
            let none = "no key with `kid` for RS, PS, ES256, ES384 or EdDSA";
            let left_out = left_out.join(", ");
            let why = if left_out.is_empty() { String::new() } else { format!(": {left_out}") };
            return Err(format!("{none}{why}"));
        }
        token_signature::install();
        Ok(Self { by_id, left_out })
    }

    /// The keys with that `kid`.
    #[must_use]
    pub fn find(&self, id: &str) -> &[TokenKey] {
        self.by_id.get(id).map_or(&[], Vec::as_slice)
    }

    /// Ignored keys of the set, with reasons.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Number of usable keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_id.values().map(Vec::len).sum()
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

/// Reason why a key is too weak or too large, if it is.
fn weakness(jwk: &Jwk) -> Option<String> {
    let AlgorithmParameters::RSA(rsa) = &jwk.algorithm else { return None };
    let bits = bits_of(&rsa.n)?;
    let (min, max) = RSA_BITS.into_inner();
    (!RSA_BITS.contains(&bits)).then(|| format!("has {bits} bits, and {min} to {max} are allowed"))
}

/// Bits of a base64url number, without leading zeros; `None` if it is not base64url.
fn bits_of(number: &str) -> Option<usize> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digits = number.trim_end_matches('=').as_bytes();
    let mut zeros = 0;
    let mut is_leading = true;
    for digit in digits {
        let value = DIGITS.iter().position(|known| known == digit)?;
        let value = u8::try_from(value).ok()?;
        if is_leading {
            // A base64 digit uses six of the byte's eight bits.
            zeros += usize::try_from(value.leading_zeros()).ok()? - 2;
            is_leading = value == 0;
        }
    }
    Some((digits.len() * 6 / 8 * 8).saturating_sub(zeros))
}

/// The algorithm's name in a key set.
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
