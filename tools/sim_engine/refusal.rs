//! Forms of refusals by a full engine, as names; `vllm::refused` has the bytes.

use std::str::FromStr;

/// Form of an engine's refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineRefusal {
    /// vLLM with `--max-num-queued-reqs`: 503 without Retry-After.
    #[default]
    Vllm,
    /// SGLang with `--max-queued-requests`: 503, for streams an error event in an answer of
    /// status 200.
    Sglang,
    /// A hosted API's rate limit: 429 with Retry-After.
    TooMany,
    /// Anthropic's answer under overload: 529.
    Overloaded,
}

impl FromStr for EngineRefusal {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "vllm" | "503" => Ok(Self::Vllm),
            "sglang" => Ok(Self::Sglang),
            "429" => Ok(Self::TooMany),
            "529" => Ok(Self::Overloaded),
            _ => Err("expected vllm (503), sglang, 429 or 529".into()),
        }
    }
}
