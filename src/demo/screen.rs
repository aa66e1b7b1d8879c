//! Output of the live view: redrawn in place on a terminal, else a line per second.

use super::view::{self, Live};
use std::io::{self, Write};
use std::time::Duration;
use tokio::time::{Interval, interval};

/// The live view of an act.
#[derive(Debug)]
pub(super) struct Screen {
    is_terminal: bool,
    drawn: String,
    ticks: Interval,
}

impl Screen {
    pub(super) fn new(is_terminal: bool) -> Self {
        let period = if is_terminal { FRAME_PERIOD } else { LINE_PERIOD };
        Self { is_terminal, drawn: String::new(), ticks: interval(period) }
    }

    /// Returns when the view is due.
    pub(super) async fn tick(&mut self) {
        self.ticks.tick().await;
    }

    /// Draws over the previous frame. Without a terminal, the last line is omitted, since the table
    /// repeats it.
    pub(super) fn show(&mut self, live: &Live, last: bool, out: &mut impl Write) -> io::Result<()> {
        if self.is_terminal {
            let frame = view::frame(live);
            write!(out, "{}{frame}", view::erase(&self.drawn))?;
            self.drawn = frame;
        } else if !last {
            writeln!(out, "{}", view::line(live))?;
        }
        out.flush()
    }
}

const FRAME_PERIOD: Duration = Duration::from_millis(200);
const LINE_PERIOD: Duration = Duration::from_secs(1);
