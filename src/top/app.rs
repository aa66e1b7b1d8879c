//! The state of `forebay top`: snapshots and keys in, frames out.

use crate::clean::clean;
use crate::column::{COLUMNS, by_name};
use crate::figures::{FigureLine, RecentSnapshots};
use crate::row::{RankRow, RowKey, rows};
use crate::snapshot::{Condition, Snapshot, WholePart};
use std::collections::VecDeque;

/// Events that are stored. At least `LIVE_EVENTS_MAX` of the server: with fewer, a whole snapshot
/// would drop new events for old events.
const EVENTS_MAX: usize = 64;
const FILTER_CHARS_MAX: usize = 64;
/// Rows per page step.
const PAGE_ROWS: usize = 10;

/// A key with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopKey {
    Char(char),
    /// To the row above.
    Up,
    /// To the row below.
    Down,
    /// Sort by the column to the left.
    Left,
    /// Sort by the column to the right.
    Right,
    /// Some rows up at once.
    PageUp,
    /// Some rows down at once.
    PageDown,
    /// To the first row.
    Home,
    /// To the last row.
    End,
    /// Opens the detail of a rank, or ends the filter input.
    Enter,
    /// Goes back, or clears the filter.
    Escape,
    /// Deletes the last character of the filter.
    Backspace,
    /// Control-C: ends the command.
    Interrupt,
}

/// Whether the command continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressResult {
    /// The command goes on.
    Continue,
    /// The user quits the command.
    Quit,
}

/// State of the router's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamLink {
    /// Snapshots of the router arrive.
    Up,
    /// No snapshots arrive, with the reason.
    Lost(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Fleet,
    Filter,
    Detail,
}

#[derive(Clone, Debug)]
pub(crate) struct SeenEvent {
    id: u64,
    pub(crate) at_uptime_ms: u64,
    pub(crate) text: String,
}

/// Contents of a snapshot for display.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShownFleet {
    pub(crate) uptime_ms: u64,
    pub(crate) version: String,
    pub(crate) policy: String,
    pub(crate) condition: Condition,
    pub(crate) figures: FigureLine,
    pub(crate) queue: ShownQueue,
    pub(crate) rows: Vec<RankRow>,
    pub(crate) events: VecDeque<SeenEvent>,
}

/// The user's view of the fleet.
#[derive(Debug)]
pub(crate) struct ViewState {
    pub(crate) mode: Mode,
    /// Index of the column in [`COLUMNS`].
    pub(crate) sort_column: usize,
    pub(crate) is_reversed: bool,
    pub(crate) filter: String,
    /// Chosen row. `None`: the first row of the order.
    selected: Option<RowKey>,
}

/// The queues of all pools together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShownQueue {
    pub(crate) waiting: f64,
    pub(crate) drained_per_s: Option<f64>,
}

/// State of `forebay top`.
#[derive(Debug)]
pub struct App {
    pub(crate) router: String,
    pub(crate) has_colors: bool,
    pub(crate) link: StreamLink,
    pub(crate) view_state: ViewState,
    /// Fleet at the freeze, shown in place of `live`.
    pub(crate) frozen: Option<ShownFleet>,
    live: ShownFleet,
    recent: RecentSnapshots,
    /// Last whole part, with its fleet generation.
    whole: Option<(u64, WholePart)>,
}

impl App {
    /// `router`: its address as the user wrote it.
    #[must_use]
    pub fn new(router: &str, has_colors: bool) -> Self {
        Self {
            router: clean(router),
            has_colors,
            link: StreamLink::Lost("connecting".to_owned()),
            view_state: ViewState {
                mode: Mode::Fleet,
                sort_column: 0,
                is_reversed: false,
                filter: String::new(),
                selected: None,
            },
            frozen: None,
            live: ShownFleet::default(),
            recent: RecentSnapshots::default(),
            whole: None,
        }
    }

    /// Records that the stream ended, or could not be opened.
    pub fn stream_lost(&mut self, why: &str) {
        self.link = StreamLink::Lost(clean(why));
    }

    /// Takes a snapshot. Rows of an older fleet generation stay until its whole part arrives.
    pub fn update(&mut self, snapshot: &Snapshot) {
        self.link = StreamLink::Up;
        if self.recent.push(snapshot) {
            // Another process numbers its events, and its fleets, from the start.
            self.live.events.clear();
            self.whole = None;
        }
        if let Some(whole) = &snapshot.whole {
            self.whole = Some((snapshot.generation, whole.clone()));
        }
        let live = &mut self.live;
        live.uptime_ms = snapshot.uptime_ms;
        let cleaned = |texts: &[String]| texts.iter().map(|text| clean(text)).collect();
        live.condition.state = clean(&snapshot.condition.state);
        live.condition.reasons = cleaned(&snapshot.condition.reasons);
        live.condition.concerns = cleaned(&snapshot.condition.concerns);
        live.condition.orders = cleaned(&snapshot.condition.orders);
        let stalled = snapshot.counts.stalled.iter().filter(|stalled| **stalled).count();
        if stalled > 0 {
            live.condition.reasons.push(format!("{stalled} shards stalled"));
        }
        live.figures = self.recent.figures();
        // A sum of nothing is -0.
        let waiting: f64 = snapshot.pools.iter().map(|pool| pool.queue_depth).sum();
        live.queue.waiting = waiting + 0.0;
        live.queue.drained_per_s =
            snapshot.pools.iter().filter_map(|pool| pool.drain_rate).reduce(|a, b| a + b);
        live.merge_events(snapshot);
        // Columns of another fleet generation do not fit; a whole snapshot follows.
        if let Some((generation, whole)) = &self.whole
            && *generation == snapshot.generation
        {
            live.version = clean(&whole.version);
            live.policy = clean(&whole.policy);
            live.rows = rows(whole, snapshot, &self.recent);
        }
    }

    /// True once rates are available, which need two snapshots.
    #[must_use]
    pub fn has_rates(&self) -> bool {
        self.recent.has_rank_rates()
    }

    pub(crate) fn displayed(&self) -> &ShownFleet {
        self.frozen.as_ref().unwrap_or(&self.live)
    }

    /// Rows that match the filter, sorted.
    pub(crate) fn shown(&self) -> Vec<&RankRow> {
        let wanted = self.view_state.filter.to_lowercase();
        let mut shown: Vec<&RankRow> =
            self.displayed().rows.iter().filter(|row| row.has(&wanted)).collect();
        if let Some(column) = COLUMNS.get(self.view_state.sort_column) {
            shown.sort_by(|a, b| {
                let order = (column.order)(a, b);
                (if self.view_state.is_reversed { order.reverse() } else { order })
                    .then_with(|| by_name(a, b))
            });
        }
        shown
    }

    /// Index of the selected row; the first row if that rank is not shown.
    pub(crate) fn selected(&self, shown: &[&RankRow]) -> usize {
        let is_it =
            |row: &&RankRow| self.view_state.selected.as_ref().is_some_and(|key| row.key() == *key);
        shown.iter().position(is_it).unwrap_or(0)
    }

    /// The selected rank, also where the filter hides it. `None`: without a selection, or gone.
    pub(crate) fn selected_row(&self) -> Option<&RankRow> {
        let key = self.view_state.selected.as_ref()?;
        self.displayed().rows.iter().find(|row| row.key() == *key)
    }

    /// Handles a key press.
    pub fn press(&mut self, key: TopKey) -> PressResult {
        match (self.view_state.mode, key) {
            (_, TopKey::Interrupt) => return PressResult::Quit,
            (Mode::Filter, key) => self.edit_filter(key),
            (_, TopKey::Char('q')) => return PressResult::Quit,
            (Mode::Detail, TopKey::Escape | TopKey::Enter) => self.view_state.mode = Mode::Fleet,
            (_, TopKey::Enter) => self.open_detail(),
            (_, TopKey::Escape) => self.view_state.filter.clear(),
            (_, TopKey::Char('/')) => self.view_state.mode = Mode::Filter,
            (_, TopKey::Char('f' | ' ')) => self.freeze(),
            (_, TopKey::Char('r')) => self.view_state.is_reversed = !self.view_state.is_reversed,
            (_, TopKey::Char('s' | '>') | TopKey::Right) => {
                self.view_state.sort_column = (self.view_state.sort_column + 1) % COLUMNS.len();
            }
            (_, TopKey::Char('S' | '<') | TopKey::Left) => {
                self.view_state.sort_column =
                    self.view_state.sort_column.checked_sub(1).unwrap_or(COLUMNS.len() - 1);
            }
            (_, key) => self.move_selection(key),
        }
        PressResult::Continue
    }

    /// Opens the detail of the marked row, and selects its rank: without a selection the marked row
    /// is the first of the order, which changes with each snapshot.
    fn open_detail(&mut self) {
        let shown = self.shown();
        let Some(key) = shown.get(self.selected(&shown)).map(|row| row.key()) else { return };
        self.view_state.selected = Some(key);
        self.view_state.mode = Mode::Detail;
    }

    fn freeze(&mut self) {
        self.frozen = if self.frozen.is_some() { None } else { Some(self.live.clone()) };
    }

    fn edit_filter(&mut self, key: TopKey) {
        match key {
            TopKey::Enter => self.view_state.mode = Mode::Fleet,
            TopKey::Escape => {
                self.view_state.mode = Mode::Fleet;
                self.view_state.filter.clear();
            }
            TopKey::Backspace => {
                self.view_state.filter.pop();
            }
            TopKey::Char(char) if self.view_state.filter.chars().count() < FILTER_CHARS_MAX => {
                self.view_state.filter.push_str(&clean(char.encode_utf8(&mut [0; 4])));
            }
            _ => {}
        }
    }

    fn move_selection(&mut self, key: TopKey) {
        let shown = self.shown();
        let at = self.selected(&shown);
        let last = shown.len().saturating_sub(1);
        let to = match key {
            TopKey::Up | TopKey::Char('k') => at.saturating_sub(1),
            TopKey::Down | TopKey::Char('j') => at + 1,
            TopKey::PageUp => at.saturating_sub(PAGE_ROWS),
            TopKey::PageDown => at + PAGE_ROWS,
            TopKey::Home | TopKey::Char('g') => 0,
            TopKey::End | TopKey::Char('G') => last,
            _ => return,
        };
        // A filter without a match keeps the selection.
        if let Some(key) = shown.get(to.min(last)).map(|row| row.key()) {
            self.view_state.selected = Some(key);
        }
    }
}

impl ShownFleet {
    /// Adds new events; an event that grew replaces the event with its id.
    fn merge_events(&mut self, snapshot: &Snapshot) {
        for event in &snapshot.events {
            let text = clean(&event.text);
            if let Some(known) = self.events.iter_mut().find(|known| known.id == event.id) {
                known.text = text;
                continue;
            }
            if self.events.len() >= EVENTS_MAX {
                self.events.pop_front();
            }
            let at_uptime_ms = snapshot.uptime_ms.saturating_sub(event.age_ms);
            self.events.push_back(SeenEvent { id: event.id, at_uptime_ms, text });
        }
    }
}
