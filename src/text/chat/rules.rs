//! What engines do to a request before the template sees it.

/// Whose way of preparing messages and tools is followed. The two differ in how parts of a content
/// are joined, in whether strings become lists of parts, and in the order and defaults of a tool's
/// keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EngineRules {
    /// vLLM (0.33).
    #[default]
    Vllm,
    /// SGLang (0.5.23).
    Sglang,
}

/// What a template expects as the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// One string.
    Text,
    /// A list of parts, as OpenAI's API has it.
    Parts,
}
