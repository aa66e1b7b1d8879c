//! A plan, which writes prompts.

use super::kind::RoleSet;
use super::literal::{Dates, TemplateLiteral};
use super::slots::{slot_after, slot_before, slot_trim};
use super::triggers::Triggers;
use super::trim::Trim;
use crate::chat::message::{ChatRole, MessageSpan};
use crate::chat::printing::python::is_space;
use crate::chat::shape::BILLING_LINE;
use crate::leading_bytes;
use forebay_json::unescape_into;

/// Literals and trims of a template for plain messages of a kind of conversation.
#[derive(Clone, Debug)]
pub(in crate::chat) struct Plan {
    pub(super) kind: RoleSet,
    /// Literals before messages, by [`slot_before`].
    pub(super) before: Vec<Option<TemplateLiteral>>,
    /// Literals after the last message, by [`slot_after`].
    pub(super) after: Vec<Option<TemplateLiteral>>,
    /// Trims of contents, by [`slot_trim`].
    pub(super) trims: Vec<Trim>,
    pub(super) triggers: Triggers,
    /// True if contents without a visible character are covered.
    pub(super) covers_blank: bool,
    pub(super) dates: Dates,
}

impl Plan {
    /// Appends a prompt, see [`crate::chat::ChatTemplate::render_plain`].
    pub(in crate::chat) fn write(
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

    /// The covered conversations, for the log.
    pub(in crate::chat) fn summary(&self) -> String {
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
        let raw = message.raw(body)?;
        let start = out.len();
        if message.escaped {
            unescape_into(raw, out);
        } else {
            out.extend_from_slice(raw);
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
