//! Types of values: addresses, durations, sizes, tokens.

pub(crate) mod admin_address;
pub(crate) mod engine;
pub(crate) mod engine_address;
pub(crate) mod field_name;
pub(crate) mod header_file;
pub(crate) mod host;
pub(crate) mod log_targets;
pub(crate) mod pair_place;
pub(crate) mod quantity;
pub(crate) mod record_format;
pub(crate) mod token;
pub(crate) mod url;
