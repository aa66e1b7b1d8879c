//! The keys that tokens are signed with: a JSON Web Key Set (RFC 7517), ready to be looked up.
//! The set decides on the algorithms. A token can only choose among those of its key.

use super::token_signature;
use ahash::AHashMap;
use forebay_base::limits::{JWKS_BYTES_MAX, JWKS_KEYS_MAX};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;
use std::ops::RangeInclusive;

/// Algorithms of an RSA key that names none.
const OF_RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// RSA keys of fewer bits are not for signatures (RFC 7518, section 3.3), those of more bits cost
/// too much to verify.
const RSA_BITS: RangeInclusive<usize> = 2_048..=8_192;
/// Keys of one `kid` that count. Each costs a verification when a token names that `kid`.
const KEYS_OF_ID_MAX: usize = 4;

/// Public keys by their `kid`.
#[derive(Clone, Debug, Default)]
pub struct TokenKeys {
    by_id: AHashMap<String, Vec<TokenKey>>,
    /// Keys of the set that do not count, and why.
    left_out: Vec<String>,
}

/// One public key, with what it may verify.
#[derive(Clone, Debug)]
pub struct TokenKey {
    pub(super) key: DecodingKey,
    pub(super) algorithms: Vec<Algorithm>,
}

impl TokenKeys {
    /// Reads a set. Leaves out keys without `kid`, keys for encryption, shared secrets, kinds of
    /// keys that are unknown here, and RSA keys of too few or too many bits. Of keys with one
    /// `kid`, each counts: a set may have one for each algorithm (RFC 7517, section 4.5).
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

    /// Keys of the set that do not count, and why, for people.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// How many there are.
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

/// Why a key is not for signatures, if it is not.
fn weakness(jwk: &Jwk) -> Option<String> {
    let AlgorithmParameters::RSA(rsa) = &jwk.algorithm else { return None };
    let bits = bits_of(&rsa.n)?;
    let (min, max) = RSA_BITS.into_inner();
    (!RSA_BITS.contains(&bits)).then(|| format!("has {bits} bits, and {min} to {max} are allowed"))
}

/// Bits of a number in base64url, without zeros before it; `None` for what is no base64url.
fn bits_of(number: &str) -> Option<usize> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digits = number.trim_end_matches('=').as_bytes();
    let mut zeros = 0;
    let mut is_leading = true;
    for digit in digits {
        let value = DIGITS.iter().position(|known| known == digit)?;
        let value = u8::try_from(value).ok()?;
        if is_leading {
            // Six bits of eight.
            zeros += usize::try_from(value.leading_zeros()).ok()? - 2;
            is_leading = value == 0;
        }
    }
    Some((digits.len() * 6 / 8 * 8).saturating_sub(zeros))
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
