//! A compiled chat template.

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate;
