//! The fast way: what a template does to plain messages, as a table of literals.
//!
//! For most templates the prompt of a plain conversation is `literal, content, literal, content, …
//! literal`, where a literal depends only on the roles beside it and on where in the conversation
//! it stands, and contents are printed as they are or without whitespace at their ends. `learn`
//! renders short conversations of unique contents through the template and reads the table off;
//! `verify` then renders some hundred random ones both ways. A plan that differs once is thrown
//! away and a narrower kind of conversation is tried ([`RoleSet`]). Contents that hold a string
//! which the template searches for (`</think>`) are never covered.
//!
//! Runs on any thread. Writing a prompt allocates nothing but the growth of the output.

mod kind;
mod learn;
mod literal;
mod triggers;
mod trim;
mod verify;

use super::message::{ChatRole, MessageSpan};
use super::python::is_space;
use super::shape::BILLING_LINE;
use super::template::Renderer;
use super::unescape::unescape_into;
use crate::leading_bytes;
use kind::RoleSet;
use literal::{Dates, TemplateLiteral};
use triggers::Triggers;
use trim::Trim;

/// What a template does to plain messages of one kind of conversation.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    kind: RoleSet,
    /// By [`slot_before`].
    before: Vec<Option<TemplateLiteral>>,
    /// By [`slot_after`].
    after: Vec<Option<TemplateLiteral>>,
    /// By [`slot_trim`].
    trims: Vec<Trim>,
    triggers: Triggers,
    /// False when contents without any visible character are not covered.
    covers_blank: bool,
    dates: Dates,
}

impl Plan {
    /// Learns the plan of a template. `probe` renders with marks in place of dates.
    pub(super) fn learn(source: &str, probe: &Renderer) -> Option<Self> {
        kind::KINDS.into_iter().find_map(|kind| {
            let plan = learn::learn(kind, probe)?;
            let mut plan = verify::verify(plan, source, probe)?;
            plan.dates = Dates::Today;
            Some(plan)
        })
    }

    /// See [`super::ChatTemplate::render_plain`].
    pub(super) fn write(
        &self,
        messages: &[MessageSpan],
        body: &[u8],
        generates: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let start = out.len();
        let roles = messages.iter().map(|message| message.role);
        let written = self.kind.admits(roles, generates)
            && self.write_all(messages, body, generates, out).is_some();
        if !written {
            out.truncate(start);
        }
        written
    }

    /// Which conversations are covered, for the log.
    pub(super) fn summary(&self) -> String {
        let blank = if self.covers_blank { "" } else { "; no blank contents" };
        format!("{}; {} trigger strings{blank}", self.kind, self.triggers.count())
    }

    fn write_all(
        &self,
        messages: &[MessageSpan],
        body: &[u8],
        generates: bool,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let mut previous = None;
        for (index, message) in messages.iter().enumerate() {
            let last = index + 1 == messages.len();
            let role = message.role;
            let literal = self.before.get(slot_before(previous, role, index, last))?.as_ref()?;
            literal.write(self.dates, out);
            self.write_content(message, body, slot_trim(role, index, last), out)?;
            if last {
                let literal =
                    self.after.get(slot_after(previous, role, index, generates))?.as_ref()?;
                literal.write(self.dates, out);
            }
            previous = Some(role);
        }
        Some(())
    }

    fn write_content(
        &self,
        message: &MessageSpan,
        body: &[u8],
        trim: usize,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let sent = message.sent(body)?;
        let start = out.len();
        if message.escaped {
            unescape_into(sent, out);
        } else {
            out.extend_from_slice(sent);
        }
        let content = out.get(start..)?;
        let rewritten =
            message.role == ChatRole::System && content.starts_with(BILLING_LINE.as_bytes());
        if rewritten || self.triggers.found_in(content) {
            return None;
        }
        if !self.covers_blank && leading_bytes(content, is_space) == content.len() {
            return None;
        }
        self.trims.get(trim)?.apply(out, start);
        Some(())
    }
}

/// Place of a message as far as literals depend on it: first, second, later.
const PLACES: usize = 3;
const ROLES: usize = 3;

fn place(index: usize) -> usize {
    index.min(PLACES - 1)
}

fn role_index(role: ChatRole) -> usize {
    match role {
        ChatRole::System => 0,
        ChatRole::User => 1,
        ChatRole::Assistant => 2,
    }
}

/// Slot of the literal before a message.
fn slot_before(previous: Option<ChatRole>, role: ChatRole, index: usize, last: bool) -> usize {
    let previous = previous.map_or(ROLES, role_index);
    ((previous * ROLES + role_index(role)) * PLACES + place(index)) * 2 + usize::from(last)
}

/// Slot of the literal after the last message.
fn slot_after(previous: Option<ChatRole>, role: ChatRole, index: usize, generates: bool) -> usize {
    slot_before(previous, role, index, generates)
}

/// Slot of how a content is trimmed.
fn slot_trim(role: ChatRole, index: usize, last: bool) -> usize {
    (role_index(role) * PLACES + place(index)) * 2 + usize::from(last)
}

const LITERAL_SLOTS: usize = (ROLES + 1) * ROLES * PLACES * 2;
const TRIM_SLOTS: usize = ROLES * PLACES * 2;

#[cfg(test)]
mod tests;
