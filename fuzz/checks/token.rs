//! A set of keys and a token, with a zero byte between them. Must hold: a set has no more keys than
//! it may; a token that the router's own set grants carries the message that was signed, whatever
//! else was changed; what is granted ends after now; a second look says the same; nothing is
//! granted for a `kid` that the set lacks, and the lack is noted.

use forebay_base::limits::{JWKS_KEYS_MAX, TENANT_NAME_BYTES_MAX};
use forebay_keys::{TokenKeys, TokenRules, TokenVerifier};

const SET: &str = include_str!("../../tests/data/jwt/rsa.json");
const TOKEN: &str = include_str!("../../tests/data/jwt/rsa.jwt");
const NOW_S: u64 = 1_000_000;

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let (set, token) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (SET.as_bytes(), data),
    };
    let own = TokenKeys::parse(SET.as_bytes()).expect("a sound set");
    let is_granted = granted(&TokenVerifier::new(rules(), own), token);
    assert!(is_granted || token != TOKEN.trim().as_bytes(), "the sound token");
    if is_granted {
        let message = |token: &[u8]| {
            let end = token.iter().rposition(|byte| *byte == b'.').expect("three parts");
            token[..end].to_vec()
        };
        assert_eq!(message(token), message(TOKEN.trim().as_bytes()), "nobody signed that");
    }
    let Ok(keys) = TokenKeys::parse(set) else { return };
    assert!((1..=JWKS_KEYS_MAX).contains(&keys.count()), "{} keys", keys.count());
    granted(&TokenVerifier::new(rules(), keys), token);
}

fn granted(verifier: &TokenVerifier, token: &[u8]) -> bool {
    let granted = verifier.verify(token, NOW_S);
    let lacks = verifier.take_lack();
    assert!(!verifier.take_lack(), "a lack is told once");
    assert!(granted.is_none() || !lacks, "granted by a key that is not there");
    assert_eq!(verifier.verify(token, NOW_S), granted, "a second look");
    assert_eq!(verifier.take_lack(), lacks);
    if let Some(grant) = &granted {
        assert!(TokenVerifier::is_token(token) && grant.ends_at_s > NOW_S);
        assert!(grant.key.tenant.len() <= TENANT_NAME_BYTES_MAX && !grant.key.models.is_empty());
        assert_eq!(verifier.verify(token, grant.ends_at_s), None, "past its end");
    }
    granted.is_some()
}

fn rules() -> TokenRules {
    TokenRules {
        issuer: "https://issuer.example".to_owned(),
        audience: vec!["forebay".to_owned()],
        tenant_claim: "tenant".to_owned(),
        models_claim: Some("models".to_owned()),
        class_claim: Some("class".to_owned()),
        leeway_s: 60,
    }
}
