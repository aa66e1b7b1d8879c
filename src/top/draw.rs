//! Frames: the state as terminal cells, and as text.

use crate::app::{App, Mode, SeenEvent, StreamLink};
use crate::column::{COLUMNS, Column, NAME_WIDTHS, STATE_COLUMN, fitting};
use crate::figures::{TenantRates, count, percent, rate, span};
use crate::row::{RankRow, RowState};
use crate::snapshot::Condition;
use forebay_base::shown_seconds;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::Span;

/// Lines of events, if there is room.
const EVENT_LINES: u16 = 5;
/// Minimum height of a terminal that shows events.
const LINES_WITH_EVENTS_MIN: u16 = 11;
/// Lines beside fleet and events: two head lines, the column names, the help.
const OTHER_LINES: u16 = 4;
/// Line of the first rank, without a line of tenants.
const FIRST_ROW: u16 = 3;
/// Lines of the longest text that `--once` prints.
const TEXT_LINES_MAX: u16 = 1_100;

const HELP: &str = "q quit  s/S sort  r reverse  / filter  f freeze  enter detail  arrows move";
const DETAIL_HELP: &str = "esc back  arrows other rank  f freeze  q quit";

/// A frame as text, with all ranks. The columns of ranks fit into this width. All other lines are
/// whole, however long.
#[must_use]
pub fn text(app: &App, width: u16) -> String {
    let rows = u16::try_from(app.shown().len()).unwrap_or(u16::MAX).max(1);
    let height = rows.saturating_add(OTHER_LINES + EVENT_LINES + 2).min(TEXT_LINES_MAX);
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    app.draw(area, &mut buffer);
    let tenants = app.tenants().filter(|_| height >= LINES_WITH_EVENTS_MIN);
    let is_detail = app.view_state.mode == Mode::Detail;
    let mut fleet = if is_detail { Vec::new() } else { vec![app.column_names(width)] };
    fleet.extend(app.row_lines(width).into_iter().filter(|_| !is_detail));
    if !is_detail && app.shown().is_empty() {
        fleet.push(app.why_empty());
    }
    let first = FIRST_ROW - 1 + u16::from(tenants.is_some());
    let events = app.event_lines();
    let first_event = height.saturating_sub(1 + EVENT_LINES);
    let row =
        |y: u16| fleet.get(usize::from(y.checked_sub(first)?)).filter(|_| y + 1 < first_event);
    let event = |y: u16| events.get(usize::from(y.checked_sub(first_event)?));
    let line = |y: u16| match (y, &tenants) {
        (0, _) => app.head(),
        (1, _) => app.figures(),
        (2, Some(tenants)) => tenants.clone(),
        _ => row(y)
            .or_else(|| event(y))
            .map_or_else(|| symbols(&buffer, y), |text| text.trim_end().to_owned()),
    };
    // Omits the help line, which is about keys.
    (0..height.saturating_sub(1))
        .map(line)
        .filter(|line| !line.is_empty())
        .fold(String::new(), |text, line| text + &line + "\n")
}

impl App {
    /// Draws the whole frame.
    pub(crate) fn draw(&self, area: Rect, to: &mut Buffer) {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        line(to, area, 0, &self.head(), bold);
        line(to, area, 1, &self.figures(), Style::new());
        let events = if area.height >= LINES_WITH_EVENTS_MIN { EVENT_LINES + 1 } else { 0 };
        let tenants = self.tenants();
        let tenant_lines = u16::from(tenants.is_some() && events > 0);
        if let Some(tenants) = tenants.filter(|_| tenant_lines > 0) {
            line(to, area, 2, &tenants, Style::new());
        }
        let rows = area.height.saturating_sub(OTHER_LINES + events + tenant_lines);
        let below = Rect { y: area.y + tenant_lines, height: area.height - tenant_lines, ..area };
        if self.view_state.mode == Mode::Detail {
            self.draw_detail(below, rows + 1, to);
        } else {
            self.draw_fleet(below, rows, to);
        }
        if events > 0 {
            self.draw_events(area, area.height - 1 - events, to);
        }
        let help = match self.view_state.mode {
            Mode::Filter => {
                format!("filter: {}_  (enter keeps, esc clears)", self.view_state.filter)
            }
            Mode::Detail => DETAIL_HELP.to_owned(),
            Mode::Fleet if self.view_state.filter.is_empty() => HELP.to_owned(),
            Mode::Fleet => format!("filter: {}  (esc clears)  {HELP}", self.view_state.filter),
        };
        if area.height > 2 {
            line(to, area, area.height - 1, &help, Style::new());
        }
    }

    fn head(&self) -> String {
        let view = self.displayed();
        let link = match &self.link {
            StreamLink::Up => String::new(),
            StreamLink::Lost(why) => format!("  LOST ({why}), trying again"),
        };
        let frozen = if self.frozen.is_some() { "  FROZEN" } else { "" };
        let condition = &view.condition;
        let ready = match condition.word() {
            _ if view.version.is_empty() => "waiting".to_owned(),
            "ready" => "ready".to_owned(),
            word => word.to_uppercase(),
        };
        let refused = view.figures.refused_share().filter(|share| *share > 0.0).map(|share| {
            let reason = view.figures.refused_for.as_deref().unwrap_or("for several reasons");
            format!("{} of requests refused, {reason}", percent(Some(share)))
        });
        let Condition { reasons, concerns, orders, .. } = condition;
        let why = reasons.iter().chain(concerns).chain(orders).chain(&refused);
        let why: Vec<&str> = why.map(String::as_str).collect();
        let ready = if why.is_empty() { ready } else { format!("{ready}: {}", why.join("; ")) };
        let version = &view.version;
        let policy = &view.policy;
        let up = span(view.uptime_ms);
        let router = &self.router;
        format!("forebay {version} {policy}  {ready}{frozen}{link}  up {up}  {router}")
    }

    fn figures(&self) -> String {
        let view = self.displayed();
        let figures = &view.figures;
        let in_flight = view.rows.iter().filter_map(|row| row.load.in_flight);
        // A sum of nothing is -0.
        let in_flight = in_flight.sum::<f64>() + 0.0;
        // Answers that are no stream have no first token, and the router answers all the same.
        let has_answers = figures.answered_per_s.is_some_and(|per_s| per_s > 0.0);
        let has_no_stream = has_answers && figures.ttft_p50_s.is_none();
        let no_stream = if has_no_stream { " (no stream ended)" } else { "" };
        format!(
            "{} answered/s  TTFT p50 {} p99 {}{no_stream}  {in_flight} in flight  {} queued, \
             {} end/s, p99 {}  {} refused/s  {} in cache  {} ranks",
            rate(figures.answered_per_s),
            shown_seconds(figures.ttft_p50_s),
            shown_seconds(figures.ttft_p99_s),
            view.queue.waiting,
            rate(view.queue.drained_per_s),
            shown_seconds(figures.queue_p99_s),
            rate(figures.refused_per_s),
            percent(figures.cached_share),
            view.rows.iter().filter(|row| row.names.has_rank).count(),
        )
    }

    /// The line of tenants, the most refused or failed first. `None` without tenants.
    fn tenants(&self) -> Option<String> {
        let tenants = &self.displayed().figures.tenants;
        let shown = tenants.iter().map(|tenant| {
            let TenantRates { name, answered_per_s, refused_per_s, .. } = tenant;
            let TenantRates { invalid_per_s, failed_per_s, limits, .. } = tenant;
            let wrong =
                [(refused_per_s, "refused"), (invalid_per_s, "invalid"), (failed_per_s, "failed")];
            let wrong = wrong.into_iter().filter(|(per_s, _)| **per_s > 0.0);
            let wrong = wrong.map(|(per_s, word)| format!(" {} {word}/s", rate(Some(*per_s))));
            let wrong: String = wrong.collect();
            format!("  {name} {}/s{wrong}{limits}", rate(Some(*answered_per_s)))
        });
        (!tenants.is_empty()).then(|| format!("tenants{}", shown.collect::<String>()))
    }

    fn draw_fleet(&self, area: Rect, rows: u16, to: &mut Buffer) {
        let shown = self.shown();
        line(
            to,
            area,
            FIRST_ROW - 1,
            &self.column_names(area.width),
            Style::new().add_modifier(Modifier::UNDERLINED),
        );
        let selected = self.selected(&shown);
        let first = selected.saturating_sub(usize::from(rows).saturating_sub(1));
        if shown.is_empty() {
            line(to, area, FIRST_ROW, &self.why_empty(), Style::new());
        }
        let lines = self.row_lines(area.width);
        let visible = shown.iter().zip(&lines).enumerate().skip(first).take(usize::from(rows));
        for ((place, (row, text)), y) in visible.zip(FIRST_ROW..) {
            line(to, area, y, text, self.style(row, place == selected));
        }
    }

    /// Why no rank is shown: the filter, or what the router lacks.
    fn why_empty(&self) -> String {
        let Condition { reasons, concerns, .. } = &self.displayed().condition;
        if !self.displayed().rows.is_empty() {
            return "No rank fits the filter.".to_owned();
        }
        let why = if concerns.is_empty() { reasons } else { concerns };
        match why.as_slice() {
            [] => "No workers.".to_owned(),
            why => format!("No workers: {}", why.join("; ")),
        }
    }

    /// Line of the column names. `why` has no width: a reason is as long as it is.
    fn column_names(&self, width: u16) -> String {
        let names = self.columns(width).into_iter().map(|(index, column, width)| {
            let sign = if self.view_state.is_reversed { "^" } else { "v" };
            let sign = if index == self.view_state.sort_column { sign } else { "" };
            cell(&format!("{}{sign}", column.name), width, column.is_right)
        });
        let has_why = self.shown().iter().any(|row| row.why().is_some());
        let why = if has_why { " why" } else { "" };
        std::iter::once(" ".to_owned()).chain(names).collect::<String>() + why
    }

    /// Columns that fit into a line of this width: index, column and width.
    fn columns(&self, width: u16) -> Vec<(usize, &'static Column, usize)> {
        let (columns, room) = fitting(usize::from(width).saturating_sub(1));
        let names = self.displayed().rows.iter().map(|row| row.names.worker.chars().count());
        let name_width = room.min(names.max().unwrap_or_default().max(NAME_WIDTHS.0));
        let columns = columns.into_iter().filter_map(|index| {
            let column = COLUMNS.get(index)?;
            Some((index, column, if index == 0 { name_width } else { column.width }))
        });
        columns.collect()
    }

    /// Lines of the shown ranks. The reason stands at the end of its line, which may then be longer
    /// than the width. A rank that is out of use has no load: the reason takes that place.
    fn row_lines(&self, width: u16) -> Vec<String> {
        let shown = self.shown();
        let selected = self.selected(&shown);
        let columns = self.columns(width);
        let line = |(place, row): (usize, &&RankRow)| {
            let is_out = row.is_out_of_use() && row.why().is_some();
            let cells = columns
                .iter()
                .filter(|(index, ..)| !is_out || *index <= STATE_COLUMN)
                .map(|(_, column, width)| cell(&(column.text)(row), *width, column.is_right));
            let mark = if place == selected { ">" } else { " " };
            let why = row.why().map(|why| format!(" {why}")).unwrap_or_default();
            std::iter::once(mark.to_owned()).chain(cells).collect::<String>() + &why
        };
        shown.iter().enumerate().map(line).collect()
    }

    fn style(&self, row: &RankRow, is_selected: bool) -> Style {
        let color = match row.state {
            RowState::Up => None,
            RowState::CatchingUp
            | RowState::Registering
            | RowState::Draining
            | RowState::Unused => Some(Color::Yellow),
            _ => Some(Color::Red),
        };
        let style = color
            .filter(|_| self.has_colors)
            .map_or_else(Style::new, |color| Style::new().fg(color));
        if is_selected { style.add_modifier(Modifier::BOLD) } else { style }
    }

    fn draw_detail(&self, area: Rect, lines: u16, to: &mut Buffer) {
        let Some(row) = self.selected_row() else {
            line(to, area, 2, "The fleet no longer has this rank.", Style::new());
            return;
        };
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let mut facts = vec![
            format!(
                "{} rank {}: {}",
                row.names.worker,
                row.names.dp_rank,
                row.state.words().trim()
            ),
            format!(
                "  url {}  engine {}  role {}",
                row.names.url, row.names.engine, row.names.role
            ),
            format!("  models {}", row.names.models.join(", ")),
            format!("  block size {}  KV events {}", count(row.names.block_size), known(&row.feed)),
            format!("  waits for {}", known(&row.waits_for)),
            format!("  fault {}", known(&row.error)),
        ];
        facts.extend(row.figures.iter().map(|(name, value)| format!("  {name} {value}")));
        for (fact, y) in facts.iter().take(usize::from(lines)).zip(2_u16..) {
            line(to, area, y, fact, Style::new());
        }
    }

    fn draw_events(&self, area: Rect, top: u16, to: &mut Buffer) {
        line(to, area, top, "events", Style::new().add_modifier(Modifier::UNDERLINED));
        for (event, y) in self.event_lines().iter().zip(top + 1..) {
            line(to, area, y, event, Style::new());
        }
    }

    /// The newest events, the newest first, each with its age.
    fn event_lines(&self) -> Vec<String> {
        let view = self.displayed();
        let newest = view.events.iter().rev().take(usize::from(EVENT_LINES));
        let line = |event: &SeenEvent| {
            let age = span(view.uptime_ms.saturating_sub(event.at_uptime_ms));
            format!("{age:>12} ago  {}", event.text)
        };
        newest.map(line).collect()
    }
}

/// The text of a line. A wide character occupies two cells; the second is skipped.
pub(crate) fn symbols(buffer: &Buffer, y: u16) -> String {
    let mut text = String::new();
    let mut x = 0_u16;
    while let Some(cell) = buffer.cell((x, y)) {
        text.push_str(cell.symbol());
        let width = Span::raw(cell.symbol()).width();
        x = x.saturating_add(u16::try_from(width).unwrap_or(1).max(1));
    }
    text.trim_end().to_owned()
}

/// Draws a line, cut at the edge.
fn line(to: &mut Buffer, area: Rect, y: u16, text: &str, style: Style) {
    if y < area.height {
        to.set_stringn(area.x, area.y + y, text, usize::from(area.width), style);
    }
}

/// Pads a text to its column, with a space after it.
fn cell(text: &str, width: usize, is_right: bool) -> String {
    let cut: String = text.chars().take(width).collect();
    if is_right { format!("{cut:>width$} ") } else { format!("{cut:<width$} ") }
}
