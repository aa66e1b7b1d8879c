//! Text as engines process it: the vocabulary (token id to bytes) and chat templates (messages to
//! bytes). Pure data and functions, for any thread.

pub mod chat;
mod image_key;
mod model_card;
pub mod vocabulary;
mod whitespace;

pub use image_key::ImageKey;
pub use model_card::context_tokens;
pub use vocabulary::{Vocabulary, VocabularyError};
pub use whitespace::{leading_bytes, trailing_bytes};
