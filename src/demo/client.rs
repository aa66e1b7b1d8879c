//! The demo's HTTP client: sends one streamed chat, reads it to its end, times the first token.

use super::meter::DemoOutcome;
use forebay_base::Clock;
use serde::Deserialize;
use std::time::Duration;

/// Sends chats over kept connections.
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

/// A stream as far as it was read.
#[derive(Debug, Default)]
struct StreamReading {
    unread: Vec<u8>,
    text: String,
    usage: Option<Usage>,
    started: bool,
    done: bool,
}

impl ChatClient {
    /// A client that goes straight to its target, whatever proxies the environment names.
    pub fn new(clock: Clock) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .tcp_nodelay(true)
            .pool_idle_timeout(Duration::from_secs(2))
            .build()?;
        Ok(Self { http, clock })
    }

    /// Sends a chat to `url`; returns what happened and the text of the answer.
    pub async fn chat(&self, url: &str, body: String) -> (DemoOutcome, String) {
        self.try_chat(url, body).await.unwrap_or((DemoOutcome::Failed, String::new()))
    }

    async fn try_chat(&self, url: &str, body: String) -> Option<(DemoOutcome, String)> {
        let sent = self.clock.now();
        let request = self.http.post(format!("{url}/v1/chat/completions"));
        let request = request.header("content-type", "application/json").body(body);
        let mut response = request.send().await.ok()?.error_for_status().ok()?;
        let mut reading = StreamReading::default();
        let mut ttft_us = None;
        while let Some(bytes) = response.chunk().await.ok()? {
            reading.take(&bytes)?;
            if reading.started && ttft_us.is_none() {
                ttft_us = Some(self.clock.now().since(sent) / 1_000);
            }
        }
        let usage = reading.usage.filter(|_| reading.done)?;
        let details = usage.prompt_tokens_details.unwrap_or_default();
        let outcome = DemoOutcome::Answered {
            ttft_us: ttft_us?,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: details.cached_tokens.unwrap_or(0),
        };
        Some((outcome, reading.text))
    }
}

impl StreamReading {
    /// Adds bytes as they came; `None` if an event is not what a chat sends.
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
