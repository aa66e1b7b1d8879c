//! A line for each request, for tools that analyze the use of an engine's slots: times of the
//! request and of its answer, and the id shared with its other leg.

use super::config::EngineRole;
use super::unix_time::unix_time;
use forebay_base::Clock;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// The file. Lines `received_ns ended_ns outcome first_ns role meeting`, in the order of the ends;
/// Unix times, but monotonic. `first_ns` is the first byte of the answer's body, `meeting` the room
/// or transfer; `-` is absent.
#[derive(Clone, Debug)]
pub(super) struct TimesLog {
    file: Arc<File>,
    clock: Clock,
    started_unix_ns: u64,
}

/// A request, which writes its line when dropped. Does nothing without a file.
#[derive(Debug)]
pub(super) struct TimedRequest(Option<TimedLine>);

#[derive(Debug)]
struct TimedLine {
    log: TimesLog,
    received_ns: u64,
    first_ns: Option<u64>,
    ended: Option<(u64, &'static str)>,
    role: EngineRole,
    meeting: Option<String>,
}

impl TimesLog {
    /// Creates or truncates the file.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let started_unix_ns = u64::try_from(unix_time().as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { file: Arc::new(File::create(path)?), clock: Clock::start(), started_unix_ns })
    }

    /// Records the arrival of a request.
    pub(super) fn received(&self, role: EngineRole) -> TimedRequest {
        let log = self.clone();
        let received_ns = self.now_ns();
        let first_ns = None;
        let ended = None;
        let meeting = None;
        TimedRequest(Some(TimedLine { log, received_ns, first_ns, ended, role, meeting }))
    }

    fn now_ns(&self) -> u64 {
        self.started_unix_ns.saturating_add(self.clock.now().0)
    }
}

impl TimedRequest {
    /// A request without a time log.
    pub(super) fn unwanted() -> Self {
        Self(None)
    }

    /// Records the first byte of the answer's body.
    pub(super) fn first_byte(&mut self) {
        if let Some(line) = &mut self.0 {
            line.first_ns.get_or_insert_with(|| line.log.now_ns());
        }
    }

    /// Sets the id shared with the other leg of the request, cut to the room in a line.
    pub(super) fn meets_at(&mut self, name: impl AsRef<str>) {
        let word = name.as_ref().split_whitespace().next().unwrap_or_default();
        if let Some(line) = &mut self.0 {
            line.meeting = Some(word.chars().take(MEETING_CHARS_MAX).collect());
        }
    }

    /// Records the last token, or the refusal of the request.
    pub(super) fn ended(&mut self, outcome: &'static str) {
        if let Some(line) = &mut self.0 {
            line.ended.get_or_insert((line.log.now_ns(), outcome));
        }
    }
}

impl Drop for TimedLine {
    fn drop(&mut self) {
        let (ended, outcome) = self.ended.unwrap_or_else(|| (self.log.now_ns(), "left"));
        let role = match self.role {
            EngineRole::Both => "both",
            EngineRole::Prefill => "prefill",
            EngineRole::Decode => "decode",
        };
        let first = self.first_ns.map_or("-".to_owned(), |ns| ns.to_string());
        let meeting = self.meeting.as_deref().filter(|name| !name.is_empty()).unwrap_or("-");
        let received = self.received_ns;
        let line = format!("{received} {ended} {outcome} {first} {role} {meeting}\n");
        // A single write per line. On a full disk the tool loses figures, but requests continue.
        let _disk_full = (&*self.log.file).write_all(line.as_bytes());
    }
}

const MEETING_CHARS_MAX: usize = 128;
