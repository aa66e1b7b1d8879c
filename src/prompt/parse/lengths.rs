//! Lengths of keys as bits: a key of another length is compared with none.

use super::request::Endpoint;

/// One bit for the length of each key, all below 64.
pub(super) const fn lengths_of(mut keys: &[&str]) -> u64 {
    let mut bits = 0;
    while let [key, rest @ ..] = keys {
        bits |= 1 << key.len();
        keys = rest;
    }
    bits
}

/// The same of keys of single endpoints.
pub(super) const fn own_lengths_of(mut keys: &[(Endpoint, &str)]) -> u64 {
    let mut bits = 0;
    while let [(_, key), rest @ ..] = keys {
        bits |= 1 << key.len();
        keys = rest;
    }
    bits
}
