//! An answer in the making, and its JSON in vLLM's shapes: whole, and one chunk a token.

use super::asked::Asked;
use crate::engine::ranks::AbortOnDrop;
use crate::engine::schedule::{RequestId, Step};
use crate::engine::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// Which API the answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completion,
}

/// One choice, which is one request to a rank.
#[derive(Debug)]
pub(super) struct Choice {
    request: RequestId,
    guard: AbortOnDrop,
    prompt: Arc<[u32]>,
    /// Its prompt counts in the usage; only the first choice of each prompt does.
    counts_prompt: bool,
    cached_tokens: usize,
    token_ids: Vec<u32>,
    text: String,
}

impl Choice {
    pub(super) fn new(
        request: RequestId,
        guard: AbortOnDrop,
        prompt: Arc<[u32]>,
        counts_prompt: bool,
    ) -> Self {
        Self {
            request,
            guard,
            prompt,
            counts_prompt,
            cached_tokens: 0,
            token_ids: Vec::new(),
            text: String::new(),
        }
    }
}

/// All choices of one HTTP request. Dropping it takes unfinished ones out of their ranks.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) asked: Asked,
    pub(super) choices: Vec<Choice>,
    api: Api,
    tokenizer: Arc<Tokenizer>,
    created_s: u64,
}

impl Answer {
    pub(super) fn new(api: Api, asked: Asked, tokenizer: Arc<Tokenizer>) -> Self {
        Self { asked, choices: Vec::new(), api, tokenizer, created_s: super::unix_time_s() }
    }

    /// Every choice has its last token.
    pub(super) fn is_finished(&self) -> bool {
        self.choices.iter().all(|choice| choice.guard.finished)
    }

    /// Adds a token; returns the position of its choice.
    pub(super) fn take(&mut self, step: Step) -> Option<usize> {
        let index = self.choices.iter().position(|choice| choice.request == step.request)?;
        let choice = self.choices.get_mut(index)?;
        choice.guard.finished |= step.last;
        choice.cached_tokens = step.cached_tokens;
        choice.token_ids.push(step.token_id);
        choice.text.push_str(self.tokenizer.word(step.token_id));
        Some(index)
    }

    /// The body of an answer that is not streamed.
    pub(super) fn whole_body(&self) -> Value {
        let choices: Vec<_> = self
            .choices
            .iter()
            .enumerate()
            .map(|(index, choice)| self.whole_choice(index, choice))
            .collect();
        let mut body = Map::new();
        let mut put = |name: &str, value: Value| body.insert(name.into(), value);
        put("id", self.full_id().into());
        put("object", self.object().into());
        put("created", self.created_s.into());
        put("model", self.asked.model.as_str().into());
        put("choices", choices.into());
        put("service_tier", Value::Null);
        put("system_fingerprint", FINGERPRINT.into());
        put("usage", self.usage(true));
        if self.api == Api::Chat {
            put("prompt_logprobs", Value::Null);
            let first = self.choices.first();
            put("prompt_token_ids", first.map_or(Value::Null, |first| self.prompt_ids(first)));
            put("prompt_text", Value::Null);
        }
        for field in ["kv_transfer_params", "ec_transfer_params", "metrics"] {
            put(field, Value::Null);
        }
        body.into()
    }

    /// The chunk with the role, sent with the first token of a chat's choice. Nothing for completions.
    pub(super) fn write_role_chunk(&self, index: usize, out: &mut String) {
        if self.api == Api::Completion {
            return;
        }
        self.write_chunk_start(index, out);
        out.push_str(
            r#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#,
        );
        if self.asked.continuous_usage {
            let _infallible = write!(out, r#","usage":{}"#, self.running_usage(index, 0));
        }
        let ids = self.choices.get(index).map_or(Value::Null, |choice| self.prompt_ids(choice));
        let _infallible = write!(out, r#","prompt_token_ids":{ids},"prompt_text":null}}"#);
        out.push_str("\n\n");
    }

    /// The chunk of the token that was taken last for this choice.
    pub(super) fn write_token_chunk(&self, index: usize, out: &mut String) {
        let Some(choice) = self.choices.get(index) else { return };
        let Some(token_id) = choice.token_ids.last() else { return };
        let text = Value::from(self.tokenizer.word(*token_id));
        let ids = if self.asked.return_token_ids { json!([token_id]) } else { Value::Null };
        let first = choice.token_ids.len() == 1;
        self.write_chunk_start(index, out);
        let _infallible = match self.api {
            Api::Chat => write!(out, r#""delta":{{"content":{text}}},"logprobs":null,"#),
            Api::Completion => write!(out, r#""text":{text},"logprobs":null,"#),
        };
        match self.finish_reason(choice) {
            Some(reason) => {
                let _infallible = write!(out, r#""finish_reason":"{reason}","stop_reason":null,"#);
            }
            None if self.api == Api::Chat => out.push_str(r#""finish_reason":null,"#),
            None => out.push_str(r#""finish_reason":null,"stop_reason":null,"#),
        }
        if self.api == Api::Completion {
            let prompt = if first { self.prompt_ids(choice) } else { Value::Null };
            let _infallible = write!(out, r#""prompt_token_ids":{prompt},"#);
        }
        let _infallible = write!(out, r#""token_ids":{ids}}}]"#);
        if self.asked.continuous_usage {
            let usage = self.running_usage(index, choice.token_ids.len());
            let _infallible = write!(out, r#","usage":{usage}"#);
        }
        if choice.guard.finished && !self.asked.include_usage {
            let _infallible = write!(out, r#","system_fingerprint":"{FINGERPRINT}""#);
        }
        out.push_str("}\n\n");
    }

    /// What follows the last token: the usage, if it is wanted, and the end mark.
    pub(super) fn write_end(&self, out: &mut String) {
        if self.asked.include_usage {
            self.write_chunk_head(out);
            let usage = self.usage(false);
            let _infallible =
                write!(out, r#"],"usage":{usage},"system_fingerprint":"{FINGERPRINT}"}}"#);
            out.push_str("\n\n");
        }
        out.push_str("data: [DONE]\n\n");
    }

    /// True when the token taken last was the choice's first.
    pub(super) fn is_first_token(&self, index: usize) -> bool {
        self.choices.get(index).is_some_and(|choice| choice.token_ids.len() == 1)
    }

    fn write_chunk_start(&self, index: usize, out: &mut String) {
        self.write_chunk_head(out);
        let _infallible = write!(out, r#"{{"index":{index},"#);
    }

    fn write_chunk_head(&self, out: &mut String) {
        let object = match self.api {
            Api::Chat => "chat.completion.chunk",
            Api::Completion => "text_completion",
        };
        let (id, model) = (Value::from(self.full_id()), Value::from(self.asked.model.as_str()));
        let created = self.created_s;
        let _infallible = write!(
            out,
            r#"data: {{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":["#
        );
    }

    fn whole_choice(&self, index: usize, choice: &Choice) -> Value {
        let reason = self.finish_reason(choice);
        let ids = if self.asked.return_token_ids { json!(choice.token_ids) } else { Value::Null };
        match self.api {
            Api::Chat => json!({
                "index": index,
                "message": {
                    "role": "assistant", "content": choice.text, "refusal": null, "annotations": null,
                    "audio": null, "function_call": null, "reasoning": null,
                },
                "logprobs": null, "finish_reason": reason, "stop_reason": null, "token_ids": ids,
                "routed_experts": null,
            }),
            Api::Completion => json!({
                "index": index, "text": choice.text, "logprobs": null, "finish_reason": reason,
                "stop_reason": null, "token_ids": ids, "prompt_logprobs": null,
                "prompt_token_ids": self.prompt_ids(choice), "routed_experts": null,
            }),
        }
    }

    fn usage(&self, whole: bool) -> Value {
        let counted = || self.choices.iter().filter(|choice| choice.counts_prompt);
        let prompt: usize = counted().map(|choice| choice.prompt.len()).sum();
        let cached: usize = counted().map(|choice| choice.cached_tokens).sum();
        let completion: usize = self.choices.iter().map(|choice| choice.token_ids.len()).sum();
        let total = prompt + completion;
        if whole {
            return json!({
                "prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion,
                "prompt_tokens_details": {
                    "cached_tokens": cached, "created_cache_tokens": null, "multimodal_tokens": null,
                },
                "completion_tokens_details": null,
            });
        }
        json!({
            "prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion,
            "prompt_tokens_details": { "cached_tokens": cached, "created_cache_tokens": null },
        })
    }

    fn running_usage(&self, index: usize, completion: usize) -> Value {
        let prompt = self.choices.get(index).map_or(0, |choice| choice.prompt.len());
        json!({
            "prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
            "completion_tokens_details": null,
        })
    }

    fn prompt_ids(&self, choice: &Choice) -> Value {
        if self.asked.return_token_ids { json!(*choice.prompt) } else { Value::Null }
    }

    fn finish_reason(&self, choice: &Choice) -> Option<&'static str> {
        let reason = if self.asked.output_tokens.is_some() { "length" } else { "stop" };
        choice.guard.finished.then_some(reason)
    }

    fn full_id(&self) -> String {
        match self.api {
            Api::Chat => format!("chatcmpl-{}", self.asked.id),
            Api::Completion => format!("cmpl-{}", self.asked.id),
        }
    }

    fn object(&self) -> &'static str {
        match self.api {
            Api::Chat => "chat.completion",
            Api::Completion => "text_completion",
        }
    }
}

const FINGERPRINT: &str = "vllm-0.33.0-simulated";
