//! Rules of engines for a request before its template.

/// Frontend that prepares messages and tools and runs the template. The frontends differ in joining
/// the parts of a content, in roles, in reading arguments of tool calls, in the order and defaults
/// of a tool's keys, and in printing values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EngineRules {
    /// The rules of vLLM 0.33's Python frontend.
    #[default]
    Vllm,
    /// The rules of SGLang 0.5.23's Python server.
    Sglang,
    /// The rules of `vllm-rs` 0.33.
    VllmRust,
    /// The rules of SGLang 0.5.23's Rust server.
    SglangRust,
}

impl EngineRules {
    /// True for SGLang's servers.
    #[must_use]
    pub const fn is_sglang(self) -> bool {
        matches!(self, Self::Sglang | Self::SglangRust)
    }

    /// True for frontends that render with minijinja, not with Python's Jinja2.
    #[must_use]
    pub const fn is_rust(self) -> bool {
        matches!(self, Self::VllmRust | Self::SglangRust)
    }

    /// The rules of the same engine's Rust frontend.
    #[must_use]
    pub const fn of_rust_frontend(self) -> Self {
        match self {
            Self::Vllm | Self::VllmRust => Self::VllmRust,
            Self::Sglang | Self::SglangRust => Self::SglangRust,
        }
    }
}

/// Form of a message's content that a template expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// A string with all text.
    Text,
    /// A list of parts, as in OpenAI's API.
    Parts,
}
