//! Engine types, and sources of load reports.

use crate::keys::table::words;

words! {
    /// Engine families, as written in the file and on the command line.
    pub enum EngineKind {
        /// Asked of each worker.
        Auto = "auto",
        /// vLLM.
        Vllm = "vllm",
        /// SGLang.
        Sglang = "sglang",
        /// Any other OpenAI-compatible server.
        Openai = "openai",
    }
}

words! {
    /// Where load reports come from.
    pub enum LoadSource {
        /// `metrics` for vLLM; `push` or else `loads` for SGLang; nothing for others, or without
        /// health checks.
        Auto = "auto",
        /// `GET /metrics`, under the names of vLLM or SGLang.
        Metrics = "metrics",
        /// SGLang's `GET /v1/loads`, or what its older versions have.
        Loads = "loads",
        /// SGLang's `LoadStat` messages, where it announces them; `loads` while none come.
        Push = "push",
        /// No reports.
        Off = "off",
    }
}
