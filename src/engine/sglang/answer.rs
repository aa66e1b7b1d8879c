//! An answer in the making, and its JSON in SGLang's shapes: whole, and one chunk a token.

use super::asked::{SglangApi, SglangRequest};
use super::error::{ErrorShape, Failure};
use super::item::{ItemProgress, SglangItem};
use crate::base::{Clock, NanosSinceStart};
use crate::engine::random_id::random_id_128;
use crate::engine::state::EngineState;
use crate::engine::times::{Timed, unix_time_s};
use crate::engine::tokenizer::Tokenizer;
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

/// What is known of one item.
#[derive(Debug)]
struct ItemReport {
    rid: String,
    prompt_tokens: usize,
    /// Its prompt counts in the usage; only the first answer to each prompt does.
    counts_prompt: bool,
    cached_tokens: usize,
    dp_rank: usize,
    token_ids: Vec<u32>,
    text: String,
    end: Option<ItemEnd>,
}

/// All items of one HTTP request.
#[derive(Debug)]
pub(super) struct SglangAnswer {
    pub(super) api: SglangApi,
    is_batch: bool,
    include_usage: bool,
    model: String,
    id: String,
    created_s: u64,
    told: Vec<ItemReport>,
    tokenizer: Arc<Tokenizer>,
    clock: Clock,
    begun: NanosSinceStart,
    /// With several ranks behind one port answers name theirs, as SGLang's Python server does.
    tells_rank: bool,
    end: ItemEnd,
    timed: Option<Timed>,
}

impl SglangAnswer {
    pub(super) fn new(
        state: &EngineState,
        asked: &SglangRequest,
        items: &[SglangItem],
        timed: Option<Timed>,
    ) -> Self {
        let id = match asked.api {
            SglangApi::Completion => format!("cmpl-{}", random_id_128()),
            SglangApi::Chat | SglangApi::Generate => {
                items.first().map_or_else(random_id_128, |item| item.rid.clone())
            }
        };
        let told = |item: &SglangItem| ItemReport {
            rid: item.rid.clone(),
            prompt_tokens: item.prompt.len(),
            counts_prompt: item.choice == 0,
            cached_tokens: 0,
            dp_rank: 0,
            token_ids: Vec::new(),
            text: String::new(),
            end: None,
        };
        Self {
            api: asked.api,
            is_batch: asked.is_batch || items.len() > 1,
            include_usage: asked.include_usage,
            model: asked.model.clone(),
            id,
            created_s: unix_time_s(),
            told: items.iter().map(told).collect(),
            tokenizer: state.tokenizer.clone(),
            clock: state.clock,
            begun: state.clock.now(),
            tells_rank: state.config.ranks > 1,
            end: if asked.output_tokens.is_some() { ItemEnd::Length } else { ItemEnd::Stop },
            timed,
        }
    }

    pub(super) fn shape(&self) -> ErrorShape {
        self.api.shape()
    }

    /// The first byte goes out now, if none did before.
    pub(super) fn first_byte(&mut self) {
        if let Some(timed) = &mut self.timed {
            timed.first_byte();
        }
    }

    /// Nothing more comes.
    pub(super) fn ended(&mut self, outcome: &'static str) {
        if let Some(timed) = &mut self.timed {
            timed.ended(outcome);
        }
    }

    /// Every item has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.told.iter().all(|told| told.end.is_some())
    }

    /// Adds what came of an item; one that failed fails the answer.
    pub(super) fn take(&mut self, index: usize, event: ItemProgress) -> Result<(), Failure> {
        let end = self.end;
        let Some(told) = self.told.get_mut(index) else { return Ok(()) };
        match event {
            ItemProgress::Token { token_id, cached_tokens, dp_rank, last } => {
                told.cached_tokens = cached_tokens;
                told.dp_rank = dp_rank;
                told.token_ids.push(token_id);
                told.text.push_str(self.tokenizer.word(token_id));
                told.end = last.then_some(end);
            }
            ItemProgress::Aborted => told.end = Some(ItemEnd::Abort),
            ItemProgress::Failed(failure) => return Err(failure),
        }
        if self.is_finished() {
            let aborted = self.told.iter().any(|told| told.end == Some(ItemEnd::Abort));
            self.ended(if aborted { "aborted" } else { "finished" });
        }
        Ok(())
    }

    /// The body of an answer that is not streamed.
    pub(super) fn whole_body(&self) -> Value {
        match self.api {
            SglangApi::Generate if self.is_batch => {
                self.told.iter().map(|told| self.native(told)).collect()
            }
            SglangApi::Generate => self.told.first().map_or(Value::Null, |told| self.native(told)),
            SglangApi::Chat => {
                let choice = |(index, told): (usize, &ItemReport)| {
                    json!({
                        "index": index,
                        "message": { "role": "assistant", "content": told.text,
                            "reasoning_content": null },
                        "logprobs": null, "finish_reason": told.reason(), "matched_stop": null,
                    })
                };
                let choices: Vec<_> = self.told.iter().enumerate().map(choice).collect();
                json!({
                    "id": self.id, "object": "chat.completion", "created": self.created_s,
                    "model": self.model, "choices": choices, "usage": self.usage(),
                    "metadata": { "weight_version": "default" },
                })
            }
            SglangApi::Completion => {
                let choice = |(index, told): (usize, &ItemReport)| {
                    json!({
                        "text": told.text, "index": index, "finish_reason": told.reason(), "matched_stop": null,
                    })
                };
                let choices: Vec<_> = self.told.iter().enumerate().map(choice).collect();
                json!({
                    "id": self.id, "choices": choices, "created": self.created_s,
                    "model": self.model,
                    "usage": self.usage(), "object": "text_completion",
                })
            }
        }
    }

    /// What the event taken last adds to a stream.
    pub(super) fn write_chunk(&self, index: usize, out: &mut String) {
        let Some(told) = self.told.get(index) else { return };
        match self.api {
            SglangApi::Generate => {
                let mut native = self.native(told);
                if self.is_batch
                    && let Some(object) = native.as_object_mut()
                {
                    object.insert("index".into(), index.into());
                }
                push_event(out, &native);
            }
            SglangApi::Chat => self.write_chat_chunk(index, told, out),
            SglangApi::Completion => {
                let text = told.token_ids.last().map_or("", |id| self.tokenizer.word(*id));
                let text = if told.end == Some(ItemEnd::Abort) { "" } else { text };
                push_event(
                    out,
                    &json!({
                        "id": self.id,
                        "choices": [{
                            "text": text, "index": index, "finish_reason": told.reason(), "matched_stop": null,
                        }],
                        "created": self.created_s, "model": self.model, "object": "text_completion",
                    }),
                );
            }
        }
    }

    /// What follows the last token.
    pub(super) fn write_end(&self, out: &mut String) {
        if self.include_usage && self.api != SglangApi::Generate {
            let object = match self.api {
                SglangApi::Chat => "chat.completion.chunk",
                SglangApi::Completion | SglangApi::Generate => "text_completion",
            };
            push_event(
                out,
                &json!({
                    "id": self.id, "object": object, "created": self.created_s, "model": self.model,
                    "choices": [], "usage": self.usage(),
                }),
            );
        }
        out.push_str("data: [DONE]\n\n");
    }

    /// Role with the first token, text with every token, the reason on its own.
    fn write_chat_chunk(&self, index: usize, told: &ItemReport, out: &mut String) {
        let mut push = |delta: Value, reason: Option<&str>| {
            push_event(
                out,
                &json!({
                    "id": self.id, "object": "chat.completion.chunk", "created": self.created_s,
                    "model": self.model,
                    "choices": [{
                        "index": index, "delta": delta, "logprobs": null, "finish_reason": reason,
                        "matched_stop": null,
                    }],
                }),
            );
        };
        if told.end != Some(ItemEnd::Abort) {
            if told.token_ids.len() == 1 {
                let role = json!({ "reasoning_content": null, "role": "assistant", "content": "" });
                push(role, None);
            }
            let text = told.token_ids.last().map_or("", |id| self.tokenizer.word(*id));
            push(json!({ "reasoning_content": null, "content": text }), None);
        }
        if told.end.is_some() {
            push(json!({ "reasoning_content": null }), told.reason());
        }
    }

    fn native(&self, told: &ItemReport) -> Value {
        let mut meta = Map::new();
        let mut put = |name: &str, value: Value| meta.insert(name.into(), value);
        put("id", told.rid.as_str().into());
        put("prompt_tokens", told.prompt_tokens.into());
        put("completion_tokens", told.token_ids.len().into());
        let tokens = told.token_ids.len();
        put(
            "finish_reason",
            match told.end {
                None => Value::Null,
                Some(ItemEnd::Length) => json!({ "type": "length", "length": tokens }),
                Some(ItemEnd::Stop) => json!({ "type": "stop", "matched": null }),
                Some(ItemEnd::Abort) => {
                    json!({ "type": "abort", "message": "Aborted by AbortReq." })
                }
            },
        );
        if told.end.is_some() {
            let ns = self.clock.now().0.saturating_sub(self.begun.0);
            put("e2e_latency", (ns as f64 / 1e9).into());
        }
        put("cached_tokens", told.cached_tokens.into());
        put("reasoning_tokens", 0.into());
        put("weight_version", "default".into());
        if self.tells_rank {
            put("dp_rank", told.dp_rank.into());
        }
        json!({ "text": told.text, "meta_info": meta, "output_ids": told.token_ids })
    }

    fn usage(&self) -> Value {
        let counted = || self.told.iter().filter(|told| told.counts_prompt);
        let prompt: usize = counted().map(|told| told.prompt_tokens).sum();
        let cached: usize = counted().map(|told| told.cached_tokens).sum();
        let completion: usize = self.told.iter().map(|told| told.token_ids.len()).sum();
        let (total, details) = (prompt + completion, json!({ "cached_tokens": cached }));
        match self.api {
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
