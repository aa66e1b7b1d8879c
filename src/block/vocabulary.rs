//! Token ids to bytes.

/// Token id to bytes.
#[derive(Debug)]
pub struct Vocabulary;

/// Why a tokenizer file cannot be used.
#[derive(Debug)]
pub enum VocabularyError {}
