//! Rust frontends of engines: their template environment and content formats.

pub(crate) mod rust_environment;
pub(crate) mod rust_source;
pub(crate) mod rust_traits;
