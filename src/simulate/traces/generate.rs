//! Synthetic traces: chats, shared prefixes, agents, documents. A seed determines the trace.
//!
//! | scenario | shape |
//! |---|---|
//! | `chats` | 1,200 conversations of about 5 turns; shared system prompt; turns 10 to 60 s apart |
//! | `shared` | 6,000 questions behind 60 beginnings of 1,000 to 6,000 tokens, by Zipf |
//! | `agents` | 80 sessions of about 43 turns, from 30,000 tokens on; side branches |
//! | `documents` | 500 documents of 8,000 to 64,000 tokens, each with some questions |

use crate::traces::trace::{BlockNames, Trace, TraceRequest, TurnStart};
use fastrand::Rng;
use std::str::FromStr;

const BLOCK_TOKENS: u32 = 64;
const SECOND_NS: u64 = 1_000_000_000;
/// Mean distance between starts of sessions, before the trace is scaled to the load.
const GAP_NS: f64 = 1e9;

/// Kind of a synthetic trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Conversations of people with a model.
    Chats,
    /// Questions behind a few popular beginnings.
    Shared,
    /// Long sessions that call tools.
    Agents,
    /// Questions about long documents.
    Documents,
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "chats" => Self::Chats,
            "shared" => Self::Shared,
            "agents" => Self::Agents,
            "documents" => Self::Documents,
            other => {
                return Err(format!("`{other}` is no scenario; chats, shared, agents, documents"));
            }
        })
    }
}

impl Scenario {
    /// Generates the trace of a seed.
    #[must_use]
    pub fn trace(self, seed: u64) -> Trace {
        let mut maker = TraceBuilder { random: Rng::with_seed(seed), ..TraceBuilder::default() };
        match self {
            Self::Chats => maker.chats(),
            Self::Shared => maker.shared(),
            Self::Agents => maker.agents(),
            Self::Documents => maker.documents(),
        }
        Trace::new(BLOCK_TOKENS, maker.requests, maker.names)
    }
}

struct TraceBuilder {
    random: Rng,
    names: BlockNames,
    requests: Vec<TraceRequest>,
    sessions: u32,
    hashes: u64,
    at_ns: u64,
}

impl Default for TraceBuilder {
    fn default() -> Self {
        Self {
            random: Rng::with_seed(0),
            names: BlockNames::default(),
            requests: Vec::new(),
            sessions: 0,
            hashes: 0,
            at_ns: 0,
        }
    }
}

/// A growing conversation: its text as hashes of blocks. The last block may be partial.
#[derive(Clone, Default)]
struct ConversationText {
    tokens: u32,
    hashes: Vec<u64>,
}

impl TraceBuilder {
    fn next_hash(&mut self) -> u64 {
        self.hashes += 1;
        self.hashes
    }

    fn grow(&mut self, text: &mut ConversationText, tokens: u32) {
        // Filling a partial block changes its hash.
        if !text.tokens.is_multiple_of(BLOCK_TOKENS) {
            text.hashes.pop();
        }
        text.tokens += tokens;
        while text.hashes.len() < text.tokens.div_ceil(BLOCK_TOKENS) as usize {
            let hash = self.next_hash();
            text.hashes.push(hash);
        }
    }

    fn start(&mut self) -> TurnStart {
        let gap = -self.random.f64().max(f64::MIN_POSITIVE).ln() * GAP_NS;
        self.at_ns += gap as u64;
        self.sessions += 1;
        TurnStart::At { ns: self.at_ns }
    }

    fn ask(&mut self, text: &ConversationText, output_tokens: u32, turn: TurnStart) -> u32 {
        self.requests.push(TraceRequest {
            turn,
            input_tokens: text.tokens,
            output_tokens,
            blocks: self.names.path(text.hashes.iter().copied()),
            made: Vec::new(),
            session: self.sessions,
        });
        self.requests.len() as u32 - 1
    }

    fn think(&mut self, request: u32, seconds: std::ops::Range<u64>) -> TurnStart {
        let think_ns = self.random.u64(seconds.start * SECOND_NS..seconds.end * SECOND_NS);
        TurnStart::After { request, think_ns }
    }

    /// A random number with this median and a long tail.
    fn about(&mut self, median: f64) -> u32 {
        let one = self.random.f64().max(f64::MIN_POSITIVE);
        let two = self.random.f64();
        let normal = (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos();
        ((median * (0.7 * normal).exp()) as u32).max(1)
    }

    fn chats(&mut self) {
        let mut system = ConversationText::default();
        self.grow(&mut system, 640);
        for _ in 0..1_200 {
            let mut text = system.clone();
            let mut turn = self.start();
            for _ in 0..self.about(5.0).min(30) {
                let question = self.about(300.0);
                let answered = self.about(220.0).min(2_000);
                self.grow(&mut text, question);
                let request = self.ask(&text, answered, turn);
                self.grow(&mut text, answered);
                turn = self.think(request, 10..60);
            }
        }
    }

    fn shared(&mut self) {
        let beginnings: Vec<ConversationText> = (0..60)
            .map(|_| {
                let mut text = ConversationText::default();
                let tokens = self.random.u32(1_000..6_000);
                self.grow(&mut text, tokens);
                text
            })
            .collect();
        for _ in 0..6_000 {
            // Zipf with exponent 1: the tenth prefix is used a tenth as often as the first.
            let place = (60_f64.powf(self.random.f64()) as usize).clamp(1, 60) - 1;
            let mut text = beginnings[place].clone();
            let question = self.about(400.0);
            let answered = self.about(150.0).min(1_000);
            self.grow(&mut text, question);
            let turn = self.start();
            self.ask(&text, answered, turn);
        }
    }

    fn agents(&mut self) {
        let mut tools = ConversationText::default();
        self.grow(&mut tools, 16_000);
        for _ in 0..80 {
            let mut text = tools.clone();
            self.grow(&mut text, 14_000);
            let mut turn = self.start();
            for _ in 0..self.about(43.0).min(120) {
                let added = self.about(3_000.0).min(30_000);
                let answered = self.about(444.0).min(4_000);
                self.grow(&mut text, added);
                if text.tokens > 180_000 {
                    break;
                }
                let request = self.ask(&text, answered, turn);
                self.grow(&mut text, answered);
                if self.random.u32(..10) == 0 {
                    self.branch(&tools, request);
                }
                turn = self.think(request, 6..30);
            }
        }
    }

    /// A side agent: the tools, a task of its own, a few turns beside the main session.
    fn branch(&mut self, tools: &ConversationText, request: u32) {
        let mut text = tools.clone();
        self.grow(&mut text, 4_000);
        let mut turn = self.think(request, 1..3);
        for _ in 0..4 {
            let added = self.about(1_500.0).min(20_000);
            self.grow(&mut text, added);
            let request = self.ask(&text, 300, turn);
            self.grow(&mut text, 300);
            turn = self.think(request, 6..30);
        }
    }

    fn documents(&mut self) {
        for _ in 0..500 {
            let mut document = ConversationText::default();
            let tokens = self.random.u32(8_000..64_000);
            self.grow(&mut document, tokens);
            let mut turn = self.start();
            for _ in 0..self.random.u32(1..8) {
                let mut text = document.clone();
                let question = self.about(80.0);
                let answered = self.about(300.0).min(2_000);
                self.grow(&mut text, question);
                let request = self.ask(&text, answered, turn);
                turn = self.think(request, 5..120);
            }
        }
    }
}
