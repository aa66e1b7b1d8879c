//! The demo's HTTP client: sends a chat, reads the response to its end, times the first token.

use super::conversations::ReplyForm;
use super::meter::DemoOutcome;
use forebay_base::Clock;
use serde::Deserialize;
use std::time::Duration;

/// Sends chats over persistent connections.
#[derive(Clone, Debug)]
pub struct ChatClient {
    http: reqwest::Client,
    clock: Clock,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamEvent {
    choices: Vec<EventChoice>,
    usage: Option<Usage>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EventChoice {
    #[serde(alias = "message")]
    delta: Delta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Usage {
    prompt_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Option<u64>,
}

/// The received part of a stream.
#[derive(Debug, Default)]
struct StreamReading {
    unread: Vec<u8>,
    text: String,
    usage: Option<Usage>,
    started: bool,
    done: bool,
}

impl ChatClient {
    /// A client that ignores proxies of the environment.
    pub fn new(clock: Clock) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .tcp_nodelay(true)
            .timeout(ANSWER_TIME_MAX)
            .pool_idle_timeout(Duration::from_secs(2))
            .build()?;
        Ok(Self { http, clock })
    }

    /// Sends a chat to `url`; returns the outcome and the text of the answer. A whole answer counts
    /// as its first token.
    pub async fn chat(&self, url: &str, body: String, form: ReplyForm) -> (DemoOutcome, String) {
        let mut has_begun = false;
        let answer = self.try_chat(url, body, form, &mut has_begun).await;
        let without = if has_begun { DemoOutcome::Cut } else { DemoOutcome::Failed };
        answer.unwrap_or((without, String::new()))
    }

    async fn try_chat(
        &self,
        url: &str,
        body: String,
        form: ReplyForm,
        has_begun: &mut bool,
    ) -> Option<(DemoOutcome, String)> {
        let sent = self.clock.now();
        let request = self.http.post(format!("{url}/v1/chat/completions"));
        let request = request.header("content-type", "application/json").body(body);
        let mut response = request.send().await.ok()?.error_for_status().ok()?;
        *has_begun = true;
        let since_sent_us = || self.clock.now().since(sent) / 1_000;
        if form == ReplyForm::Whole {
            let answer: StreamEvent = serde_json::from_slice(&response.bytes().await.ok()?).ok()?;
            let text = answer.choices.into_iter().filter_map(|choice| choice.delta.content);
            return Some((answered(since_sent_us(), &answer.usage?), text.collect()));
        }
        let mut reading = StreamReading::default();
        let mut ttft_us = None;
        while let Some(bytes) = response.chunk().await.ok()? {
            reading.take(&bytes)?;
            if reading.started && ttft_us.is_none() {
                ttft_us = Some(since_sent_us());
            }
        }
        let usage = reading.usage.filter(|_| reading.done)?;
        Some((answered(ttft_us?, &usage), reading.text))
    }
}

fn answered(ttft_us: u64, usage: &Usage) -> DemoOutcome {
    let cached = usage.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
    DemoOutcome::Answered {
        ttft_us,
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: cached.unwrap_or(0),
    }
}

impl StreamReading {
    /// Adds received bytes; `None` if an event is no chat chunk.
    fn take(&mut self, bytes: &[u8]) -> Option<()> {
        self.unread.extend_from_slice(bytes);
        let mut consumed = 0;
        while let Some(line) = self.unread.get(consumed..).and_then(|rest| {
            let end = memchr::memchr(b'\n', rest)?;
            rest.get(..end)
        }) {
            consumed += line.len() + 1;
            let Some(data) = line.strip_prefix(b"data: ") else { continue };
            if data == b"[DONE]" {
                self.done = true;
                continue;
            }
            let event: StreamEvent = serde_json::from_slice(data).ok()?;
            for choice in event.choices {
                let content = choice.delta.content.unwrap_or_default();
                self.started |= !content.is_empty();
                self.text.push_str(&content);
            }
            self.usage = event.usage.or(self.usage.take());
        }
        self.unread.drain(..consumed);
        Some(())
    }
}

/// A request without a full answer by then counts as failed or cut.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        ": keep-alive\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\\n\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
        "data: [DONE]\n\n",
    );

    #[test]
    fn a_stream_reads_the_same_however_it_is_cut() {
        for cut in 0..STREAM.len() {
            let (first, second) = STREAM.as_bytes().split_at(cut);
            let mut reading = StreamReading::default();
            reading.take(first).expect("understood");
            reading.take(second).expect("understood");
            assert_eq!((reading.text.as_str(), reading.done), ("a\nb", true));
            let usage = reading.usage.expect("usage");
            assert_eq!(usage.prompt_tokens, 9);
            assert_eq!(usage.prompt_tokens_details.and_then(|d| d.cached_tokens), Some(4));
        }
    }

    #[test]
    fn a_whole_answer_has_the_same_members() {
        let whole = r#"{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":9}}"#;
        let answer: StreamEvent = serde_json::from_str(whole).expect("understood");
        assert_eq!(answer.choices[0].delta.content.as_deref(), Some("a"));
        let outcome = answered(5, &answer.usage.expect("usage"));
        let expected = DemoOutcome::Answered { ttft_us: 5, prompt_tokens: 9, cached_tokens: 0 };
        assert_eq!(outcome, expected);
    }

    #[test]
    fn the_role_is_not_the_first_token() {
        let mut reading = StreamReading::default();
        let (role, rest) = STREAM.as_bytes().split_at(70);
        reading.take(role).expect("understood");
        assert!(!reading.started);
        reading.take(rest).expect("understood");
        assert!(reading.started);
        assert!(StreamReading::default().take(b"data: <html>\n").is_none());
    }
}
