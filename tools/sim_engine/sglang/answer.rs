//! An answer in progress, and its JSON in SGLang's formats: whole, and in a chunk per token.

use super::error::{ErrorShape, Failure};
use super::item::{ItemProgress, SglangItem};
use super::request::{SglangApi, SglangForm, SglangRequest};
use crate::answer_tokens::AnswerTokens;
use crate::random_id::random_id_128;
use crate::state::EngineState;
use crate::times::TimedRequest;
use crate::tokenizer::Tokenizer;
use crate::unix_time::unix_time_s;
use forebay_base::{Clock, NanosSinceStart};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// How an item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItemEnd {
    Length,
    Stop,
    Abort,
}

/// Progress of an item.
#[derive(Debug)]
struct ItemReport {
    rid: String,
    prompt_tokens: usize,
    /// The prompt counts in the usage; only with the first answer to each prompt.
    counts_prompt: bool,
    dp_rank: usize,
    tokens: AnswerTokens,
    end: Option<ItemEnd>,
}

/// Properties of an answer that are known before the first token.
#[derive(Debug)]
struct SglangHead {
    id: String,
    created_s: u64,
    is_batch: bool,
    /// Answers contain their rank, as SGLang's Python server does with several ranks behind a port.
    tells_rank: bool,
    /// End of an item that is not cut short.
    end: ItemEnd,
}

/// All items of an HTTP request.
#[derive(Debug)]
pub(super) struct SglangAnswer {
    pub(super) form: SglangForm,
    head: SglangHead,
    reports: Vec<ItemReport>,
    tokenizer: Arc<Tokenizer>,
    clock: Clock,
    begun: NanosSinceStart,
    pub(super) timed: TimedRequest,
}

impl SglangAnswer {
    pub(super) fn new(
        state: &EngineState,
        asked: &SglangRequest,
        items: &[SglangItem],
        timed: TimedRequest,
    ) -> Self {
        let id = match asked.form.api {
            SglangApi::Completion => format!("cmpl-{}", random_id_128()),
            SglangApi::Chat | SglangApi::Generate => {
                items.first().map_or_else(random_id_128, |item| item.rid.clone())
            }
        };
        let report = |item: &SglangItem| ItemReport {
            rid: item.rid.clone(),
            prompt_tokens: item.prompt.len(),
            counts_prompt: item.choice == 0,
            dp_rank: 0,
            tokens: AnswerTokens::default(),
            end: None,
        };
        let head = SglangHead {
            id,
            created_s: unix_time_s(),
            is_batch: asked.prompts.is_list() || items.len() > 1,
            tells_rank: state.config.ranks > 1,
            end: if asked.output_tokens.is_some() { ItemEnd::Length } else { ItemEnd::Stop },
        };
        Self {
            form: asked.form.clone(),
            head,
            reports: items.iter().map(report).collect(),
            tokenizer: state.encode.tokenizer().clone(),
            clock: state.clock,
            begun: state.clock.now(),
            timed,
        }
    }

    pub(super) fn shape(&self) -> ErrorShape {
        self.form.api.shape()
    }

    /// True once every item has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.reports.iter().all(|report| report.end.is_some())
    }

    /// Adds progress of an item; a failed item fails the answer.
    pub(super) fn take(&mut self, index: usize, event: ItemProgress) -> Result<(), Failure> {
        let end = self.head.end;
        let Some(report) = self.reports.get_mut(index) else { return Ok(()) };
        match event {
            ItemProgress::Token { token_id, cached_tokens, dp_rank, last } => {
                report.dp_rank = dp_rank;
                report.tokens.push(&self.tokenizer, token_id, cached_tokens);
                report.end = last.then_some(end);
            }
            ItemProgress::Aborted => report.end = Some(ItemEnd::Abort),
            ItemProgress::Failed(failure) => return Err(failure),
        }
        if self.is_finished() {
            let aborted = self.reports.iter().any(|report| report.end == Some(ItemEnd::Abort));
            self.timed.ended(if aborted { "aborted" } else { "finished" });
        }
        Ok(())
    }

    /// The body of an answer that is not streamed.
    pub(super) fn whole_body(&self) -> Value {
        match self.form.api {
            SglangApi::Generate if self.head.is_batch => {
                self.reports.iter().map(|report| self.native(report)).collect()
            }
            SglangApi::Generate => {
                self.reports.first().map_or(Value::Null, |report| self.native(report))
            }
            SglangApi::Chat => {
                let choice = |(index, report): (usize, &ItemReport)| {
                    json!({
                        "index": index,
                        "message": { "role": "assistant", "content": report.tokens.text,
                            "reasoning_content": null },
                        "logprobs": null, "finish_reason": report.reason(), "matched_stop": null,
                    })
                };
                let choices: Vec<_> = self.reports.iter().enumerate().map(choice).collect();
                json!({
                    "id": self.head.id, "object": "chat.completion", "created": self.head.created_s,
                    "model": self.form.model, "choices": choices, "usage": self.usage(),
                    "metadata": { "weight_version": "default" },
                })
            }
            SglangApi::Completion => {
                let choice = |(index, report): (usize, &ItemReport)| {
                    json!({
                        "text": report.tokens.text, "index": index,
                        "finish_reason": report.reason(), "matched_stop": null,
                    })
                };
                let choices: Vec<_> = self.reports.iter().enumerate().map(choice).collect();
                json!({
                    "id": self.head.id, "choices": choices, "created": self.head.created_s,
                    "model": self.form.model,
                    "usage": self.usage(), "object": "text_completion",
                })
            }
        }
    }

    /// Writes the chunk of the last event.
    pub(super) fn write_chunk(&self, index: usize, out: &mut String) {
        let Some(report) = self.reports.get(index) else { return };
        match self.form.api {
            SglangApi::Generate => {
                let mut native = self.native(report);
                if self.head.is_batch
                    && let Some(object) = native.as_object_mut()
                {
                    object.insert("index".into(), index.into());
                }
                push_event(out, &native);
            }
            SglangApi::Chat => self.write_chat_chunk(index, report, out),
            SglangApi::Completion => {
                let text = report.tokens.ids.last().map_or("", |id| self.tokenizer.word(*id));
                let text = if report.end == Some(ItemEnd::Abort) { "" } else { text };
                push_event(
                    out,
                    &json!({
                        "id": self.head.id,
                        "choices": [{
                            "text": text, "index": index, "finish_reason": report.reason(),
                            "matched_stop": null,
                        }],
                        "created": self.head.created_s, "model": self.form.model,
                        "object": "text_completion",
                    }),
                );
            }
        }
    }

    /// Writes the end of a stream, after the last token.
    pub(super) fn write_end(&self, out: &mut String) {
        if self.form.include_usage && self.form.api != SglangApi::Generate {
            let object = match self.form.api {
                SglangApi::Chat => "chat.completion.chunk",
                SglangApi::Completion | SglangApi::Generate => "text_completion",
            };
            push_event(
                out,
                &json!({
                    "id": self.head.id, "object": object, "created": self.head.created_s,
                    "model": self.form.model, "choices": [], "usage": self.usage(),
                }),
            );
        }
        out.push_str("data: [DONE]\n\n");
    }

    /// Writes the role with the first token, text with every token, and the reason by itself.
    fn write_chat_chunk(&self, index: usize, report: &ItemReport, out: &mut String) {
        let mut push = |delta: Value, reason: Option<&str>| {
            push_event(
                out,
                &json!({
                    "id": self.head.id, "object": "chat.completion.chunk",
                    "created": self.head.created_s, "model": self.form.model,
                    "choices": [{
                        "index": index, "delta": delta, "logprobs": null, "finish_reason": reason,
                        "matched_stop": null,
                    }],
                }),
            );
        };
        if report.end != Some(ItemEnd::Abort) {
            if report.tokens.ids.len() == 1 {
                let role = json!({ "reasoning_content": null, "role": "assistant", "content": "" });
                push(role, None);
            }
            let text = report.tokens.ids.last().map_or("", |id| self.tokenizer.word(*id));
            push(json!({ "reasoning_content": null, "content": text }), None);
        }
        if report.end.is_some() {
            push(json!({ "reasoning_content": null }), report.reason());
        }
    }

    fn native(&self, report: &ItemReport) -> Value {
        let mut meta = Map::new();
        let mut put = |name: &str, value: Value| meta.insert(name.into(), value);
        put("id", report.rid.as_str().into());
        put("prompt_tokens", report.prompt_tokens.into());
        put("completion_tokens", report.tokens.ids.len().into());
        let tokens = report.tokens.ids.len();
        put(
            "finish_reason",
            match report.end {
                None => Value::Null,
                Some(ItemEnd::Length) => json!({ "type": "length", "length": tokens }),
                Some(ItemEnd::Stop) => json!({ "type": "stop", "matched": null }),
                Some(ItemEnd::Abort) => {
                    json!({ "type": "abort", "message": "Aborted by AbortReq." })
                }
            },
        );
        if report.end.is_some() {
            let ns = self.clock.now().0.saturating_sub(self.begun.0);
            put("e2e_latency", (ns as f64 / 1e9).into());
        }
        put("cached_tokens", report.tokens.cached.into());
        put("reasoning_tokens", 0.into());
        put("weight_version", "default".into());
        if self.head.tells_rank {
            put("dp_rank", report.dp_rank.into());
        }
        json!({ "text": report.tokens.text, "meta_info": meta, "output_ids": report.tokens.ids })
    }

    fn usage(&self) -> Value {
        let counted = || self.reports.iter().filter(|report| report.counts_prompt);
        let prompt: usize = counted().map(|report| report.prompt_tokens).sum();
        let cached: usize = counted().map(|report| report.tokens.cached).sum();
        let completion: usize = self.reports.iter().map(|report| report.tokens.ids.len()).sum();
        let total = prompt + completion;
        let details = json!({ "cached_tokens": cached });
        match self.form.api {
            SglangApi::Completion => json!({
                "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total,
                "prompt_tokens_details": details,
            }),
            SglangApi::Chat | SglangApi::Generate => json!({
                "prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion,
                "prompt_tokens_details": details, "reasoning_tokens": 0,
                "completion_tokens_details": null,
            }),
        }
    }
}

impl ItemReport {
    fn reason(&self) -> Option<&'static str> {
        self.end.map(|end| match end {
            ItemEnd::Length => "length",
            ItemEnd::Stop => "stop",
            ItemEnd::Abort => "abort",
        })
    }
}

fn push_event(out: &mut String, event: &Value) {
    let _infallible = write!(out, "data: {event}\n\n");
}
