//! Trace files. The first line determines the format:
//!
//! | format | a line |
//! |---|---|
//! | Mooncake | `{"timestamp", "input_length", "output_length", "hash_ids"}` |
//! | Azure 2023 | `TIMESTAMP,ContextTokens,GeneratedTokens` |
//! | sessions | `{"id", "block_size", "tool_tokens", "system_tokens", "requests": […]}` |
//!
//! Mooncake's blocks have 512 tokens and its times are in ms. Prompts of Azure share nothing.
//! A turn of a session follows the end of the turn before.
//!
//! A request of a session has `in`, `out`, `hash_ids` and its start `t` in seconds. A session
//! without a start of its first turn, or with 0, begins a second after the session of the line
//! before. `think_time` is the pause of a turn after the turn before; the default is the distance
//! of the starts. A request with nested `requests` is a sub-agent, and its turns replace the
//! request.

use crate::traces::trace::{BlockNames, Trace, TraceRequest, TurnStart};
use serde::Deserialize;
use std::path::Path;

const MOONCAKE_BLOCK_TOKENS: u32 = 512;
/// Block size of traces without blocks.
const OWN_BLOCK_TOKENS: u32 = 64;
/// Distance between sessions without a start, before the trace is scaled to the load.
const SESSION_GAP_NS: u64 = 1_000_000_000;
const NS_PER_MS: f64 = 1e6;
const NS_PER_S: f64 = 1e9;

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{path}: {error}; name a file that can be read, or generate:chats and the like")]
    File {
        /// As it was given.
        path: String,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// A line is of no known format.
    #[error("{path}, line {line}: {reason}; known are Mooncake, Azure 2023 and sessions")]
    Line {
        /// As it was given.
        path: String,
        /// Lines are counted from 1.
        line: usize,
        /// Fault of the line.
        reason: String,
    },
    /// There is nothing to replay.
    #[error("{path}: no request; a trace needs at least one")]
    Empty {
        /// As it was given.
        path: String,
    },
}

#[derive(Deserialize)]
struct MooncakeLine {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

#[derive(Deserialize)]
struct SessionLine {
    block_size: u32,
    #[serde(default)]
    hash_id_scope: String,
    #[serde(default)]
    tool_tokens: u32,
    #[serde(default)]
    system_tokens: u32,
    requests: Vec<SessionTurn>,
}

#[derive(Deserialize)]
struct SessionTurn {
    #[serde(default)]
    t: f64,
    think_time: Option<f64>,
    #[serde(default, rename = "in")]
    input: u32,
    #[serde(default, rename = "out")]
    output: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
    #[serde(default)]
    requests: Vec<SessionTurn>,
}

/// Reads a trace file.
///
/// # Errors
/// What is wrong with the file, with the line.
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| TraceError::File { path: shown.clone(), error })?;
    parse(&text).map_err(|fault| match fault {
        None => TraceError::Empty { path: shown },
        Some((line, reason)) => TraceError::Line { path: shown, line: line + 1, reason },
    })
}

/// `None`: there is no request. Lines are counted from 0.
type LineFault = Option<(usize, String)>;

pub(crate) fn parse(text: &str) -> Result<Trace, LineFault> {
    let mut reader = TraceReader::default();
    let first = text.lines().next().unwrap_or_default();
    let is_azure = first.trim_start_matches('\u{feff}').starts_with("TIMESTAMP");
    let is_sessions = first.contains("\"requests\"");
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let taken = match (is_azure, is_sessions) {
            (true, _) if at == 0 => Ok(()),
            (true, _) => reader.azure(line),
            (_, true) => reader.session(line),
            _ => reader.mooncake(line),
        };
        taken.map_err(|reason| Some((at, reason)))?;
    }
    if reader.requests.is_empty() {
        return Err(None);
    }
    let block_tokens = if is_azure { OWN_BLOCK_TOKENS } else { reader.block_tokens };
    if !is_sessions {
        reader.requests.sort_by_key(|request| match request.turn {
            TurnStart::At { ns } => ns,
            TurnStart::After { .. } => u64::MAX,
        });
    }
    Ok(Trace::new(block_tokens, reader.requests, reader.names))
}

#[derive(Default)]
struct TraceReader {
    requests: Vec<TraceRequest>,
    names: BlockNames,
    block_tokens: u32,
    sessions: u32,
    own: u64,
}

impl TraceReader {
    fn mooncake(&mut self, line: &str) -> Result<(), String> {
        let line: MooncakeLine = serde_json::from_str(line).map_err(|error| error.to_string())?;
        self.block_tokens = MOONCAKE_BLOCK_TOKENS;
        let blocks = self.names.path(line.hash_ids.into_iter());
        self.push((line.timestamp * NS_PER_MS) as u64, line.input_length, line.output_length);
        self.last().blocks = blocks;
        Ok(())
    }

    fn azure(&mut self, line: &str) -> Result<(), String> {
        let mut parts = line.trim().split(',');
        let mut part = || parts.next().ok_or("three columns are needed".to_owned());
        let time = part()?;
        let input = part()?;
        let output = part()?;
        let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number"));
        let input = number(input)?;
        let output = number(output)?;
        let ns = azure_ns(time).ok_or_else(|| format!("`{time}` is no time"))?;
        self.push(ns, input, output);
        let count = u64::from(input.div_ceil(OWN_BLOCK_TOKENS));
        let first = self.own;
        self.own += count;
        let blocks = self.names.path((0..count).map(|at| first + at));
        self.last().blocks = blocks;
        Ok(())
    }

    fn push(&mut self, ns: u64, input: u32, output: u32) {
        self.requests.push(TraceRequest {
            turn: TurnStart::At { ns },
            input_tokens: input.max(1),
            output_tokens: output.max(1),
            blocks: Vec::new(),
            made: Vec::new(),
            session: self.sessions,
        });
        self.sessions += 1;
    }

    fn last(&mut self) -> &mut TraceRequest {
        let last = self.requests.len() - 1;
        &mut self.requests[last]
    }

    fn session(&mut self, line: &str) -> Result<(), String> {
        let line: SessionLine = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if line.block_size == 0 || self.block_tokens > 0 && self.block_tokens != line.block_size {
            return Err("sessions of one trace need one `block_size`, above 0".into());
        }
        self.block_tokens = line.block_size;
        let session = SessionNames {
            session: self.sessions,
            is_local: line.hash_id_scope == "local",
            tool_blocks: line.tool_tokens / line.block_size,
            tools: line.tool_tokens,
            system: line.system_tokens,
        };
        self.turns(&line.requests, &session, None);
        self.sessions += 1;
        Ok(())
    }

    /// Adds the turns in order, each after the turn before. Returns the last.
    fn turns(
        &mut self,
        turns: &[SessionTurn],
        names: &SessionNames,
        mut before: Option<u32>,
    ) -> Option<u32> {
        let mut started = 0.0;
        for turn in turns {
            if !turn.requests.is_empty() {
                before = self.turns(&turn.requests, names, before);
                continue;
            }
            let think = turn.think_time.unwrap_or((turn.t - started).max(0.0));
            started = turn.t;
            let at = self.requests.len() as u32;
            let start_ns = match turn.t > 0.0 {
                true => (turn.t * NS_PER_S) as u64,
                false => u64::from(names.session) * SESSION_GAP_NS,
            };
            self.push(start_ns, turn.input, turn.output);
            // `push` counts a session for each request; these requests share a single session.
            self.sessions = names.session;
            let hashes = turn.hash_ids.iter().enumerate();
            let hashes = hashes.map(|(place, &hash)| names.hash(place as u32, hash));
            let blocks = self.names.path(hashes);
            let request = self.last();
            request.blocks = blocks;
            if let Some(request_before) = before {
                let think_ns = (think * NS_PER_S) as u64;
                request.turn = TurnStart::After { request: request_before, think_ns };
            }
            before = Some(at);
        }
        before
    }
}

/// Scope of the hashes of a session.
struct SessionNames {
    session: u32,
    is_local: bool,
    tool_blocks: u32,
    tools: u32,
    system: u32,
}

impl SessionNames {
    /// Local numbers belong to this session. Sessions with the same tools share the tools' blocks.
    fn hash(&self, place: u32, hash: u64) -> u64 {
        if !self.is_local {
            return hash;
        }
        let of = |kind: u64, one: u64, two: u64| {
            kind.wrapping_add(one.wrapping_mul(0x9E37_79B9_7F4A_7C15)).rotate_left(23)
                ^ two.wrapping_mul(0xD6E8_FEB8_6659_FD93)
        };
        match place < self.tool_blocks {
            true => of(1, u64::from(self.tools) << 32 | u64::from(self.system), u64::from(place)),
            false => of(2, u64::from(self.session), hash),
        }
    }
}

/// `2023-11-16 18:15:46.6805900` as time since a day before all traces.
fn azure_ns(text: &str) -> Option<u64> {
    let (date, time) = text.trim().split_once(' ')?;
    let mut date = date.split('-').map(str::parse::<u64>);
    let year = date.next()?.ok()?;
    let month = date.next()?.ok()?;
    let day = date.next()?.ok()?;
    // All months count 31 days, which keeps the order of times; no trace spans a year.
    let days = (year.checked_sub(2_000)? * 12 + month) * 31 + day;
    let mut time = time.split(':');
    let hours: u64 = time.next()?.parse().ok()?;
    let minutes: u64 = time.next()?.parse().ok()?;
    let seconds: f64 = time.next()?.parse().ok()?;
    Some(((days * 24 + hours) * 60 + minutes) * 60_000_000_000 + (seconds * NS_PER_S) as u64)
}
