//! Messages in Harmony's form: a header with the author and the channel, the text, an end.

use crate::chat::encoded_prompt::EncodedPrompt;
use std::borrow::Cow;

/// Author and channel of a [`DialogTurn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker<'a> {
    User,
    Developer,
    /// The assistant's answer to the user.
    Final,
    /// The assistant's reasoning before an answer.
    Analysis,
    /// The assistant's text before its calls of tools.
    Commentary,
    /// The assistant's call of a function.
    Call(&'a str),
    /// The result of a function.
    Tool(&'a str),
}

/// A message of a conversation.
#[derive(Debug)]
pub(super) struct DialogTurn<'a> {
    pub(super) speaker: Speaker<'a>,
    pub(super) text: Cow<'a, str>,
}

impl<'a> DialogTurn<'a> {
    pub(super) fn new(speaker: Speaker<'a>, text: impl Into<Cow<'a, str>>) -> Self {
        Self { speaker, text: text.into() }
    }
}

/// The start of each conversation.
const SYSTEM_START: &str = "<|start|>system<|message|>";
/// The text of its system message, up to its date.
const SYSTEM_TEXT: &str = "\
    You are ChatGPT, a large language model trained by OpenAI.\n\
    Knowledge cutoff: 2024-06\n\
    Current date: ";
/// The channels that the model may use.
const CHANNELS: &str = "\n\n# Valid channels: analysis, commentary, final. \
    Channel must be included for every message.";
/// The channel of calls, in conversations with functions.
const CHANNEL_OF_CALLS: &str =
    "\nCalls to these tools must go to the commentary channel: 'functions'.";
/// End of most messages.
const END: &str = "<|end|>";
/// End of a call.
const END_OF_CALL: &str = "<|call|>";
/// Header of a developer's message.
const DEVELOPER: &str = "<|start|>developer<|message|>";
/// Start of the answer.
const ANSWER: &str = "<|start|>assistant";
/// Heading of a developer's text.
const INSTRUCTIONS: &str = "# Instructions\n\n";

/// Writes the system message.
pub(super) fn write_system(date: &str, effort: &str, has_tools: bool, out: &mut EncodedPrompt<'_>) {
    let tools = if has_tools { CHANNEL_OF_CALLS } else { "" };
    out.push_mark(SYSTEM_START);
    for part in [SYSTEM_TEXT, date, "\n\nReasoning: ", effort, CHANNELS, tools] {
        out.push(part);
    }
    out.push_mark(END);
}

/// Writes the header of a message, and the heading of a developer's text.
pub(super) fn write_header(speaker: Speaker<'_>, out: &mut EncodedPrompt<'_>) {
    match speaker {
        Speaker::User => out.push_mark("<|start|>user<|message|>"),
        Speaker::Developer => {
            out.push_mark(DEVELOPER);
            out.push(INSTRUCTIONS);
        }
        Speaker::Final => out.push_mark("<|start|>assistant<|channel|>final<|message|>"),
        Speaker::Analysis => out.push_mark("<|start|>assistant<|channel|>analysis<|message|>"),
        Speaker::Commentary => out.push_mark("<|start|>assistant<|channel|>commentary<|message|>"),
        Speaker::Call(name) => {
            out.push_mark("<|start|>");
            out.push("assistant to=functions.");
            out.push(name);
            out.push_mark("<|channel|>commentary json<|message|>");
        }
        Speaker::Tool(name) => {
            out.push_mark("<|start|>");
            out.push("functions.");
            out.push(name);
            out.push_mark("<|channel|>commentary to=assistant<|message|>");
        }
    }
}

pub(super) fn write_end(speaker: Speaker<'_>, out: &mut EncodedPrompt<'_>) {
    let end = if matches!(speaker, Speaker::Call(_)) { END_OF_CALL } else { END };
    out.push_mark(end);
}

/// Writes the developer's message in front of the conversation.
pub(super) fn write_developer(
    instructions: Option<&str>,
    tools: &str,
    out: &mut EncodedPrompt<'_>,
) {
    let heading = if instructions.is_some() { INSTRUCTIONS } else { "" };
    let joint = if instructions.is_some() && !tools.is_empty() { "\n\n" } else { "" };
    let text = instructions.unwrap_or_default();
    out.push_mark(DEVELOPER);
    for part in [heading, text, joint, tools] {
        out.push(part);
    }
    out.push_mark(END);
}

/// Writes the conversation without the reasoning that led to answers before the last, and the start
/// of the next answer.
pub(super) fn write_turns(turns: &[DialogTurn<'_>], out: &mut EncodedPrompt<'_>) {
    let last_answer = turns.iter().rposition(|turn| turn.speaker == Speaker::Final);
    for (index, turn) in turns.iter().enumerate() {
        if turn.speaker == Speaker::Analysis && Some(index) < last_answer {
            continue;
        }
        write_header(turn.speaker, out);
        out.push(&turn.text);
        write_end(turn.speaker, out);
    }
    write_answer(out);
}

/// Writes the start of the next answer.
pub(super) fn write_answer(out: &mut EncodedPrompt<'_>) {
    out.push_mark(ANSWER);
}
