//! A strict pass over a body before a split: finds the members that a KV transfer changes, and the
//! members that determine whether the request can be split.
//!
//! Of duplicate keys the last key counts, as in `parse::scan` and in the engines.

use super::members::{Member, MemberName, name_of};
use super::shape::{PromptItems, embeddings, items, number, samples};
use super::split_request::SplitRequest;
use forebay_base::limits::SPLIT_MEMBERS_MAX;
use forebay_json::{Cursor, JsonError, Text, present};
use forebay_prompt::parse::{Endpoint, ScanError};

/// Reads the body of a request to `endpoint`, which `parse::scan` has accepted.
pub fn inspect(body: &[u8], endpoint: Endpoint) -> Result<SplitRequest, ScanError> {
    let mut cursor = Cursor::new(body)?;
    cursor.blanks();
    match cursor.peek() {
        None => return Err(JsonError::Empty.into()),
        Some(b'{') => cursor.open(),
        Some(_) => return Err(ScanError::NotObject),
    }
    let mut pass = Pass { wanted: SplitRequest::new(endpoint), prompts: Prompts::default() };
    let mut first = true;
    let mut behind = cursor.at();
    while let Some(key) = cursor.next_key(&mut first)? {
        pass.member(&key, behind, &mut cursor)?;
        behind = cursor.at();
    }
    pass.wanted.closing_brace = narrow(cursor.at().saturating_sub(1));
    cursor.end()?;
    pass.wanted.prompts = pass.prompts.count();
    Ok(pass.wanted)
}

/// Prompts by member; `/generate` uses the first of the three that is present.
#[derive(Debug, Default)]
struct Prompts {
    text: Option<PromptItems>,
    ids: Option<PromptItems>,
    embeddings: Option<PromptItems>,
}

impl Prompts {
    /// Number of prompts in a list; `None` for a single prompt outside of a list.
    fn count(&self) -> Option<u32> {
        match self.text.or(self.ids).or(self.embeddings) {
            Some(PromptItems::List(count)) => Some(count),
            _ => None,
        }
    }
}

struct Pass {
    wanted: SplitRequest,
    prompts: Prompts,
}

impl Pass {
    /// Reads a member, with the cursor at its value. `behind` is the end of the member before, or
    /// of the opening brace.
    fn member(
        &mut self,
        key: &Text,
        behind: usize,
        cursor: &mut Cursor<'_>,
    ) -> Result<(), JsonError> {
        let start = key.span.start.saturating_sub(1);
        if let Some(last) = self.wanted.members.last_mut()
            && last.position + 1 == self.wanted.member_count
        {
            last.next = Some(narrow(start));
        }
        let value_at = cursor.at();
        let mut decoded = String::new();
        let name = name_of(key, cursor, &mut decoded);
        let named = MemberName::of(name);
        match named {
            Some(named) => self.named(named, cursor)?,
            None => self.other(name, cursor)?,
        }
        if let Some(named) = named {
            let value = narrow(value_at)..narrow(cursor.at());
            let after_previous = narrow(behind);
            let span = narrow(start)..value.end;
            let position = self.wanted.member_count;
            self.push(Member { named, position, after_previous, span, value, next: None });
        }
        self.wanted.member_count = self.wanted.member_count.saturating_add(1);
        Ok(())
    }

    fn push(&mut self, member: Member) {
        if self.wanted.members.len() < SPLIT_MEMBERS_MAX {
            self.wanted.members.push(member);
        } else {
            self.wanted.is_overfull = true;
        }
    }

    fn named(&mut self, named: MemberName, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let first = cursor.peek();
        cursor.skip_value(1)?;
        if named == MemberName::KvTransferParams {
            self.wanted.has_transfer = first != Some(b'n');
        }
        Ok(())
    }

    fn other(&mut self, name: &str, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let flags = &mut self.wanted.flags;
        match (name, self.wanted.endpoint) {
            ("prompt", Endpoint::Completions) | ("text", Endpoint::Generate) => {
                self.prompts.text = items(cursor)?;
            }
            ("input_ids", Endpoint::Generate) => self.prompts.ids = items(cursor)?,
            ("input_embeds", Endpoint::Generate) => {
                self.prompts.embeddings = embeddings(cursor)?;
            }
            ("n", Endpoint::ChatCompletions | Endpoint::Completions) => {
                self.wanted.samples = number(cursor, 1)?.or_one();
            }
            ("sampling_params", Endpoint::Generate) => {
                self.wanted.samples = samples(cursor)?.or_one();
            }
            ("use_beam_search", _) => flags.beam_search |= present(cursor)?,
            ("echo", Endpoint::ChatCompletions | Endpoint::Completions)
            | ("prompt_logprobs", _) => flags.scores_prompt |= present(cursor)?,
            ("prompt_embeds", Endpoint::Completions) => flags.embeddings |= present(cursor)?,
            ("previous_response_id" | "conversation" | "background", Endpoint::Responses) => {
                flags.continues |= present(cursor)?;
            }
            ("tools", Endpoint::Responses) => flags.own_tools |= has_own_tools(cursor)?,
            _ => cursor.skip_value(1)?,
        }
        Ok(())
    }
}

/// True if `/v1/responses` has tools that are no functions of the client.
fn has_own_tools(cursor: &mut Cursor<'_>) -> Result<bool, JsonError> {
    if cursor.peek() != Some(b'[') {
        return cursor.skip_value(1).map(|()| false);
    }
    cursor.open();
    let mut first = true;
    let mut found = false;
    while cursor.next_element(&mut first)? {
        if cursor.peek() == Some(b'{') {
            found |= !is_function(cursor)?;
        } else {
            cursor.skip_value(2)?;
        }
    }
    Ok(found)
}

fn is_function(cursor: &mut Cursor<'_>) -> Result<bool, JsonError> {
    cursor.open();
    let mut first = true;
    let mut found = false;
    while let Some(key) = cursor.next_key(&mut first)? {
        let start = cursor.at();
        cursor.skip_value(3)?;
        if cursor.slice(&key.span) == "type" {
            found = cursor.slice(&(start..cursor.at())) == "\"function\"";
        }
    }
    Ok(found)
}

/// A position as `u32`, because bodies are below 4 GiB ([`Cursor::new`]).
fn narrow(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
