//! Owner of the published fleet.

mod token_keys;
mod warming;

pub(super) use token_keys::TokenKeysSource;
pub(super) use warming::Warming;
