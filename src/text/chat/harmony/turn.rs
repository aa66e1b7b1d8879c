//! Messages in Harmony's form: a header with the author and the channel, the text, an end.

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

/// The start of each conversation, up to its date.
const SYSTEM_START: &str = "<|start|>system<|message|>\
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
/// Start of the answer.
const ANSWER: &str = "<|start|>assistant";
/// Heading of a developer's text.
const INSTRUCTIONS: &str = "# Instructions\n\n";

/// Writes the system message.
pub(super) fn write_system(date: &str, effort: &str, has_tools: bool, out: &mut Vec<u8>) {
    let tools = if has_tools { CHANNEL_OF_CALLS } else { "" };
    for part in [SYSTEM_START, date, "\n\nReasoning: ", effort, CHANNELS, tools, END] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Writes the header of a message, and the heading of a developer's text.
pub(super) fn write_header(speaker: Speaker<'_>, out: &mut Vec<u8>) {
    let mut write = |parts: &[&str]| {
        parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
    };
    match speaker {
        Speaker::User => write(&["<|start|>user<|message|>"]),
        Speaker::Developer => write(&["<|start|>developer<|message|>", INSTRUCTIONS]),
        Speaker::Final => write(&["<|start|>assistant<|channel|>final<|message|>"]),
        Speaker::Analysis => write(&["<|start|>assistant<|channel|>analysis<|message|>"]),
        Speaker::Commentary => write(&["<|start|>assistant<|channel|>commentary<|message|>"]),
        Speaker::Call(name) => write(&[
            "<|start|>assistant to=functions.",
            name,
            "<|channel|>commentary json<|message|>",
        ]),
        Speaker::Tool(name) => {
            write(&["<|start|>functions.", name, "<|channel|>commentary to=assistant<|message|>"]);
        }
    }
}

pub(super) fn write_end(speaker: Speaker<'_>, out: &mut Vec<u8>) {
    let end = if matches!(speaker, Speaker::Call(_)) { END_OF_CALL } else { END };
    out.extend_from_slice(end.as_bytes());
}

/// Writes the developer's message in front of the conversation.
pub(super) fn write_developer(instructions: Option<&str>, tools: &str, out: &mut Vec<u8>) {
    let heading = if instructions.is_some() { INSTRUCTIONS } else { "" };
    let joint = if instructions.is_some() && !tools.is_empty() { "\n\n" } else { "" };
    let text = instructions.unwrap_or_default();
    for part in ["<|start|>developer<|message|>", heading, text, joint, tools, END] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Writes the conversation without the reasoning that led to answers before the last, and the start
/// of the next answer.
pub(super) fn write_turns(turns: &[DialogTurn<'_>], out: &mut Vec<u8>) {
    let last_answer = turns.iter().rposition(|turn| turn.speaker == Speaker::Final);
    for (index, turn) in turns.iter().enumerate() {
        if turn.speaker == Speaker::Analysis && Some(index) < last_answer {
            continue;
        }
        write_header(turn.speaker, out);
        out.extend_from_slice(turn.text.as_bytes());
        write_end(turn.speaker, out);
    }
    write_answer(out);
}

/// Writes the start of the next answer.
pub(super) fn write_answer(out: &mut Vec<u8>) {
    out.extend_from_slice(ANSWER.as_bytes());
}
