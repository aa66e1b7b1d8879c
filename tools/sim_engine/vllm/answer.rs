//! An answer in progress, and its JSON in vLLM's formats: whole, and in a chunk per token.

use super::legs::{FinishedPrefill, OfferState};
use super::request::OpenAiRequest;
use crate::answer_tokens::AnswerTokens;
use crate::batching::ranks::{AbortOnDrop, AcceptedRequest};
use crate::batching::schedule::{RequestId, TokenStep};
use crate::tally::OpenRequest;
use crate::times::TimedRequest;
use crate::tokenizer::Tokenizer;
use crate::unix_time::unix_time_s;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// API of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenAiApi {
    Chat,
    Completion,
    Responses,
}

impl OpenAiApi {
    /// Length of an answer without a limit of the client; it then ends by itself (`stop`).
    pub(super) fn tokens_default(self) -> usize {
        match self {
            Self::Chat | Self::Responses => 64,
            Self::Completion => 16,
        }
    }

    /// Id of a request in its answers.
    pub(super) fn full_id(self, id: &str) -> String {
        match self {
            Self::Chat => format!("chatcmpl-{id}"),
            Self::Completion => format!("cmpl-{id}"),
            Self::Responses => format!("resp_{id}"),
        }
    }
}

/// A choice, which is a request to a rank.
#[derive(Debug)]
pub(super) struct AnswerChoice {
    request: RequestId,
    dp_rank: usize,
    /// Removed where the KV is held for a decode.
    guard: Option<AbortOnDrop>,
    finished: bool,
    prompt: Arc<[u32]>,
    /// The prompt counts in the usage; only with the first choice of each prompt.
    counts_prompt: bool,
    tokens: AnswerTokens,
}

impl AnswerChoice {
    pub(super) fn new(submitted: AcceptedRequest, prompt: Arc<[u32]>, counts_prompt: bool) -> Self {
        let AcceptedRequest { request, dp_rank, guard } = submitted;
        Self {
            request,
            dp_rank,
            guard: Some(guard),
            finished: false,
            prompt,
            counts_prompt,
            tokens: AnswerTokens::default(),
        }
    }
}

/// State of the KV at the last token.
#[derive(Debug)]
enum OwnKv {
    Freed,
    /// The KV will be held for a decode.
    Gives(Box<OfferState>),
    /// The KV is held; its parameters for the answer.
    Held(Value),
}

/// All choices of an HTTP request. Dropping it removes unfinished choices from their ranks.
#[derive(Debug)]
pub(super) struct OpenAiAnswer {
    pub(super) asked: OpenAiRequest,
    pub(super) choices: Vec<AnswerChoice>,
    pub(super) api: OpenAiApi,
    tokenizer: Arc<Tokenizer>,
    created_s: u64,
    pub(super) timed: TimedRequest,
    kv: OwnKv,
    _open: OpenRequest,
}

impl OpenAiAnswer {
    pub(super) fn new(
        api: OpenAiApi,
        asked: OpenAiRequest,
        tokenizer: Arc<Tokenizer>,
        timed: TimedRequest,
        open: OpenRequest,
    ) -> Self {
        Self {
            asked,
            choices: Vec::new(),
            api,
            tokenizer,
            created_s: unix_time_s(),
            timed,
            kv: OwnKv::Freed,
            _open: open,
        }
    }

    /// Id of the request in answers.
    pub(super) fn full_id(&self) -> String {
        self.api.full_id(&self.asked.form.id)
    }

    /// Makes the answer hold its KV for a decode from the last token on.
    pub(super) fn gives(&mut self, giving: Box<OfferState>) {
        self.timed.meets_at(giving.meeting());
        self.kv = OwnKv::Gives(giving);
    }

    /// Offers the KV to a decode. Call it when the answer is finished, before its last token is
    /// written.
    pub(super) async fn hand_over(&mut self) {
        let OwnKv::Gives(giving) = std::mem::replace(&mut self.kv, OwnKv::Freed) else { return };
        let salt = self.asked.salt.as_str();
        let Some(choice) = self.choices.first_mut() else { return };
        let (Some(guard), Some(token_id)) = (choice.guard.take(), choice.tokens.ids.first()) else {
            return;
        };
        let token_id = *token_id;
        let dp_rank = choice.dp_rank;
        let prompt = &choice.prompt;
        let cached_tokens = choice.tokens.cached;
        let done = FinishedPrefill { guard, prompt, salt, token_id, cached_tokens, dp_rank };
        self.kv = OwnKv::Held(giving.hold(done).await);
    }

    /// Parameters for a decode that pulls the KV, or null.
    fn kv_transfer_params(&self) -> &Value {
        match &self.kv {
            OwnKv::Held(params) => params,
            OwnKv::Freed | OwnKv::Gives(_) => &Value::Null,
        }
    }

    /// True once every choice has its last token.
    pub(super) fn is_finished(&self) -> bool {
        self.choices.iter().all(|choice| choice.finished)
    }

    /// Adds a token; returns the position of its choice.
    pub(super) fn take(&mut self, step: TokenStep) -> Option<usize> {
        let index = self.choices.iter().position(|choice| choice.request == step.request)?;
        let choice = self.choices.get_mut(index)?;
        choice.finished |= step.last;
        // The guard holds the blocks of a prefill.
        let is_freed = step.last && !matches!(self.kv, OwnKv::Gives(_));
        if let Some(guard) = choice.guard.as_mut().filter(|_| is_freed) {
            guard.finished = true;
        }
        choice.tokens.push(&self.tokenizer, step.token_id, step.cached_tokens);
        if step.last && self.is_finished() {
            self.timed.ended("finished");
        }
        Some(index)
    }

    /// The body of an answer that is not streamed.
    pub(super) fn whole_body(&self) -> Value {
        if self.api == OpenAiApi::Responses {
            return self.response(true);
        }
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
        put("model", self.asked.form.model.as_str().into());
        put("choices", choices.into());
        put("service_tier", Value::Null);
        put("system_fingerprint", FINGERPRINT.into());
        put("usage", self.usage(true));
        if self.api == OpenAiApi::Chat {
            put("prompt_logprobs", Value::Null);
            let first = self.choices.first();
            put("prompt_token_ids", first.map_or(Value::Null, |first| self.prompt_ids(first)));
            put("prompt_text", Value::Null);
        }
        put("kv_transfer_params", self.kv_transfer_params().clone());
        for field in ["ec_transfer_params", "metrics"] {
            put(field, Value::Null);
        }
        body.into()
    }

    /// Writes the chunk with the role, sent with the first token of a chat's choice; writes nothing
    /// for completions.
    pub(super) fn write_role_chunk(&self, index: usize, out: &mut String) {
        match self.api {
            OpenAiApi::Completion => return,
            OpenAiApi::Responses => {
                let event = json!({ "response": self.response(false) });
                return write_event("response.created", event, out);
            }
            OpenAiApi::Chat => {}
        }
        self.write_chunk_start(index, out);
        out.push_str(
            r#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#,
        );
        if self.asked.form.continuous_usage {
            let _infallible = write!(out, r#","usage":{}"#, self.running_usage(index, 0));
        }
        let ids = self.choices.get(index).map_or(Value::Null, |choice| self.prompt_ids(choice));
        let _infallible = write!(out, r#","prompt_token_ids":{ids},"prompt_text":null}}"#);
        out.push_str("\n\n");
    }

    /// Writes the chunk of the choice's last token.
    pub(super) fn write_token_chunk(&self, index: usize, out: &mut String) {
        let Some(choice) = self.choices.get(index) else { return };
        let Some(token_id) = choice.tokens.ids.last() else { return };
        let text = Value::from(self.tokenizer.word(*token_id));
        if self.api == OpenAiApi::Responses {
            let event = json!({ "output_index": index, "content_index": 0, "delta": text });
            return write_event("response.output_text.delta", event, out);
        }
        let ids = if self.asked.form.return_token_ids { json!([token_id]) } else { Value::Null };
        let first = choice.tokens.ids.len() == 1;
        self.write_chunk_start(index, out);
        let _infallible = match self.api {
            OpenAiApi::Chat | OpenAiApi::Responses => {
                write!(out, r#""delta":{{"content":{text}}},"logprobs":null,"#)
            }
            OpenAiApi::Completion => write!(out, r#""text":{text},"logprobs":null,"#),
        };
        match self.finish_reason(choice) {
            Some(reason) => {
                let _infallible = write!(out, r#""finish_reason":"{reason}","stop_reason":null,"#);
            }
            None if self.api == OpenAiApi::Chat => out.push_str(r#""finish_reason":null,"#),
            None => out.push_str(r#""finish_reason":null,"stop_reason":null,"#),
        }
        if self.api == OpenAiApi::Completion {
            let prompt = if first { self.prompt_ids(choice) } else { Value::Null };
            let _infallible = write!(out, r#""prompt_token_ids":{prompt},"#);
        }
        let _infallible = write!(out, r#""token_ids":{ids}}}]"#);
        if self.asked.form.continuous_usage {
            let usage = self.running_usage(index, choice.tokens.ids.len());
            let _infallible = write!(out, r#","usage":{usage}"#);
        }
        if choice.finished && !self.kv_transfer_params().is_null() {
            let _infallible = write!(out, r#","kv_transfer_params":{}"#, self.kv_transfer_params());
        }
        if choice.finished && !self.asked.form.include_usage {
            let _infallible = write!(out, r#","system_fingerprint":"{FINGERPRINT}""#);
        }
        out.push_str("}\n\n");
    }

    /// Writes the end of a stream: the usage, if requested, and the end mark.
    pub(super) fn write_end(&self, out: &mut String) {
        if self.api == OpenAiApi::Responses {
            let event = json!({ "response": self.response(true) });
            return write_event("response.completed", event, out);
        }
        if self.asked.form.include_usage {
            self.write_chunk_head(out);
            let usage = self.usage(false);
            let _infallible =
                write!(out, r#"],"usage":{usage},"system_fingerprint":"{FINGERPRINT}"}}"#);
            out.push_str("\n\n");
        }
        out.push_str("data: [DONE]\n\n");
    }

    /// True when the choice has exactly 1 token.
    pub(super) fn is_first_token(&self, index: usize) -> bool {
        self.choices.get(index).is_some_and(|choice| choice.tokens.ids.len() == 1)
    }

    fn write_chunk_start(&self, index: usize, out: &mut String) {
        self.write_chunk_head(out);
        let _infallible = write!(out, r#"{{"index":{index},"#);
    }

    fn write_chunk_head(&self, out: &mut String) {
        let object = match self.api {
            OpenAiApi::Chat | OpenAiApi::Responses => "chat.completion.chunk",
            OpenAiApi::Completion => "text_completion",
        };
        let id = Value::from(self.full_id());
        let model = Value::from(self.asked.form.model.as_str());
        let created = self.created_s;
        let _infallible = write!(
            out,
            r#"data: {{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":["#
        );
    }

    fn whole_choice(&self, index: usize, choice: &AnswerChoice) -> Value {
        let reason = self.finish_reason(choice);
        let ids =
            if self.asked.form.return_token_ids { json!(choice.tokens.ids) } else { Value::Null };
        match self.api {
            OpenAiApi::Chat | OpenAiApi::Responses => json!({
                "index": index,
                "message": {
                    "role": "assistant", "content": choice.tokens.text, "refusal": null,
                    "annotations": null,
                    "audio": null, "function_call": null, "reasoning": null,
                },
                "logprobs": null, "finish_reason": reason, "stop_reason": null, "token_ids": ids,
                "routed_experts": null,
            }),
            OpenAiApi::Completion => json!({
                "index": index, "text": choice.tokens.text, "logprobs": null,
                "finish_reason": reason,
                "stop_reason": null, "token_ids": ids, "prompt_logprobs": null,
                "prompt_token_ids": self.prompt_ids(choice), "routed_experts": null,
            }),
        }
    }

    /// The object of `/v1/responses`, at its start or complete.
    fn response(&self, is_complete: bool) -> Value {
        let message = |choice: &AnswerChoice| {
            let text = &choice.tokens.text;
            json!({
                "type": "message", "id": format!("msg_{}", self.asked.form.id), "role": "assistant",
                "status": "completed",
                "content": [{ "type": "output_text", "text": text, "annotations": [] }],
            })
        };
        let choices = self.choices.iter().filter(|_| is_complete);
        let usage = self.usage(false);
        let usage = is_complete.then(|| {
            json!({
                "input_tokens": usage.get("prompt_tokens"),
                "input_tokens_details": usage.get("prompt_tokens_details"),
                "output_tokens": usage.get("completion_tokens"),
                "total_tokens": usage.get("total_tokens"),
            })
        });
        json!({
            "id": self.full_id(), "object": self.object(), "created_at": self.created_s,
            "model": self.asked.form.model,
            "status": if is_complete { "completed" } else { "in_progress" },
            "output": choices.map(message).collect::<Vec<_>>(), "usage": usage,
            "kv_transfer_params": self.kv_transfer_params(),
        })
    }

    fn usage(&self, whole: bool) -> Value {
        let counted = || self.choices.iter().filter(|choice| choice.counts_prompt);
        let prompt: usize = counted().map(|choice| choice.prompt.len()).sum();
        let cached: usize = counted().map(|choice| choice.tokens.cached).sum();
        let completion: usize = self.choices.iter().map(|choice| choice.tokens.ids.len()).sum();
        let total = prompt + completion;
        if whole {
            return json!({
                "prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion,
                "prompt_tokens_details": {
                    "cached_tokens": cached, "created_cache_tokens": null,
                    "multimodal_tokens": null,
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
            "prompt_tokens": prompt, "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "completion_tokens_details": null,
        })
    }

    fn prompt_ids(&self, choice: &AnswerChoice) -> Value {
        if self.asked.form.return_token_ids { json!(*choice.prompt) } else { Value::Null }
    }

    fn finish_reason(&self, choice: &AnswerChoice) -> Option<&'static str> {
        let reason = if self.asked.output_tokens.is_some() { "length" } else { "stop" };
        choice.finished.then_some(reason)
    }

    fn object(&self) -> &'static str {
        match self.api {
            OpenAiApi::Chat => "chat.completion",
            OpenAiApi::Completion => "text_completion",
            OpenAiApi::Responses => "response",
        }
    }
}

fn write_event(kind: &str, mut event: Value, out: &mut String) {
    if let Some(members) = event.as_object_mut() {
        members.insert("type".into(), kind.into());
    }
    let _infallible = write!(out, "event: {kind}\ndata: {event}\n\n");
}

const FINGERPRINT: &str = "vllm-0.33.0-simulated";
