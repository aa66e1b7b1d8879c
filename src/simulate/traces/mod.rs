//! Traces of requests: files, synthetic traces, texts.

pub(crate) mod generate;
pub(crate) mod prompt_text;
pub(crate) mod trace;
pub(crate) mod trace_file;
