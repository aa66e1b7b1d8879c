//! Progress line of a long command: on standard error, on a terminal only. Each update overwrites
//! the line, and the end erases it.

use std::io::{self, IsTerminal, Write};

pub(super) struct ProgressLine {
    total: u64,
    shown: Option<u64>,
    on_terminal: bool,
}

impl ProgressLine {
    pub(super) fn new(total: u64) -> Self {
        Self { total, shown: None, on_terminal: io::stderr().is_terminal() }
    }

    /// Prints `name` and the share of `done`, if the percentage has changed.
    pub(super) fn set(&mut self, name: &str, done: u64, spent_ns: u64) {
        let percent = done.saturating_mul(100) / self.total.max(1);
        if !self.on_terminal || self.shown == Some(percent) {
            return;
        }
        self.shown = Some(percent);
        let line = line(name, percent, spent_ns);
        // A write error is ignored: the terminal may be gone.
        let _gone = write!(io::stderr().lock(), "\r{line}\x1b[K");
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _gone = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn line(name: &str, percent: u64, spent_ns: u64) -> String {
    let left_s = match percent {
        0 => String::new(),
        percent => {
            let left_ns = u128::from(spent_ns) * u128::from(100 - percent.min(100));
            format!("  {} s left", left_ns / u128::from(percent) / 1_000_000_000)
        }
    };
    format!("{name:<19} {percent:>3} %{left_s}")
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_line_has_the_share_and_the_time_that_is_left() {
        assert_eq!(line("kv", 0, 5), "kv                    0 %");
        assert_eq!(line("kv", 25, 3_000_000_000), "kv                   25 %  9 s left");
        assert_eq!(line("kv", 100, 3_000_000_000), "kv                  100 %  0 s left");
    }
}
