//! How templates print values: Python's text and JSON, and that of Rust frontends.

pub(crate) mod json;
pub(crate) mod numbers;
pub(crate) mod python;
pub(crate) mod python_json;
