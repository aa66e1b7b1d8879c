//! How templates print values: Python's text and JSON, and that of Rust frontends.

pub(crate) mod big_integers;
pub(crate) mod json;
pub(crate) mod python;
pub(crate) mod python_json;
