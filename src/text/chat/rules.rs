//! Rules of engines for a request before its template.

/// Engine that prepares messages and tools. The engines differ in joining the parts of a content,
/// in turning strings into lists of parts, and in the order and defaults of a tool's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EngineRules {
    /// The rules of vLLM 0.33.
    #[default]
    Vllm,
    /// The rules of SGLang 0.5.23.
    Sglang,
}

/// Form of a message's content that a template expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// A string with all text.
    Text,
    /// A list of parts, as in OpenAI's API.
    Parts,
}
