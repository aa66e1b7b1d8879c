//! The encode thread of an engine: chat bodies and texts in, token ids out, so that tokenizing a
//! long prompt never delays tokens of other requests. Chats repeat their history every turn, so the
//! thread caches the ids of the text between two special tokens (`KEPT_BYTES_MAX`, twice), and
//! tokenizes only new text.

use super::chat_text::ChatText;
use super::tokenizer::{TextSegment, Tokenizer, TokenizerError};
use ahash::AHashMap;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Input of the encode thread.
#[derive(Debug)]
pub(super) enum Input {
    /// Body of a chat request.
    Chat(Bytes),
    /// Plain text; `special` adds BOS where the tokenizer does.
    Text {
        /// Text as the client sent it.
        text: String,
        /// Add the tokenizer's special tokens around prompts.
        special: bool,
    },
}

/// Why an input has no token ids.
#[derive(Debug, thiserror::Error)]
pub(super) enum EncodeError {
    /// The messages do not fit the template.
    #[error("{0}")]
    Chat(String),
    /// The tokenizer refused the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopped,
}

type EncodeReply = oneshot::Sender<Result<Vec<u32>, EncodeError>>;

/// Sends work to the encode thread. Cheap to clone; the thread ends with the last clone.
#[derive(Clone, Debug)]
pub(super) struct EncodeHandle {
    jobs: mpsc::Sender<(Input, EncodeReply)>,
    tokenizer: Arc<Tokenizer>,
}

impl EncodeHandle {
    /// Starts the encode thread. Fails if the system has no thread left.
    pub(super) fn start(tokenizer: Arc<Tokenizer>, chat: Arc<ChatText>) -> std::io::Result<Self> {
        let (jobs, mut inbox) = mpsc::channel::<(Input, EncodeReply)>(JOBS_MAX);
        let thread = std::thread::Builder::new().name("engine-encode".into());
        let own = tokenizer.clone();
        thread.spawn(move || {
            let mut encoder = TextEncoder { tokenizer: own, chat, kept: KeptSegments::default() };
            while let Some((input, reply)) = inbox.blocking_recv() {
                // Skip the input of a client that left.
                if !reply.is_closed() {
                    let _gone = reply.send(encoder.encode(&input));
                }
            }
        })?;
        Ok(Self { jobs, tokenizer })
    }

    /// The tokenizer, for words and their ids, which need no thread.
    pub(super) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Token ids of an input. Waits while `JOBS_MAX` other inputs are queued.
    pub(super) async fn encode(&self, input: Input) -> Result<Vec<u32>, EncodeError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send((input, reply)).await.map_err(|_| EncodeError::Stopped)?;
        answer.await.map_err(|_| EncodeError::Stopped)?
    }
}

#[derive(Debug)]
struct TextEncoder {
    tokenizer: Arc<Tokenizer>,
    chat: Arc<ChatText>,
    kept: KeptSegments,
}

impl TextEncoder {
    fn encode(&mut self, input: &Input) -> Result<Vec<u32>, EncodeError> {
        match input {
            Input::Text { text, special: true } => Ok(self.tokenizer.encode(text, true)?),
            Input::Text { text, special: false } => self.encode_segments(text),
            Input::Chat(body) => {
                let text = self.chat.render(body).map_err(EncodeError::Chat)?;
                self.encode_segments(&text)
            }
        }
    }

    fn encode_segments(&mut self, text: &str) -> Result<Vec<u32>, EncodeError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut failed = None;
        let tokenizer = &self.tokenizer;
        let kept = &mut self.kept;
        tokenizer.segments(text, |segment| match segment {
            TextSegment::Token(id) => ids.push(id),
            TextSegment::Text(part) => match kept.ids_of(part, || tokenizer.encode(part, false)) {
                Ok(part_ids) => ids.extend_from_slice(part_ids),
                Err(error) => failed = Some(error),
            },
        });
        failed.map_or(Ok(ids), |error| Err(error.into()))
    }
}

/// Recent segments in two generations: a full young generation becomes the old generation.
#[derive(Debug, Default)]
struct KeptSegments {
    young: AHashMap<Box<str>, Box<[u32]>>,
    old: AHashMap<Box<str>, Box<[u32]>>,
    young_bytes: usize,
}

impl KeptSegments {
    fn ids_of(
        &mut self,
        text: &str,
        encode: impl FnOnce() -> Result<Vec<u32>, TokenizerError>,
    ) -> Result<&[u32], TokenizerError> {
        if !self.young.contains_key(text) {
            let ids = match self.old.remove(text) {
                Some(ids) => ids,
                None => encode()?.into_boxed_slice(),
            };
            if self.young_bytes > KEPT_BYTES_MAX {
                self.old = std::mem::take(&mut self.young);
                self.young_bytes = 0;
            }
            self.young_bytes += text.len() + ids.len() * 4;
            self.young.insert(text.into(), ids);
        }
        Ok(self.young.get(text).map_or(&[], |ids| ids))
    }
}

const JOBS_MAX: usize = 1_024;
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_segments_are_encoded_once_and_memory_is_bounded() {
        let mut kept = KeptSegments::default();
        let ids = kept.ids_of("abc", || Ok(vec![1, 2])).expect("encodes").to_vec();
        assert_eq!(ids, [1, 2]);
        assert_eq!(kept.ids_of("abc", || panic!("kept")).expect("kept"), [1, 2]);
        for round in 0..40 {
            let text = format!("{round}{}", "x".repeat(1 << 20));
            kept.ids_of(&text, || Ok(vec![round])).expect("encodes");
            let bytes: usize = [&kept.young, &kept.old]
                .iter()
                .flat_map(|generation| generation.iter())
                .map(|(text, ids)| text.len() + ids.len() * 4)
                .sum();
            assert!(bytes < 2 * KEPT_BYTES_MAX + (4 << 20));
        }
        assert_eq!(kept.ids_of("abc", || Ok(vec![3])).expect("encodes"), [3]);
    }

    #[test]
    fn chats_equal_the_whole_text_encoded() {
        let tokenizer = Arc::new(Tokenizer::built_in().expect("loads"));
        let chat = Arc::new(ChatText::built_in().expect("loads"));
        let mut encoder =
            TextEncoder { tokenizer: tokenizer.clone(), chat, kept: KeptSegments::default() };
        let body = Bytes::from_static(
            br#"{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi \u00e9"}]}"#,
        );
        let text = encoder.chat.render(&body).expect("renders");
        let ids = encoder.encode(&Input::Chat(body)).expect("encodes");
        assert_eq!(ids, tokenizer.encode(&text, false).expect("encodes"));
        assert_eq!(tokenizer.decode(&ids), text);
    }
}
