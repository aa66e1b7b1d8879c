//! The conversations of the demo: generated chats that share a few system prompts and grow turn by
//! turn. Pure data from a seed, so every policy gets the same load.

use forebay_sim_engine::Tokenizer;
use serde_json::{Value, json};
use std::sync::Arc;

/// Sizes of the load, by default in tokens of the engine's own tokenizer.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Conversations at the same time.
    pub slots: u32,
    /// Different system prompts, shared by all conversations.
    pub system_prompts: u32,
    /// Length of a system prompt.
    pub system_tokens: usize,
    /// Length of a question.
    pub question_tokens: usize,
    /// Length of an answer.
    pub answer_tokens: usize,
    /// Questions in a conversation.
    pub turns: u32,
    /// Mean pause of the user before the next question, in milliseconds.
    pub think_ms: f64,
}

/// Form of the requested answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyForm {
    /// A stream of events.
    Streamed,
    /// A whole response when it is complete.
    Whole,
}

/// Generates conversations, each from its number.
#[derive(Debug)]
pub struct Conversations {
    tokenizer: Arc<Tokenizer>,
    sizes: Sizes,
}

/// A conversation so far.
#[derive(Debug)]
pub struct DemoConversation {
    number: u32,
    form: ReplyForm,
    messages: Vec<Value>,
    turns_left: u32,
}

impl Conversations {
    /// A source of conversations of these sizes.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, sizes: Sizes) -> Self {
        Self { tokenizer, sizes }
    }

    /// The sizes passed to `new`.
    #[must_use]
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Conversation `number`, before its first question.
    #[must_use]
    pub fn begin(&self, number: u32, form: ReplyForm) -> DemoConversation {
        let prompt = number % self.sizes.system_prompts.max(1);
        let system = self.text(&[0, prompt], self.sizes.system_tokens);
        let messages = vec![json!({ "role": "system", "content": system })];
        DemoConversation { number, form, messages, turns_left: self.sizes.turns }
    }

    /// Adds the next question and returns the request body; `None` when the conversation is over.
    pub fn ask(&self, conversation: &mut DemoConversation) -> Option<String> {
        conversation.turns_left = conversation.turns_left.checked_sub(1)?;
        let seed = [1, conversation.number, conversation.turns_left];
        let question = self.text(&seed, self.sizes.question_tokens);
        conversation.messages.push(json!({ "role": "user", "content": question }));
        let mut body = json!({
            "model": forebay_sim_engine::DEFAULT_MODEL, "messages": conversation.messages,
            "max_tokens": self.sizes.answer_tokens,
        });
        if let (ReplyForm::Streamed, Some(body)) = (conversation.form, body.as_object_mut()) {
            body.insert("stream".into(), true.into());
            body.insert("stream_options".into(), json!({ "include_usage": true }));
        }
        Some(body.to_string())
    }

    /// Words of exactly 1 token each, so that lengths are exact.
    fn text(&self, seed: &[u32], token_count: usize) -> String {
        let ids = self.tokenizer.answer(seed, 0, token_count);
        ids.iter().map(|id| self.tokenizer.word(*id)).collect()
    }
}

impl DemoConversation {
    /// Adds the answer to the last question.
    pub fn answered(&mut self, text: &str) {
        self.messages.push(json!({ "role": "assistant", "content": text }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversations() -> Conversations {
        let sizes = Sizes {
            slots: 4,
            system_prompts: 2,
            system_tokens: 30,
            question_tokens: 10,
            answer_tokens: 5,
            turns: 2,
            think_ms: 1.0,
        };
        Conversations::new(Arc::new(Tokenizer::built_in().expect("loads")), sizes)
    }

    #[test]
    fn turns_extend_the_same_messages_and_end() {
        let source = conversations();
        let mut chat = source.begin(3, ReplyForm::Streamed);
        let first: Value =
            serde_json::from_str(&source.ask(&mut chat).expect("turn")).expect("json");
        chat.answered("yes");
        let second: Value =
            serde_json::from_str(&source.ask(&mut chat).expect("turn")).expect("json");
        let first = first["messages"].as_array();
        let second = second["messages"].as_array();
        let first = first.expect("list");
        let second = second.expect("list");
        assert_eq!((first.len(), second.len()), (2, 4));
        assert_eq!(first[..], second[..2]);
        assert_eq!(second[2]["content"], "yes");
        assert_ne!(second[1], second[3]);
        assert!(source.ask(&mut chat).is_none());
    }

    #[test]
    fn system_prompts_are_shared_and_everything_repeats() {
        let source = conversations();
        let begin = |number| source.begin(number, ReplyForm::Streamed);
        assert_eq!(begin(1).messages, begin(3).messages);
        assert_ne!(begin(1).messages, begin(2).messages);
        let mut one = begin(5);
        let mut again = begin(5);
        assert_eq!(source.ask(&mut one), source.ask(&mut again));
    }

    #[test]
    fn whole_answers_are_asked_for_without_a_stream() {
        let source = conversations();
        let ask = |form| source.ask(&mut source.begin(1, form)).expect("turn");
        assert!(ask(ReplyForm::Streamed).contains(r#""stream":true"#));
        assert!(!ask(ReplyForm::Whole).contains("stream"));
    }
}
