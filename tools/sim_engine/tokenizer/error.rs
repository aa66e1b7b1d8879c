//! Errors of the tokenizer.

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is not like GPT-2's, and the build has no library for other files.
    #[error("this tokenizer.json needs a build with `--features tokenizers`: {0}")]
    NeedsLibrary(String),
    /// The library refuses the file or a text.
    #[error("tokenizer: {0}")]
    Library(String),
    /// No token is usable text, so no answer can be made.
    #[error("the tokenizer has no token that is plain text")]
    NoWords,
}
