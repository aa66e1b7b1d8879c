//! What a request holds so that another rank can go on with its stream (`retry.mid_stream`). One
//! word for each connection, and what stands behind it only with the key.

use crate::relay::Transcript;
use forebay_base::{ModelIndex, NanosSinceStart};
use forebay_fleet::account::NoContinuation;
use forebay_fleet::admit::AdmittedRequest;
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::worker::Dialect;
use forebay_json::UsageScan;
use forebay_prompt::parse::Endpoint;
use forebay_router::dispatch::{RelayError, SendPlan};

/// What is kept of a stream.
#[derive(Debug, Default)]
pub(crate) enum Resumable {
    /// Nothing: the key is off, or it is no stream.
    #[default]
    Off,
    /// All that another rank needs, or why there is nothing.
    On(Box<ResumableStream>),
}

/// A stream that another rank may go on with.
#[derive(Debug)]
pub(crate) struct ResumableStream {
    pub(crate) transcript: Result<Transcript, NoContinuation>,
    /// What the answer has cost, where that is counted; of all ranks together.
    pub(crate) scan: Option<Box<UsageScan>>,
    /// How its last rank broke off.
    pub(crate) broke: Option<RelayError>,
    /// Whose vocabulary and context count.
    pub(crate) model: ModelIndex,
    /// The engine that answered last. Its worker may have gone since, and another come.
    pub(crate) engine: Option<Dialect>,
    /// How often another rank went on with it.
    pub(crate) continued: u32,
    /// Where its worker is emptied: when to look for another rank again.
    pub(crate) look_at: NanosSinceStart,
}

impl ResumableStream {
    /// What the stream has cost, where that is counted. The router ends it with these events.
    pub(crate) fn usage_at_end(
        &mut self,
        events: &[u8],
        prompt_estimate: u64,
    ) -> Option<TokenUsage> {
        let scan = self.scan.as_mut()?;
        scan.feed(events);
        let transcript = self.transcript.as_ref().ok();
        // The first event of a chat has the role alone.
        let empty = u64::from(transcript.is_some_and(Transcript::is_chat));
        let output = scan.events().saturating_sub(empty);
        let by_events = TokenUsage { prompt: prompt_estimate, cached: 0, output };
        scan.usage().or_else(|| transcript?.usage()).or(Some(by_events))
    }
}

impl Resumable {
    /// For a stream whose request has been read. Its body is held as `held_bytes`.
    pub(crate) fn of(
        endpoint: Endpoint,
        body: &[u8],
        admitted: &mut AdmittedRequest,
        held_bytes: usize,
        model: ModelIndex,
    ) -> Self {
        if !matches!(endpoint, Endpoint::ChatCompletions | Endpoint::Completions) {
            return Self::Off;
        }
        let transcript = Transcript::of(endpoint, body).and_then(|transcript| {
            // The ids of the prompt take the place of its text.
            let bytes = held_bytes.saturating_add(transcript.ids_bytes());
            admitted.hold_body(bytes).map(|()| transcript).map_err(|_| NoContinuation::TooLong)
        });
        Self::On(Box::new(ResumableStream {
            transcript,
            scan: None,
            broke: None,
            model,
            engine: None,
            continued: 0,
            look_at: NanosSinceStart::default(),
        }))
    }

    /// Does the request ask that rank for ids? The body of a continuation asks by itself.
    pub(crate) fn asks_ids(&self, plan: &SendPlan) -> bool {
        let Self::On(kept) = self else { return false };
        let Ok(transcript) = &kept.transcript else { return false };
        self.shows_ids(plan) && !(kept.broke.is_some() && transcript.goes_on_by_ids())
    }

    /// Does the engine of that rank tell the ids of the stream? SGLang 0.5.23 refuses
    /// `return_token_ids` in streams of chats (`serving_chat.py`).
    pub(crate) fn shows_ids(&self, plan: &SendPlan) -> bool {
        let Self::On(kept) = self else { return false };
        let Ok(transcript) = &kept.transcript else { return false };
        match plan.engine.dialect {
            Dialect::Vllm => true,
            Dialect::Sglang => !transcript.is_chat(),
            Dialect::Openai => false,
        }
    }

    /// Must the answer be readable?
    pub(crate) const fn reads(&self) -> bool {
        matches!(self, Self::On(kept) if kept.transcript.is_ok())
    }

    /// Is what is sent the rest of a stream?
    pub(crate) const fn is_remainder(&self) -> bool {
        matches!(self, Self::On(kept) if kept.broke.is_some())
    }

    /// Has the client events of the stream?
    pub(crate) fn has_events(&self) -> bool {
        let Self::On(kept) = self else { return false };
        kept.transcript.as_ref().is_ok_and(Transcript::has_begun)
    }
}
