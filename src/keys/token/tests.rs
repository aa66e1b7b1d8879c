//! Tokens that are good, and each way in which one is not.

use super::*;
use crate::TokenCache;
use proptest::prelude::*;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;
use std::fmt::Write;
use std::sync::Arc;

/// Signed with OpenSSL, key and token: the one for RSA, which `ring` cannot make here.
const RSA_SET: &str = include_str!("../../../tests/data/jwt/rsa.json");
const RSA_TOKEN: &str = include_str!("../../../tests/data/jwt/rsa.jwt");

const NOW_S: u64 = 1_000_000;

fn base64url(bytes: &[u8]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits: String = bytes.iter().fold(String::new(), |mut bits, byte| {
        write!(bits, "{byte:08b}").unwrap();
        bits
    });
    let of = |piece: &[u8]| {
        let piece = format!("{:0<6}", std::str::from_utf8(piece).unwrap());
        char::from(letters[usize::from_str_radix(&piece, 2).unwrap()])
    };
    bits.as_bytes().chunks(6).map(of).collect()
}

struct SigningKey {
    pair: EcdsaKeyPair,
}

impl SigningKey {
    fn draw() -> Self {
        let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let random = SystemRandom::new();
        let private = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Self { pair: EcdsaKeyPair::from_pkcs8(kind, private.as_ref(), &random).unwrap() }
    }

    fn public(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    fn jwk(&self, id: &str) -> Value {
        let point = self.public();
        let x = base64url(&point[1..33]);
        let y = base64url(&point[33..]);
        json!({"kty": "EC", "crv": "P-256", "kid": id, "x": x, "y": y})
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", base64url(signature.as_ref()))
    }
}

fn message(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| base64url(value.to_string().as_bytes());
    format!("{}.{}", part(header), part(claims))
}

fn rules() -> TokenRules {
    TokenRules {
        issuer: "https://issuer.example".to_owned(),
        audience: vec!["forebay".to_owned(), "other".to_owned()],
        tenant_claim: "tenant".to_owned(),
        models_claim: Some("models".to_owned()),
        class_claim: Some("class".to_owned()),
        leeway_s: 60,
    }
}

fn verifier(keys: &[Value]) -> TokenVerifier {
    let set = json!({ "keys": keys }).to_string();
    TokenVerifier::new(rules(), TokenKeys::parse(set.as_bytes()).unwrap())
}

fn header() -> Value {
    json!({"alg": "ES256", "kid": "a", "typ": "JWT"})
}

fn claims() -> Value {
    json!({
        "iss": "https://issuer.example", "aud": "forebay", "exp": NOW_S + 100,
        "tenant": "search", "models": ["m", "n"], "class": 2,
    })
}

fn with(mut value: Value, name: &str, member: Value) -> Value {
    value[name] = member;
    value
}

fn without(mut value: Value, name: &str) -> Value {
    value.as_object_mut().unwrap().remove(name);
    value
}

#[test]
fn a_valid_token_says_who_calls() {
    let key = SigningKey::draw();
    let verifier = verifier(&[key.jwk("a")]);
    let token = key.sign(&header(), &claims());
    let grant = verifier.verify(token.as_bytes(), NOW_S).unwrap();
    assert_eq!((&*grant.key.tenant, grant.key.class_best), ("search", Some(2)));
    assert_eq!((grant.key.models, grant.ends_at_s), (vec!["m".into(), "n".into()], NOW_S + 160));
    for taken in [
        with(claims(), "aud", json!(["x", "other"])),
        with(claims(), "exp", json!(1_000_100.5)),
        with(claims(), "exp", json!(NOW_S - 59)),
        with(claims(), "nbf", json!(NOW_S + 60)),
        with(claims(), "models", json!("m")),
        without(claims(), "tenant"),
        without(claims(), "class"),
    ] {
        let token = key.sign(&header(), &taken);
        assert!(verifier.verify(token.as_bytes(), NOW_S).is_some(), "{taken}");
    }
    assert!(!verifier.take_lack());
}

#[test]
fn claims_that_do_not_fit_are_refused() {
    let key = SigningKey::draw();
    let verifier = verifier(&[key.jwk("a")]);
    for refused in [
        with(claims(), "exp", json!(NOW_S - 60)),
        with(claims(), "exp", json!("2999")),
        with(claims(), "exp", json!(-1)),
        with(claims(), "exp", Value::Null),
        without(claims(), "exp"),
        with(claims(), "nbf", json!(NOW_S + 61)),
        with(claims(), "nbf", json!("soon")),
        with(claims(), "iss", json!("https://issuer.example/")),
        with(claims(), "iss", json!({})),
        without(claims(), "iss"),
        with(claims(), "aud", json!("forebay2")),
        with(claims(), "aud", json!([])),
        with(claims(), "aud", json!(7)),
        without(claims(), "aud"),
        with(claims(), "tenant", json!(7)),
        with(claims(), "tenant", json!("x".repeat(TENANT_NAME_BYTES_MAX + 1))),
        with(claims(), "models", json!([])),
        with(claims(), "models", json!([1])),
        without(claims(), "models"),
        with(claims(), "class", json!(4)),
        with(claims(), "class", json!("0")),
        json!([1]),
    ] {
        let token = key.sign(&header(), &refused);
        assert!(verifier.verify(token.as_bytes(), NOW_S).is_none(), "{refused}");
    }
}

/// The attacks of RFC 8725, section 2.
#[test]
fn forged_tokens_are_refused() {
    let key = SigningKey::draw();
    let other = SigningKey::draw();
    let verifier = verifier(&[key.jwk("a"), other.jwk("b")]);
    let refused = |token: &str| verifier.verify(token.as_bytes(), NOW_S).is_none();
    let good = key.sign(&header(), &claims());
    assert!(!refused(&good));
    for algorithm in ["none", "None", "HS256", "RS256", "ES384", "EdDSA", ""] {
        let header = with(header(), "alg", json!(algorithm));
        assert!(refused(&key.sign(&header, &claims())), "{algorithm}");
        assert!(refused(&format!("{}.", message(&header, &claims()))), "{algorithm}");
    }
    // A shared secret that everybody knows: the public key, as bytes and as its JWK.
    let message = message(&with(header(), "alg", json!("HS256")), &claims());
    for secret in [key.public(), key.jwk("a").to_string().as_bytes()] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        assert!(refused(&format!("{message}.{}", base64url(tag.as_ref()))));
    }
    assert!(refused(&other.sign(&header(), &claims())), "another key's signature");
    let own_key = with(header(), "jwk", other.jwk("a"));
    assert!(refused(&other.sign(&own_key, &claims())), "a key that the token brings along");
    // RFC 7515, section 4.1.11: an extension that the router does not know changes what is signed.
    for critical in [json!(["b64"]), json!(["exp"]), json!([])] {
        let header = with(with(header(), "crit", critical), "b64", json!(false));
        assert!(refused(&key.sign(&header, &claims())), "{header}");
    }
    assert!(refused(&key.sign(&without(header(), "kid"), &claims())));
    assert!(!verifier.take_lack());
    assert!(refused(&key.sign(&with(header(), "kid", json!("c")), &claims())));
    assert!(verifier.take_lack() && !verifier.take_lack(), "an unknown key is asked for once");
    for cut in 0..good.len() {
        assert!(refused(&good[..cut]), "{cut}");
    }
    assert!(refused(&format!("{good}.")) && refused(&format!(".{good}")) && refused(".."));
    let zeros = base64url(&[0; 64]);
    let (signed, _) = good.rsplit_once('.').unwrap();
    assert!(refused(&format!("{signed}.{zeros}")), "r = s = 0");
    let huge = with(claims(), "filler", json!("x".repeat(JWT_BYTES_MAX)));
    assert!(refused(&key.sign(&header(), &huge)));
}

#[test]
fn a_set_decides_on_the_algorithms() {
    let rsa = TokenKeys::parse(RSA_SET.as_bytes()).unwrap();
    assert_eq!(rsa.find("rsa")[0].algorithms.len(), 6);
    let token = RSA_TOKEN.trim();
    assert!(TokenVerifier::new(rules(), rsa).verify(token.as_bytes(), NOW_S).is_some());
    let set: Value = serde_json::from_str(RSA_SET).unwrap();
    let only_pss = with(set["keys"][0].clone(), "alg", json!("PS256"));
    assert!(verifier(&[only_pss]).verify(token.as_bytes(), NOW_S).is_none());
    let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pair.as_ref()).unwrap();
    let x = base64url(pair.public_key().as_ref());
    let verifier = verifier(&[json!({"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": x})]);
    let message = message(&with(header(), "alg", json!("EdDSA")), &claims());
    let token = format!("{message}.{}", base64url(pair.sign(message.as_bytes()).as_ref()));
    assert!(verifier.verify(token.as_bytes(), NOW_S).is_some());
}

#[test]
fn sets_that_cannot_be_used_are_refused() {
    let jwk = SigningKey::draw().jwk("a");
    let count = |keys: Value| {
        TokenKeys::parse(json!({ "keys": keys }).to_string().as_bytes()).map(|keys| keys.count())
    };
    assert_eq!(count(json!([jwk, 7, {"kty": "new"}, {}])), Ok(1), "others are left out");
    let secret = json!({"kty": "oct", "kid": "a", "k": "c2VjcmV0"});
    for keys in [
        json!([]),
        json!([secret]),
        json!([without(jwk.clone(), "kid")]),
        json!([with(jwk.clone(), "use", json!("enc"))]),
        json!([with(jwk.clone(), "alg", json!("HS256"))]),
        json!([with(jwk.clone(), "crv", json!("P-521"))]),
        json!(vec![jwk; 65]),
    ] {
        assert!(count(keys.clone()).is_err(), "{keys}");
    }
    for text in [&b""[..], b"{}", b"[]", b"{\"keys\":1}", b"\xff", &[b' '; 300_000]] {
        assert!(TokenKeys::parse(text).is_err());
    }
}

/// A modulus of so many bits; what it is made of does not matter.
fn rsa_jwk(id: &str, bits: usize) -> Value {
    let mut modulus = vec![0xff_u8; bits.div_ceil(8)];
    modulus[0] >>= modulus.len() * 8 - bits;
    json!({"kty": "RSA", "kid": id, "n": base64url(&modulus), "e": "AQAB"})
}

#[test]
fn weak_keys_do_not_count_and_are_named() {
    let parse = |keys: &[Value]| TokenKeys::parse(json!({ "keys": keys }).to_string().as_bytes());
    for bits in [17, 512, 1_024, 2_040, 2_047, 8_193, 16_384] {
        let fault = parse(&[rsa_jwk("weak", bits)]).unwrap_err();
        assert!(fault.contains(&format!("\"weak\" has {bits} bits")), "{fault}");
        let beside = parse(&[rsa_jwk("weak", bits), SigningKey::draw().jwk("a")]).unwrap();
        assert_eq!((beside.count(), beside.left_out().len()), (1, 1));
        assert!(beside.find("weak").is_empty());
    }
    for bits in [2_048, 2_049, 3_072, 4_096, 8_192] {
        assert_eq!(parse(&[rsa_jwk("good", bits)]).unwrap().count(), 1, "{bits}");
    }
}

#[test]
fn of_keys_with_one_id_each_counts() {
    let keys: [SigningKey; 5] = std::array::from_fn(|_| SigningKey::draw());
    let set: Vec<Value> = keys.iter().map(|key| key.jwk("a")).collect();
    let verifier = verifier(&set);
    let signs = |key: &SigningKey| {
        verifier.verify(key.sign(&header(), &claims()).as_bytes(), NOW_S).is_some()
    };
    assert!(keys[..4].iter().all(signs));
    assert!(!signs(&keys[4]), "past the limit");
    assert!(!signs(&SigningKey::draw()), "no key of the set");
    assert!(!verifier.take_lack());
    let left_out = TokenKeys::parse(json!({ "keys": set }).to_string().as_bytes()).unwrap();
    assert!(left_out.left_out()[0].contains("\"a\""), "{:?}", left_out.left_out());
}

#[test]
fn a_shard_verifies_a_token_once_for_its_keys() {
    let key = SigningKey::draw();
    let first = Arc::new(verifier(&[key.jwk("a")]));
    let token = key.sign(&header(), &claims());
    let mut cache = TokenCache::default();
    let mut ask = |verifier, now_s| cache.grant(verifier, token.as_bytes(), now_s);
    let one = ask(&first, NOW_S).unwrap();
    let two = ask(&first, NOW_S + 159).unwrap();
    assert!(Arc::ptr_eq(&one, &two));
    assert!(ask(&first, NOW_S + 160).is_none(), "expired meanwhile");
    let rotated = Arc::new(verifier(&[SigningKey::draw().jwk("a")]));
    assert!(ask(&rotated, NOW_S).is_none(), "its key has gone");
    assert!(ask(&first, NOW_S).is_some());
}

proptest! {
    #[test]
    fn any_text_is_taken(token in "[a-zA-Z0-9_.-]{0,200}", set in "\\PC{0,200}") {
        let verifier = verifier(&[SigningKey::draw().jwk("a")]);
        prop_assert_eq!(verifier.verify(token.as_bytes(), NOW_S), None);
        prop_assert!(TokenKeys::parse(set.as_bytes()).is_err());
    }
}
