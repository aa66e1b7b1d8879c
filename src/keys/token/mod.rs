//! Verifies JSON Web Tokens (RFC 7519) against keys and rules. Time is an argument: seconds since
//! 1970.

use super::digest::KeyDigest;
use super::key_ring::StoredKey;
use super::token_keys::{TokenKey, TokenKeys};
use forebay_base::limits::{
    API_KEY_MODELS_MAX, JWT_BYTES_MAX, MODEL_NAME_BYTES_MAX, QUEUE_CLASSES, TENANT_NAME_BYTES_MAX,
};
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::{Map, Value};
use std::sync::atomic::{AtomicBool, Ordering};

/// Claims that a token must have, and claims that identify the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenRules {
    /// Required value of `iss`.
    pub issuer: String,
    /// `aud` must contain any of these.
    pub audience: Vec<String>,
    /// Claim with the tenant.
    pub tenant_claim: String,
    /// Claim with the models, if configured.
    pub models_claim: Option<String>,
    /// Claim with the best class, if configured.
    pub class_claim: Option<String>,
    /// Tolerance for clock skew.
    pub leeway_s: u64,
}

/// Verifies tokens. Immutable except for the flag of a missing key.
#[derive(Debug, Default)]
pub struct TokenVerifier {
    rules: TokenRules,
    keys: TokenKeys,
    lacks_key: AtomicBool,
}

/// Rights of a verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenGrant {
    /// The rights in the form of a stored key.
    pub key: StoredKey,
    /// First second since 1970 at which the token is expired.
    pub ends_at_s: u64,
}

impl TokenVerifier {
    /// Tokens of any other key are refused.
    #[must_use]
    pub fn new(rules: TokenRules, keys: TokenKeys) -> Self {
        Self { rules, keys, lacks_key: AtomicBool::new(false) }
    }

    /// The same keys with other rules.
    #[must_use]
    pub fn with_rules(&self, rules: TokenRules) -> Self {
        Self::new(rules, self.keys.clone())
    }

    /// True if the text looks like a token. Keys of the router have no dots.
    #[must_use]
    pub fn is_token(shown: &[u8]) -> bool {
        shown.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// Takes the flag: a token named a key that the set lacks.
    pub fn take_lack(&self) -> bool {
        // ordering: Relaxed, a flag that guards no other data.
        self.lacks_key.swap(false, Ordering::Relaxed)
    }

    /// Checks signature, `exp`, `nbf`, `iss` and `aud`. An unknown `kid` costs no verification.
    /// `None`: the token is invalid.
    pub fn verify(&self, token: &[u8], now_s: u64) -> Option<TokenGrant> {
        if token.len() > JWT_BYTES_MAX || !Self::is_token(token) {
            return None;
        }
        let header = decode_header(token).ok()?;
        if header.crit.is_some() {
            // The token requires an extension, and the router supports none.
            return None;
        }
        let id = header.kid?;
        let keys = self.keys.find(&id);
        if keys.is_empty() {
            // ordering: Relaxed, a flag that guards no other data.
            self.lacks_key.store(true, Ordering::Relaxed);
        }
        let keys = keys.iter().filter(|key| key.algorithms.contains(&header.alg));
        let claims = keys.filter_map(|key| self.claims(token, key)).next()?;
        self.grant(&claims, KeyDigest::of_token(token)?, now_s)
    }

    /// The claims of the token, if that key has signed it.
    fn claims(&self, token: &[u8], key: &TokenKey) -> Option<Map<String, Value>> {
        let mut validation = Validation::default();
        validation.algorithms.clone_from(&key.algorithms);
        validation.set_issuer(&[&self.rules.issuer]);
        validation.set_audience(&self.rules.audience);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        // The caller checks both: the crate would read the clock.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        decode(token, &key.key, &validation).ok().map(|decoded| decoded.claims)
    }

    fn grant(
        &self,
        claims: &Map<String, Value>,
        digest: KeyDigest,
        now_s: u64,
    ) -> Option<TokenGrant> {
        let leeway_s = self.rules.leeway_s;
        let ends_at_s = seconds(claims.get("exp")?)?.saturating_add(leeway_s);
        let begins_at_s = claims.get("nbf").map_or(Some(0), seconds)?;
        if now_s >= ends_at_s || now_s.saturating_add(leeway_s) < begins_at_s {
            return None;
        }
        let tenant = match claims.get(&self.rules.tenant_claim) {
            None => String::new(),
            Some(name) => {
                name.as_str().filter(|name| name.len() <= TENANT_NAME_BYTES_MAX)?.to_owned()
            }
        };
        let models = self.rules.models_claim.as_ref();
        let models = models.map_or(Some(Vec::new()), |name| models_of(claims.get(name)?))?;
        let class = self.rules.class_claim.as_ref().and_then(|name| claims.get(name));
        let class_best = class.map(class_of).map_or(Some(None), |class| class.map(Some))?;
        let id = String::new();
        let created = String::new();
        let key = StoredKey { id, digest, tenant, models, class_best, created };
        Some(TokenGrant { key, ends_at_s })
    }
}

/// A time of RFC 7519, section 2: a number that may have a fraction.
fn seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let seconds = value.as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let whole = seconds as u64;
        Some(whole)
    })
}

/// A name, or a list of names. Refuses an empty list, which would mean all models.
fn models_of(value: &Value) -> Option<Vec<String>> {
    let single = std::slice::from_ref(value);
    let names = value.as_array().map_or(single, Vec::as_slice);
    let is_name = |name: &&str| !name.is_empty() && name.len() <= MODEL_NAME_BYTES_MAX;
    if !(1..=API_KEY_MODELS_MAX).contains(&names.len()) {
        return None;
    }
    names.iter().map(|name| name.as_str().filter(is_name).map(str::to_owned)).collect()
}

fn class_of(value: &Value) -> Option<u8> {
    let class = u8::try_from(value.as_u64()?).ok()?;
    (class < QUEUE_CLASSES).then_some(class)
}

#[cfg(test)]
mod tests;
