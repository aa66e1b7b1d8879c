//! State of a request for continuing its stream on another rank (`retry.mid_stream`). A single word
//! per request in flight; the state behind it exists only if the key is on.

use crate::relay::Transcript;
use forebay_base::{ModelIndex, NanosSinceStart};
use forebay_board::account::NoContinuation;
use forebay_board::admit::AdmittedRequest;
use forebay_fleet::tenant::TokenUsage;
use forebay_fleet::worker::Dialect;
use forebay_json::UsageScan;
use forebay_prompt::parse::Endpoint;
use forebay_router::dispatch::{RelayError, SendPlan};

/// Recorded state of a stream, if any.
#[derive(Debug, Default)]
pub(crate) enum Resumable {
    /// The key is off, or the request asks for no stream.
    #[default]
    Off,
    /// State for another rank, or why the stream cannot be continued.
    On(Box<ResumableStream>),
}

/// State of a stream that another rank may continue.
#[derive(Debug)]
pub(crate) struct ResumableStream {
    pub(crate) transcript: Result<Transcript, NoContinuation>,
    /// Usage scan across all ranks, if the answer is billed.
    pub(crate) scan: Option<Box<UsageScan>>,
    /// Error at which the last rank broke off.
    pub(crate) broke: Option<RelayError>,
    /// Model whose vocabulary and context length apply.
    pub(crate) model: ModelIndex,
    /// Engine of the last rank. Stored here, because its worker may have been replaced since.
    pub(crate) engine: Option<Dialect>,
    /// Number of continuations on other ranks.
    pub(crate) continued: u32,
    /// While its worker is being emptied: time of the next check for another rank.
    pub(crate) look_at: NanosSinceStart,
}

impl ResumableStream {
    /// Usage of a billed stream that the router ends with these events.
    pub(crate) fn usage_at_end(
        &mut self,
        events: &[u8],
        prompt_estimate: u64,
    ) -> Option<TokenUsage> {
        let scan = self.scan.as_mut()?;
        scan.feed(events);
        let transcript = self.transcript.as_ref().ok();
        // The first event of a chat contains only the role.
        let empty = u64::from(transcript.is_some_and(Transcript::is_chat));
        let output = scan.events().saturating_sub(empty);
        let by_events = TokenUsage { prompt: prompt_estimate, cached: 0, output };
        scan.usage().or_else(|| transcript?.usage()).or(Some(by_events))
    }
}

impl Resumable {
    /// State for a received request that asks for a stream. `held_bytes` of its body are counted in
    /// `admitted`.
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
            // The prompt's ids replace its text.
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

    /// True if the router adds the request for token ids. The body of a continuation already asks
    /// for ids.
    pub(crate) fn asks_ids(&self, plan: &SendPlan) -> bool {
        let Self::On(stream) = self else { return false };
        let Ok(transcript) = &stream.transcript else { return false };
        self.shows_ids(plan) && !(stream.broke.is_some() && transcript.goes_on_by_ids())
    }

    /// True if the rank's engine returns token ids in streams. SGLang 0.5.23 rejects
    /// `return_token_ids` in streams of chats (`serving_chat.py`).
    pub(crate) fn shows_ids(&self, plan: &SendPlan) -> bool {
        let Self::On(stream) = self else { return false };
        let Ok(transcript) = &stream.transcript else { return false };
        match plan.engine.dialect {
            Dialect::Vllm => true,
            Dialect::Sglang => !transcript.is_chat(),
            Dialect::Openai => false,
        }
    }

    /// True if the router must read the answer.
    pub(crate) const fn reads(&self) -> bool {
        matches!(self, Self::On(stream) if stream.transcript.is_ok())
    }

    /// True if the request asks for the remainder of a stream.
    pub(crate) const fn is_remainder(&self) -> bool {
        matches!(self, Self::On(stream) if stream.broke.is_some())
    }

    /// True if the client has received events of the stream.
    pub(crate) fn has_events(&self) -> bool {
        let Self::On(stream) = self else { return false };
        stream.transcript.as_ref().is_ok_and(Transcript::has_begun)
    }
}
