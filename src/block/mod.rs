//! KV blocks as bytes: the vocabulary (token id to bytes) and block keys. Pure data and functions,
//! any thread.

mod key;
mod vocabulary;
mod whitespace;

pub use key::{BlockKey, KeySeed, RootName};
pub use vocabulary::{Vocabulary, VocabularyError};
pub(crate) use whitespace::{leading_bytes, trailing_bytes};
