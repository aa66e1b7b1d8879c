//! An answer in the making, and its JSON in SGLang's shapes: whole, and one chunk a token.

use super::asked::{Api, Asked, fresh_id};
use super::error::{Failure, Shape};
use super::item::{Event, Item};
use crate::base::{Clock, NanosSinceStart};
use crate::engine::http::{EngineState, Timed, unix_time_s};
use crate::engine::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// How an item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Length,
    Stop,
    Abort,
}

/// What is known of one item.
#[derive(Debug)]
struct Told {
    rid: String,
    prompt_tokens: usize,
    /// Its prompt counts in the usage; only the first answer to each prompt does.
    counts_prompt: bool,
    cached_tokens: usize,
    dp_rank: usize,
    token_ids: Vec<u32>,
    text: String,
    end: Option<End>,
}

/// All items of one HTTP request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) api: Api,
    is_batch: bool,
    include_usage: bool,
    model: String,
    id: String,
    created_s: u64,
    told: Vec<Told>,
    tokenizer: Arc<Tokenizer>,
    clock: Clock,
    begun: NanosSinceStart,
    /// With several ranks behind one port answers name theirs, as SGLang's Python server does.
    tells_rank: bool,
    end: End,
    timed: Option<Timed>,
}

impl Answer {
    pub(super) fn new(
        state: &EngineState,
        asked: &Asked,
        items: &[Item],
        timed: Option<Timed>,
    ) -> Self {
        let id = match asked.api {
            Api::Completion => format!("cmpl-{}", fresh_id()),
            Api::Chat | Api::Generate => {
                items.first().map_or_else(fresh_id, |item| item.rid.clone())
            }
        };
        let told = |item: &Item| Told {
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
            end: if asked.output_tokens.is_some() { End::Length } else { End::Stop },
            timed,
        }
    }

    pub(super) fn shape(&self) -> Shape {
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
    pub(super) fn take(&mut self, index: usize, event: Event) -> Result<(), Failure> {
        let end = self.end;
        let Some(told) = self.told.get_mut(index) else { return Ok(()) };
        match event {
            Event::Token { token_id, cached_tokens, dp_rank, last } => {
                told.cached_tokens = cached_tokens;
                told.dp_rank = dp_rank;
                told.token_ids.push(token_id);
                told.text.push_str(self.tokenizer.word(token_id));
                told.end = last.then_some(end);
            }
            Event::Aborted => told.end = Some(End::Abort),
            Event::Failed(failure) => return Err(failure),
        }
        if self.is_finished() {
            let aborted = self.told.iter().any(|told| told.end == Some(End::Abort));
            self.ended(if aborted { "aborted" } else { "finished" });
        }
        Ok(())
    }

    /// The body of an answer that is not streamed.
    pub(super) fn whole_body(&self) -> Value {
        match self.api {
            Api::Generate if self.is_batch => {
                self.told.iter().map(|told| self.native(told)).collect()
            }
            Api::Generate => self.told.first().map_or(Value::Null, |told| self.native(told)),
            Api::Chat => {
                let choice = |(index, told): (usize, &Told)| {
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
            Api::Completion => {
                let choice = |(index, told): (usize, &Told)| {
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
            Api::Generate => {
                let mut native = self.native(told);
                if self.is_batch
                    && let Some(object) = native.as_object_mut()
                {
                    object.insert("index".into(), index.into());
                }
                push_event(out, &native);
            }
            Api::Chat => self.write_chat_chunk(index, told, out),
            Api::Completion => {
                let text = told.token_ids.last().map_or("", |id| self.tokenizer.word(*id));
                let text = if told.end == Some(End::Abort) { "" } else { text };
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
        if self.include_usage && self.api != Api::Generate {
            let object = match self.api {
                Api::Chat => "chat.completion.chunk",
                Api::Completion | Api::Generate => "text_completion",
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
    fn write_chat_chunk(&self, index: usize, told: &Told, out: &mut String) {
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
        if told.end != Some(End::Abort) {
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

    fn native(&self, told: &Told) -> Value {
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
                Some(End::Length) => json!({ "type": "length", "length": tokens }),
                Some(End::Stop) => json!({ "type": "stop", "matched": null }),
                Some(End::Abort) => json!({ "type": "abort", "message": "Aborted by AbortReq." }),
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
            Api::Completion => json!({
                "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total,
                "prompt_tokens_details": details,
            }),
            Api::Chat | Api::Generate => json!({
                "prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion,
                "prompt_tokens_details": details, "reasoning_tokens": 0,
                "completion_tokens_details": null,
            }),
        }
    }
}

impl Told {
    fn reason(&self) -> Option<&'static str> {
        self.end.map(|end| match end {
            End::Length => "length",
            End::Stop => "stop",
            End::Abort => "abort",
        })
    }
}

fn push_event(out: &mut String, event: &Value) {
    let _infallible = write!(out, "data: {event}\n\n");
}
