//! Compares a plan with the template on random conversations. The seed is fixed, so that the same
//! template always gets the same plan.

use super::triggers::Triggers;
use super::write::Plan;
use crate::chat::message::{ChatRole, MessageSpan};
use crate::chat::renderer::Renderer;
use crate::chat::source::{Literals, literals};
use fastrand::Rng;
use std::collections::BTreeSet;

/// The plan with its triggers, or `None` when it differs from the template.
pub(super) fn verify(mut plan: Plan, source: &str, probe: &Renderer) -> Option<Plan> {
    let mut rng = Rng::with_seed(0x5eed);
    let Literals { searched, other } = literals(source);
    let mut triggers: BTreeSet<String> = searched;
    plan.triggers = Triggers::new(triggers.iter().cloned());
    for _ in 0..CONVERSATIONS {
        let case = VerifyCase::random(&plan, &mut rng, false)?;
        if !case.agrees(&plan, probe) {
            return None;
        }
    }
    for _ in 0..CONVERSATIONS_WITH_BLANKS {
        let case = VerifyCase::random(&plan, &mut rng, true)?;
        if !case.agrees(&plan, probe) {
            plan.covers_blank = false;
            break;
        }
    }
    let mut trials_left = LITERAL_TRIALS_MAX;
    for text in other.iter().filter(|text| !text.trim().is_empty()) {
        if !literal_is_harmless(&plan, text, probe, &mut trials_left) {
            triggers.insert(text.clone());
        }
    }
    plan.triggers = Triggers::new(triggers.into_iter());
    for _ in 0..CONVERSATIONS_AT_END {
        let mut case = VerifyCase::random(&plan, &mut rng, plan.covers_blank)?;
        case.mix_in(&other, &mut rng);
        if !case.agrees(&plan, probe) {
            return None;
        }
    }
    Some(plan)
}

/// True if the template prints a literal of its own, as part of a content, like any text. False
/// when all trials are used up.
fn literal_is_harmless(plan: &Plan, text: &str, probe: &Renderer, trials_left: &mut usize) -> bool {
    let forms =
        [text.to_owned(), format!("{text}b"), format!("a{text}"), format!("a{text}b{text}c")];
    for roles in plan.kind.sequences(plan.kind.trial_length()) {
        for (index, form) in
            (0..roles.len()).flat_map(|index| forms.iter().map(move |form| (index, form)))
        {
            let mut contents: Vec<String> = roles.iter().map(|_| "plain".to_owned()).collect();
            if let Some(content) = contents.get_mut(index) {
                content.clone_from(form);
            }
            let case = VerifyCase { roles: roles.clone(), contents, generates: true };
            if *trials_left == 0 || !case.agrees(plan, probe) {
                return false;
            }
            *trials_left -= 1;
        }
    }
    true
}

/// A conversation to compare.
struct VerifyCase {
    roles: Vec<ChatRole>,
    contents: Vec<String>,
    generates: bool,
}

impl VerifyCase {
    fn random(plan: &Plan, rng: &mut Rng, blanks: bool) -> Option<Self> {
        let generates = *rng.choice(plan.kind.generation_settings().iter())?;
        let mut roles = Vec::new();
        while !plan.kind.admits(roles.iter().copied(), generates) {
            let length = rng.usize(1..=8);
            let mut user = false;
            roles = (0..length).map(|index| random_role(rng, index, &mut user)).collect();
        }
        let contents = roles.iter().map(|_| random_content(rng, blanks)).collect();
        Some(Self { roles, contents, generates })
    }

    fn mix_in(&mut self, literals: &BTreeSet<String>, rng: &mut Rng) {
        for content in &mut self.contents {
            if rng.bool()
                && let Some(literal) = rng.choice(literals.iter())
            {
                content.push_str(literal);
                content.push_str(if rng.bool() { "" } else { "tail" });
            }
        }
    }

    /// True when plan and template give the same bytes, or the plan declines.
    fn agrees(&self, plan: &Plan, probe: &Renderer) -> bool {
        let mut body = Vec::new();
        let mut spans = Vec::with_capacity(self.roles.len());
        for (role, content) in self.roles.iter().zip(&self.contents) {
            let quoted = serde_json::Value::from(content.as_str()).to_string();
            let start = body.len() + 1;
            body.extend_from_slice(quoted.as_bytes());
            let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(body.len() - 1)) else {
                return false;
            };
            spans.push(MessageSpan {
                role: *role,
                content: start..end,
                escaped: quoted.contains('\\'),
            });
        }
        let mut fast = Vec::new();
        if !plan.write(&spans, &body, self.generates, &mut fast) {
            return true;
        }
        let messages: Vec<(ChatRole, &str)> =
            self.roles.iter().copied().zip(self.contents.iter().map(String::as_str)).collect();
        let full = probe.render_plain(&messages, self.generates);
        full.is_some_and(|full| full.as_bytes() == fast)
    }
}

/// A random role. Draws mostly follow the usual order, so that every kind soon gets conversations.
fn random_role(rng: &mut Rng, index: usize, user: &mut bool) -> ChatRole {
    if rng.u8(..8) == 0 {
        let role = rng.choice([ChatRole::System, ChatRole::User, ChatRole::Assistant]);
        return role.unwrap_or(ChatRole::User);
    }
    if index == 0 && rng.bool() {
        return ChatRole::System;
    }
    *user = !*user;
    if *user { ChatRole::User } else { ChatRole::Assistant }
}

fn random_content(rng: &mut Rng, blanks: bool) -> String {
    let mut content = String::new();
    if blanks && rng.u8(..3) == 0 {
        content.extend((0..rng.usize(..3)).filter_map(|_| rng.choice(SPACES)));
        return content;
    }
    content.extend((0..rng.usize(..3)).filter_map(|_| rng.choice(SPACES)));
    // Always some visible text, because blank contents are checked separately.
    content.push_str(rng.choice(ATOMS).unwrap_or("x"));
    for _ in 0..rng.usize(..6) {
        content.push_str(rng.choice(SPACES).unwrap_or(" "));
        content.push_str(rng.choice(ATOMS).unwrap_or("x"));
    }
    if rng.u8(..32) == 0 {
        content = content.repeat(400);
    }
    content.extend((0..rng.usize(..3)).filter_map(|_| rng.choice(SPACES)));
    content
}

const CONVERSATIONS: usize = 240;
const CONVERSATIONS_WITH_BLANKS: usize = 80;
const CONVERSATIONS_AT_END: usize = 80;
/// Most renderings for literals of the template: a second or less, also for templates of a thousand
/// lines.
const LITERAL_TRIALS_MAX: usize = 12_000;

const SPACES: [&str; 12] = [
    " ",
    "\n",
    "\n\n",
    "\t",
    "  ",
    " \n ",
    "\r\n",
    "\u{a0}",
    "\u{3000}",
    "\u{1f}",
    "\u{2028}",
    "   \n\n\n",
];
const ATOMS: [&str; 40] = [
    "Hello, world!",
    "What is 2 + 2?",
    "a",
    "I",
    "…",
    "naïve café",
    "日本語のテキスト",
    "한국어",
    "Привет",
    "مرحبا",
    "😀👩‍💻",
    "e\u{301}",
    "\u{200b}",
    "\u{feff}",
    "\u{0}",
    "\u{7f}",
    "'single' \"double\"",
    "back\\slash \\n",
    "{{ x }}",
    "{% if %}",
    "{# c #}",
    "<b>html</b>",
    "&amp;",
    "<",
    ">",
    "[INST]",
    "[/INST]",
    "```rust\nfn main() {}\n```",
    "# Title",
    "- item",
    "| a | b |",
    "1.",
    "system",
    "user",
    "assistant",
    "User:",
    "None",
    "true",
    "{\"name\": \"f\", \"arguments\": {}}",
    "%s %d $x",
];
