//! Token ids of a stream of vLLM, as far as the client has the stream, so that another rank can
//! continue where the first rank broke off. Sans-IO: bytes of events in, bytes of events out.
//!
//! The router asks for the ids (`return_token_ids`). The first event has id, time and model of the
//! stream, the request has sampling and limits.
//!
//! # Exactness
//! The engine holds text back until a character is whole. An event with text and a single id is
//! therefore a safe place: the client has the text of all ids up to there. Of an event with text
//! and several ids, the last id may be held back. Such a place is safe if its bytes, by the
//! vocabulary, end with a whole character. Ids behind the safe place are computed again.
//!
//! # Limits
//! [`CONTINUED_IDS_MAX`] ids of a stream, [`CONTINUED_EVENT_BYTES_MAX`] bytes of an event,
//! [`CONTINUED_BODY_BYTES_MAX`] bytes of a request.

mod continuation_members;
mod event;
mod overlong;
#[cfg(test)]
mod overlong_tests;
mod rewrite;
#[cfg(test)]
mod tests;

use continuation_members::ContinuationMembers;
use event::{TokenEvent, push_ids};
use forebay_base::limits::{CONTINUED_BODY_BYTES_MAX, CONTINUED_IDS_MAX};
use forebay_board::account::NoContinuation;
use forebay_fleet::tenant::TokenUsage;
use forebay_http1::push_decimal;
use forebay_json::{CutPart, EventCutter, data_of, is_comment};
use forebay_prompt::parse::Endpoint;
use overlong::OverlongIds;
use rewrite::{EventShape, is_failure, slice, without_ids};

/// The part of a stream that the client has.
#[derive(Debug)]
pub struct Transcript {
    asked: ContinuationMembers,
    /// Output tokens that the context leaves, where the request has no limit of its own.
    context_room: Option<u64>,
    events: EventCutter,
    overlong: OverlongIds,
    ids: StreamIds,
    progress: StreamProgress,
    /// The last event of the last engine.
    last_failure: FailureEvent,
    /// Why no other rank can go on.
    obstacle: Option<NoContinuation>,
}

/// The ids of the prompt and of the output, with output that the client does not have.
#[derive(Debug, Default)]
struct StreamIds {
    all: Vec<u32>,
    prompt_count: usize,
    /// Ids with text that the client has, with the prompt.
    sent_count: usize,
    /// Output that the rank of this moment was sent as prompt.
    behind_count: usize,
    /// Ids up to the last event with text.
    text_count: usize,
    /// The engine may send the text of a token in parts.
    has_parts: bool,
}

/// Parts of a stream besides text that the client has.
#[derive(Debug, Default)]
struct StreamProgress {
    /// `None` before the first event.
    shape: Option<EventShape>,
    is_continued: bool,
    /// The request itself was sent again: the client has the role.
    is_again: bool,
    /// The first event of this rank has come.
    has_prompt: bool,
    is_finished: bool,
    has_usage: bool,
    is_done: bool,
    failure: FailureEvent,
}

/// The event with which an engine fails or stops, held back.
#[derive(Debug, Default)]
struct FailureEvent {
    event: Vec<u8>,
    /// The engine stops, and a usage may follow.
    is_abort: bool,
}

impl Transcript {
    /// Of a request that has not been sent yet.
    ///
    /// # Errors
    /// [`NoContinuation::Request`] where a continuation could not ask for the same.
    pub fn of(endpoint: Endpoint, body: &[u8]) -> Result<Self, NoContinuation> {
        let is_chat = match endpoint {
            Endpoint::ChatCompletions => true,
            Endpoint::Completions => false,
            _ => return Err(NoContinuation::Request),
        };
        let body = Some(body).filter(|body| body.len() <= CONTINUED_BODY_BYTES_MAX);
        let asked = body.and_then(|body| ContinuationMembers::read(body, is_chat));
        Ok(Self {
            asked: asked.ok_or(NoContinuation::Request)?,
            context_room: None,
            events: EventCutter::default(),
            overlong: OverlongIds::default(),
            ids: StreamIds::default(),
            progress: StreamProgress::default(),
            last_failure: FailureEvent::default(),
            obstacle: None,
        })
    }

    /// Is it a chat?
    #[must_use]
    pub const fn is_chat(&self) -> bool {
        self.asked.is_chat
    }

    /// Sets whether the engine may send the text of a token in parts, as SGLang does with half a
    /// character. Then only the vocabulary shows how far the client has the text.
    pub fn sends_parts(&mut self, has_parts: bool) {
        self.ids.has_parts = has_parts;
    }

    /// Bytes of the ids that the answer can have.
    #[must_use]
    pub fn ids_bytes(&self) -> usize {
        let tokens = usize::try_from(self.asked.tokens_max.unwrap_or(TOKENS_USUAL));
        tokens.unwrap_or(usize::MAX).min(CONTINUED_IDS_MAX).saturating_mul(size_of::<u32>())
    }

    /// Takes bytes of the answer, and appends the events that the client gets.
    pub fn feed(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let mut events = std::mem::take(&mut self.events);
        events.feed(data, |next| match next {
            CutPart::Event(event) => {
                self.overlong = OverlongIds::default();
                self.event(event, out);
            }
            CutPart::Part(part) => {
                self.give_up(NoContinuation::TooLong);
                self.overlong.pass(part, out);
            }
        });
        self.events = events;
    }

    /// Appends the bytes of an event that is not whole: nothing follows.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        self.overlong.pass(&self.events.take(), out);
    }

    /// Has the engine reported a failure? No event behind that report counts.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        !self.progress.failure.event.is_empty()
    }

    /// Why no more ids are stored.
    pub(super) const fn obstacle(&self) -> Option<NoContinuation> {
        self.obstacle
    }

    /// Has the answer ended before the stream? True only if all events were understood, and none is
    /// an end.
    #[must_use]
    pub fn is_cut_short(&self) -> bool {
        let has_end = self.progress.is_finished || self.progress.is_done;
        let may_end = || memchr::memmem::find(self.events.held(), b"[DONE]").is_some();
        self.has_begun() && self.obstacle().is_none() && !has_end && !may_end()
    }

    /// No other rank continues the stream: appends the last event of the engine, and the end. False
    /// if the engine sent no such event.
    pub fn end_failed(&mut self, out: &mut Vec<u8>) -> bool {
        if self.last_failure.event.is_empty() {
            return false;
        }
        out.append(&mut self.last_failure.event);
        let output = self.ids.all.len().saturating_sub(self.ids.prompt_count);
        if let Some(shape) = self.progress.shape.as_ref()
            && self.last_failure.is_abort
            && self.owes_usage()
        {
            shape.write_usage(self.ids.prompt_count, output, out);
        }
        out.extend_from_slice(DONE);
        true
    }

    /// The stream has broken off: a part of an event is dropped.
    pub fn break_off(&mut self) {
        self.overlong.is_torn = self.events.is_overlong();
        self.events.clear();
        self.last_failure = std::mem::take(&mut self.progress.failure);
    }

    /// Does the client have only whole events of the stream that broke off?
    #[must_use]
    pub const fn is_between_events(&self) -> bool {
        !self.overlong.is_torn
    }

    /// Finds out how far the client has the text, and how much may follow. `context_tokens`: most
    /// of prompt and output together, if known. `decode` appends the bytes of ids, if it knows
    /// them.
    pub fn settle(
        &mut self,
        context_tokens: Option<u64>,
        decode: impl FnOnce(&[u32], &mut Vec<u8>) -> bool,
    ) {
        let prompt = u64::try_from(self.ids.prompt_count).unwrap_or(u64::MAX);
        // The room is unknown before the ids of the prompt have come. A stream longer than the
        // context came from a worker with a larger context: its end is unknown.
        let held = self.token_count();
        let context_tokens = context_tokens.filter(|most| prompt > 0 && *most >= held);
        self.context_room = context_tokens.map(|most| most.saturating_sub(prompt));
        let StreamIds { all, sent_count, text_count, .. } = &mut self.ids;
        let mut bytes = Vec::new();
        if let Some(ahead) = all.get(*sent_count..*text_count).filter(|ahead| !ahead.is_empty())
            && decode(ahead, &mut bytes)
            && !String::from_utf8_lossy(&bytes).ends_with(char::REPLACEMENT_CHARACTER)
        {
            *sent_count = *text_count;
        }
    }

    /// Can another rank continue? `Ok` too if only the end is left.
    ///
    /// # Errors
    /// Why not.
    pub fn may_go_on(&self) -> Result<(), NoContinuation> {
        match self.obstacle {
            _ if self.progress.is_finished && !self.owes_usage() => Ok(()),
            // The client has an end, of an unknown stream.
            None if self.progress.is_done => Err(NoContinuation::Answer),
            Some(obstacle) => Err(obstacle),
            None if self.ids.text_count > self.ids.sent_count && !self.progress.is_finished => {
                Err(NoContinuation::Character)
            }
            None if self.tokens_max().is_none() && self.goes_on_by_ids() => {
                Err(NoContinuation::Request)
            }
            None => Ok(()),
        }
    }

    /// Could the stream leave its rank here, with something left to compute?
    #[must_use]
    pub fn may_move(&self) -> bool {
        let is_over = self.progress.is_finished || self.progress.is_done || self.has_failed();
        self.has_begun() && !is_over && self.may_go_on().is_ok() && self.tokens_left() > 0
    }

    /// Tokens of the prompt and of the output so far.
    #[must_use]
    pub fn token_count(&self) -> u64 {
        u64::try_from(self.ids.all.len()).unwrap_or(u64::MAX)
    }

    /// Tokens that the engines have computed, by the ids; `None` if the ids are unknown.
    #[must_use]
    pub fn usage(&self) -> Option<TokenUsage> {
        let StreamIds { all, prompt_count, .. } = &self.ids;
        let is_known = self.obstacle.is_none() && *prompt_count > 0;
        let tokens = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let output = tokens(all.len().saturating_sub(*prompt_count));
        is_known.then(|| TokenUsage { prompt: tokens(*prompt_count), cached: 0, output })
    }

    /// Has the client an event?
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.progress.shape.is_some()
    }

    /// Does another rank continue behind the ids of the client? Else that rank gets the request
    /// itself: no event has come, or a chat has no text so far. Ids do not show whether a parser of
    /// the engine holds the first tokens of a chat back.
    #[must_use]
    pub const fn goes_on_by_ids(&self) -> bool {
        let has_text = self.ids.text_count > self.ids.prompt_count;
        self.has_begun() && (has_text || !self.asked.is_chat)
    }

    /// Appends the end if the text is whole; false if something of it is left to compute.
    pub fn end(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(shape) = &self.progress.shape else { return false };
        if !self.progress.is_finished {
            if self.tokens_left() > 0 || self.may_go_on().is_err() {
                return false;
            }
            shape.write_finish(out);
        }
        if self.owes_usage() {
            let output = self.ids.all.len().saturating_sub(self.ids.prompt_count);
            shape.write_usage(self.ids.prompt_count, output, out);
        }
        if !self.progress.is_done {
            out.extend_from_slice(DONE);
        }
        true
    }

    /// Another rank is sent the request itself.
    pub fn start_over(&mut self) {
        debug_assert!(!self.goes_on_by_ids(), "the client has text");
        self.ids = StreamIds { has_parts: self.ids.has_parts, ..StreamIds::default() };
        self.progress.is_again = self.has_begun();
        self.progress.has_prompt = false;
    }

    /// Another rank continues: appends the body of its request, for `/v1/completions`.
    pub fn go_on(&mut self, out: &mut Vec<u8>) {
        debug_assert!(self.may_go_on().is_ok() && self.goes_on_by_ids(), "cannot go on");
        let StreamIds { all, prompt_count, sent_count, behind_count, text_count, .. } =
            &mut self.ids;
        all.truncate(*sent_count);
        *text_count = *sent_count;
        *behind_count = sent_count.saturating_sub(*prompt_count);
        self.progress.is_continued = true;
        let output = u64::try_from(*behind_count).unwrap_or(u64::MAX);
        let left = self.tokens_left();
        let least = self.asked.tokens_min.saturating_sub(output);
        out.extend_from_slice(ASKS_IDS);
        out.extend_from_slice(b"\"stream\":true,");
        out.extend_from_slice(&self.asked.members);
        out.extend_from_slice(b"\"max_tokens\":");
        push_decimal(left, out);
        if least > 0 {
            out.extend_from_slice(b",\"min_tokens\":");
            push_decimal(least, out);
        }
        out.extend_from_slice(b",\"prompt\":[");
        for (position, id) in self.ids.all.iter().enumerate() {
            if position > 0 {
                out.push(b',');
            }
            push_decimal(u64::from(*id), out);
        }
        out.extend_from_slice(b"]}");
    }

    /// Stops to store ids. The stream passes as it would without a transcript.
    pub fn give_up(&mut self, why: NoContinuation) {
        self.obstacle.get_or_insert(why);
        // Output that this rank got as prompt stays output for the client.
        let behind_count = self.ids.behind_count;
        self.ids = StreamIds { behind_count, ..StreamIds::default() };
    }

    fn owes_usage(&self) -> bool {
        self.asked.has_usage && !self.progress.has_usage && !self.progress.is_done
    }

    fn tokens_max(&self) -> Option<u64> {
        self.asked.tokens_max.or(self.context_room)
    }

    fn tokens_left(&self) -> u64 {
        let sent = self.ids.sent_count.saturating_sub(self.ids.prompt_count);
        let most = self.tokens_max().unwrap_or(u64::MAX);
        most.saturating_sub(u64::try_from(sent).unwrap_or(u64::MAX))
    }

    fn event(&mut self, event: &[u8], out: &mut Vec<u8>) {
        if self.has_failed() {
            return;
        }
        let Some((before, data)) = data_of(event) else {
            if !is_comment(event) {
                self.give_up(NoContinuation::Answer);
            }
            return out.extend_from_slice(event);
        };
        if data == b"[DONE]" {
            self.progress.is_done = true;
            return out.extend_from_slice(event);
        }
        let Ok(read) = TokenEvent::read(data) else {
            self.give_up(NoContinuation::Answer);
            return out.extend_from_slice(event);
        };
        if is_failure(slice(data, &read.error)) {
            self.progress.failure = FailureEvent { event: event.to_vec(), is_abort: false };
            return;
        }
        let after = event.get(before.len() + data.len()..).unwrap_or_default();
        let parts = EventParts { before, data, after };
        if self.obstacle.is_none() && read.is_abort(data) {
            let mut said = Vec::new();
            self.write(&read, parts, false, &mut said);
            self.progress.failure = FailureEvent { event: said, is_abort: true };
            return;
        }
        let is_first = !std::mem::replace(&mut self.progress.has_prompt, true);
        self.take(&read, data, is_first);
        self.write(&read, parts, is_first, out);
    }

    /// Writes an event as the client gets it.
    fn write(
        &self,
        read: &TokenEvent,
        EventParts { before, data, after }: EventParts<'_>,
        is_first: bool,
        out: &mut Vec<u8>,
    ) {
        let is_again = self.progress.is_again && read.error.is_empty();
        match &self.progress.shape {
            Some(shape) if self.progress.is_continued && read.error.is_empty() => {
                let behind = u64::try_from(self.ids.behind_count).unwrap_or(u64::MAX);
                shape.write(read, data, behind, out);
            }
            Some(_) if is_again && is_first && read.is_empty() => {}
            Some(shape) if is_again => shape.rename(read, data, 0, out),
            _ => {
                out.extend_from_slice(before);
                without_ids(read, data, out);
                out.extend_from_slice(after);
            }
        }
    }

    /// Takes the members of an event.
    fn take(&mut self, event: &TokenEvent, data: &[u8], is_first: bool) {
        if !event.error.is_empty() || event.is_strange {
            self.give_up(NoContinuation::Answer);
        }
        if self.progress.shape.is_none() {
            self.progress.shape = Some(EventShape::of(event, data, self.asked.is_chat));
        }
        if is_first {
            self.take_prompt(slice(data, &event.prompt_ids));
        }
        self.progress.has_usage |= event.choice.is_none() && !event.usage.is_empty();
        let Some(choice) = &event.choice else { return };
        self.progress.is_finished |= !choice.finish.is_empty();
        self.take_output(slice(data, &choice.ids), choice.has_text());
    }

    fn take_prompt(&mut self, list: &[u8]) {
        if list.is_empty() {
            return self.give_up(NoContinuation::Engine);
        }
        if !push_ids(list, CONTINUED_IDS_MAX, &mut self.ids.all) {
            return self.give_up(NoContinuation::TooLong);
        }
        self.ids.prompt_count = self.ids.all.len();
        self.ids.sent_count = self.ids.prompt_count;
        self.ids.text_count = self.ids.prompt_count;
    }

    fn take_output(&mut self, list: &[u8], has_text: bool) {
        if self.obstacle.is_some() {
            return;
        }
        let before = self.ids.all.len();
        if !list.is_empty() && !push_ids(list, CONTINUED_IDS_MAX, &mut self.ids.all) {
            return self.give_up(NoContinuation::TooLong);
        }
        if !has_text {
            return;
        }
        match self.ids.all.len().saturating_sub(before) {
            0 if !self.progress.is_finished => self.give_up(NoContinuation::Answer),
            1 if !self.ids.has_parts => {
                self.ids.sent_count = self.ids.all.len();
                self.ids.text_count = self.ids.sent_count;
            }
            _ => self.ids.text_count = self.ids.all.len(),
        }
    }
}

/// The data of an event, with the bytes around.
#[derive(Clone, Copy)]
struct EventParts<'a> {
    before: &'a [u8],
    data: &'a [u8],
    after: &'a [u8],
}

/// Output of a request without a limit, as far as bytes are held for it.
const TOKENS_USUAL: u64 = 4_096;
/// The end of a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";
/// How a body begins that asks for ids; the members of the request follow.
const ASKS_IDS: &[u8] = b"{\"return_token_ids\":true,";

/// Appends the beginning of a body that asks for ids, and returns the part of `body` that follows
/// unchanged. The body is the body of a [`Transcript`], which has members.
pub fn ask_for_ids<'a>(body: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let Some(rest) = body.trim_ascii_start().strip_prefix(b"{") else { return body };
    out.extend_from_slice(ASKS_IDS);
    rest
}
