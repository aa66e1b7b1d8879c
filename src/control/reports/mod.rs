//! Owner of the reports.

mod board_watch;
mod ejection;
mod note_reading;
mod start_report;
mod traces;

pub(super) use board_watch::BoardWatch;
pub(super) use ejection::{EjectionStep, RankLook};
pub(super) use note_reading::NoteReading;
pub(super) use start_report::report;
pub(super) use traces::Traces;
