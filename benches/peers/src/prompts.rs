//! Chats of an exact size, the same on every run: a system message that several chats share, which
//! is half of the text, then seven turns. All text is ASCII without escapes.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;

/// Messages after the system message.
const TURNS: usize = 7;
/// Chats that share a system message.
const SHARED_BY: usize = 16;
/// Digits at the begin of each turn, by which distinct chats differ.
const DIGITS: usize = 16;
/// A seed of the system messages, away from the seeds of the turns.
const SYSTEM_SEED: u64 = 1 << 60;
/// Frequent words of the tests' tokenizer, about 4.5 bytes a token.
const WORDS: [&str; 64] = [
    "a", "the", "of", "in", "to", "is", "it", "and", "with", "from", "under", "near", "about",
    "when", "if", "so", "but", "that", "this", "every", "some", "one", "no", "our", "their", "its",
    "my", "your", "old", "new", "cold", "late", "last", "next", "long", "wide", "rich", "safe",
    "soft", "thin", "tiny", "true", "weak", "good", "hard", "map", "road", "car", "day", "sun",
    "river", "light", "house", "paper", "story", "music", "garden", "router", "worker", "cache",
    "block", "queue", "server", "often",
];

/// The pools of the runs, made once.
#[derive(Default)]
pub(crate) struct Pools {
    made: HashMap<Kind, Rc<Pool>>,
    /// Number of the last distinct chat.
    distinct: u64,
}

/// What requests of a pool have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    /// Bytes of each body.
    pub(crate) bytes: usize,
    /// Different chats.
    pub(crate) prompts: usize,
    pub(crate) is_stream: bool,
}

/// Whole requests.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) requests: Vec<Rc<[u8]>>,
    /// By request: where each turn begins.
    turns: Vec<[usize; TURNS]>,
}

impl Pools {
    pub(crate) fn pool(&mut self, kind: Kind) -> io::Result<Rc<Pool>> {
        if let Some(pool) = self.made.get(&kind) {
            return Ok(pool.clone());
        }
        let pool = Rc::new(Pool::new(kind)?);
        self.made.insert(kind, pool.clone());
        Ok(pool)
    }

    /// The chat as none before it: only its system message is shared.
    pub(crate) fn distinct(&mut self, pool: &Pool, index: usize) -> Rc<[u8]> {
        self.distinct += 1;
        let number = format!("{:0DIGITS$}", self.distinct);
        let mut request = pool.requests[index].to_vec();
        for at in pool.turns[index] {
            request[at..at + DIGITS].copy_from_slice(number.as_bytes());
        }
        request.into()
    }
}

impl Pool {
    fn new(kind: Kind) -> io::Result<Self> {
        let mut pool = Self { requests: Vec::new(), turns: Vec::new() };
        for chat in 0..kind.prompts {
            let (body, mut turns) = body(kind, chat)?;
            let head = format!(
                "POST /v1/chat/completions HTTP/1.1\r\nHost: bench.local\r\nUser-Agent: bench\r\n\
                 Accept: */*\r\nAuthorization: Bearer token\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n",
                body.len()
            );
            for turn in &mut turns {
                *turn += head.len();
            }
            pool.requests.push([head.as_bytes(), body.as_bytes()].concat().into());
            pool.turns.push(turns);
        }
        Ok(pool)
    }
}

/// The body of a chat, and where its turns begin.
fn body(kind: Kind, chat: usize) -> io::Result<(String, [usize; TURNS])> {
    // Both forms have the same length, so that a stream has the prompt of a unary request.
    let stream = if kind.is_stream { "true " } else { "false" };
    let mut body = format!(
        "{{\"model\":\"bench\",\"stream\":{stream},\"max_tokens\":10,\"temperature\":0.0,\
         \"messages\":[{{\"role\":\"system\",\"content\":\""
    );
    let opening = |turn: usize| {
        let role = if turn.is_multiple_of(2) { "user" } else { "assistant" };
        format!("\"}},{{\"role\":\"{role}\",\"content\":\"")
    };
    let end = "\"}]}";
    let frame = body.len() + (0..TURNS).map(|turn| opening(turn).len()).sum::<usize>() + end.len();
    let text_bytes = kind.bytes.saturating_sub(frame);
    let turn_bytes = text_bytes / 2 / TURNS;
    if turn_bytes < 2 * DIGITS {
        return Err(io::Error::other(format!("a chat does not fit into {} bytes", kind.bytes)));
    }
    let group = u64::try_from(chat / SHARED_BY).unwrap_or(0);
    write_text(&mut body, SYSTEM_SEED + group, text_bytes - TURNS * turn_bytes);
    let mut turns = [0; TURNS];
    for (turn, at) in turns.iter_mut().enumerate() {
        body.push_str(&opening(turn));
        *at = body.len();
        let seed = u64::try_from(chat * TURNS + turn).unwrap_or(0);
        write_text(&mut body, seed, turn_bytes);
    }
    body.push_str(end);
    Ok((body, turns))
}

fn write_text(out: &mut String, seed: u64, bytes: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let end = out.len() + bytes;
    while out.len() < end {
        out.push_str(random.choice(WORDS).unwrap_or("a"));
        out.push(' ');
    }
    out.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::{DIGITS, Kind, Pool, Pools, TURNS};

    fn body_of(request: &[u8]) -> &[u8] {
        let end = memchr::memmem::find(request, b"\r\n\r\n").unwrap();
        &request[end + 4..]
    }

    #[test]
    fn bodies_have_the_size_asked_for_and_are_chats() {
        for bytes in [1_024, 8_192, 65_536, 524_288] {
            let pool = Pool::new(Kind { bytes, prompts: 3, is_stream: false }).unwrap();
            for request in &pool.requests {
                let body = body_of(request);
                assert_eq!(body.len(), bytes);
                let chat: serde_json::Value = serde_json::from_slice(body).unwrap();
                assert_eq!(chat["messages"].as_array().unwrap().len(), 1 + TURNS);
            }
        }
    }

    #[test]
    fn a_stream_has_the_prompt_of_a_unary_request() {
        let messages = |is_stream| {
            let pool = Pool::new(Kind { bytes: 1_024, prompts: 2, is_stream }).unwrap();
            let chat: serde_json::Value =
                serde_json::from_slice(body_of(&pool.requests[1])).unwrap();
            assert_eq!(chat["stream"], is_stream);
            chat["messages"].clone()
        };
        assert_eq!(messages(true), messages(false));
    }

    #[test]
    fn distinct_chats_share_the_system_message_alone() {
        let mut pools = Pools::default();
        let pool = pools.pool(Kind { bytes: 8_192, prompts: 2, is_stream: false }).unwrap();
        let one = pools.distinct(&pool, 0);
        let other = pools.distinct(&pool, 0);
        let differ = one.iter().zip(other.iter()).position(|(a, b)| a != b).unwrap();
        let turn = pool.turns[0][0];
        assert!((turn..turn + DIGITS).contains(&differ), "{differ} is not in the first turn");
        assert_eq!(one.len(), other.len());
    }
}
