//! What the check of a client's token costs: verified, remembered, and refused.

#![allow(missing_docs, reason = "criterion writes the functions")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a bench that fails must stop")]

use criterion::{Criterion, criterion_group, criterion_main};
use forebay_keys::{TokenCache, TokenKeys, TokenRules, TokenVerifier};
use std::hint::black_box;
use std::sync::Arc;

const SET: &str = include_str!("../tests/data/jwt/rsa.json");
const TOKEN: &str = include_str!("../tests/data/jwt/rsa.jwt");
const NOW_S: u64 = 1_000_000;

fn verifier() -> Arc<TokenVerifier> {
    let rules = TokenRules {
        issuer: "https://issuer.example".to_owned(),
        audience: vec!["forebay".to_owned()],
        tenant_claim: "tenant".to_owned(),
        models_claim: Some("models".to_owned()),
        class_claim: None,
        leeway_s: 60,
    };
    Arc::new(TokenVerifier::new(rules, TokenKeys::parse(SET.as_bytes()).unwrap()))
}

fn tokens(criterion: &mut Criterion) {
    let verifier = verifier();
    let sound = TOKEN.trim().as_bytes();
    // Another signature under a known `kid`.
    let mut forged = sound.to_vec();
    let last = forged.len() - 2;
    forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
    let mut unknown = sound.to_vec();
    unknown[..2].copy_from_slice(b"ZZ");
    let mut group = criterion.benchmark_group("token, RSA of 2048 bits");
    group.bench_function("verified", |bench| {
        bench.iter(|| assert!(verifier.verify(black_box(sound), NOW_S).is_some()));
    });
    group.bench_function("forged", |bench| {
        bench.iter(|| assert!(verifier.verify(black_box(&forged), NOW_S).is_none()));
    });
    group.bench_function("no header", |bench| {
        bench.iter(|| assert!(verifier.verify(black_box(&unknown), NOW_S).is_none()));
    });
    let mut cache = TokenCache::default();
    group.bench_function("remembered", |bench| {
        bench.iter(|| assert!(cache.grant(&verifier, black_box(sound), NOW_S).is_some()));
    });
    group.finish();
}

criterion_group!(benches, tokens);
criterion_main!(benches);
