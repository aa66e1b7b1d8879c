//! Keys: tables, flags, words, and the mistakes in their values.

pub(crate) mod effective;
pub(crate) mod finding;
pub(crate) mod flags;
pub(crate) mod key;
pub(crate) mod nearest;
pub(crate) mod other_programs;
pub(crate) mod setting;
pub(crate) mod table;
