//! Lengths of keys as bits: a key of any other length needs no comparison.

use super::request::Endpoint;

/// A bit for the length of each key. All lengths are below 64.
pub(super) const fn lengths_of(mut keys: &[&str]) -> u64 {
    let mut bits = 0;
    while let [key, rest @ ..] = keys {
        bits |= 1 << key.len();
        keys = rest;
    }
    bits
}

/// As [`lengths_of`], for keys of single endpoints.
pub(super) const fn own_lengths_of(mut keys: &[(Endpoint, &str)]) -> u64 {
    let mut bits = 0;
    while let [(_, key), rest @ ..] = keys {
        bits |= 1 << key.len();
        keys = rest;
    }
    bits
}
