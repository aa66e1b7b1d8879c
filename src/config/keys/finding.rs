//! Results of the check: a [`Finding`] per fault, each with its origin.

use std::collections::BTreeMap;
use std::fmt;

/// A fault of the configuration, or a probable mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Errors keep the router from starting; warnings do not.
    pub severity: Severity,
    /// Place of the faulty value.
    pub origin: Origin,
    /// Description of the fault.
    pub what: String,
    /// Advice; may be empty.
    pub help: String,
}

/// Weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The router refuses to start.
    Error,
    /// The router starts, but an operator should check.
    Warning,
}

/// Place where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File {
        /// Name of the file as given.
        name: String,
        /// Line number, counted from 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
    },
    /// On the command line: the flag, as written.
    Flag(String),
    /// No place: the built-in default, or the configuration as a whole.
    Whole,
}

/// Origin of each key by its dotted path; lists by position: `worker.0.url`.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    by_path: BTreeMap<String, Origin>,
}

impl Origins {
    /// Sets the origin of a key; the last call wins, as the last value does.
    pub fn set(&mut self, path: String, origin: Origin) {
        self.by_path.insert(path, origin);
    }

    /// Removes a key and all keys below it.
    pub fn forget(&mut self, path: &str) {
        let prefix = format!("{path}.");
        self.by_path.retain(|key, _| key != path && !key.starts_with(&prefix));
    }

    /// Origin of the first key of the file that is not in the tables of this name.
    #[must_use]
    pub(crate) fn first_outside(&self, table: &str) -> Origin {
        let is_outside = |path: &String| path.split('.').next() != Some(table);
        let outside = self.by_path.iter().filter(|(path, _)| is_outside(path));
        let first = outside.map(|(_, origin)| origin).min_by_key(|origin| match origin {
            Origin::File { line, column, .. } => (*line, *column),
            _ => (usize::MAX, 0),
        });
        first.cloned().unwrap_or(Origin::Whole)
    }

    /// True if the file or a flag has the key.
    #[must_use]
    pub(crate) fn has(&self, path: &str) -> bool {
        self.by_path.contains_key(path)
    }

    /// First line of the file, for what a file lacks. Without a key in the file: no place.
    #[must_use]
    pub(crate) fn start_of_file(&self) -> Origin {
        let name = self.by_path.values().find_map(|origin| match origin {
            Origin::File { name, .. } => Some(name.clone()),
            Origin::Flag(_) | Origin::Whole => None,
        });
        name.map_or(Origin::Whole, |name| Origin::File { name, line: 1, column: 1 })
    }

    /// Origin of the key, or of the nearest key that contains it.
    #[must_use]
    pub fn of(&self, path: &str) -> Origin {
        let mut path = path;
        loop {
            if let Some(origin) = self.by_path.get(path) {
                return origin.clone();
            }
            let Some((parent, _)) = path.rsplit_once('.') else {
                return Origin::Whole;
            };
            path = parent;
        }
    }
}

impl Finding {
    #[must_use]
    pub fn error(origin: Origin, what: impl Into<String>, help: impl Into<String>) -> Self {
        let [what, help] = [what.into(), help.into()].map(printable);
        Self { severity: Severity::Error, origin, what, help }
    }

    #[must_use]
    pub fn warning(origin: Origin, what: impl Into<String>, help: impl Into<String>) -> Self {
        let [what, help] = [what.into(), help.into()].map(printable);
        Self { severity: Severity::Warning, origin, what, help }
    }

    /// The advice, if there is any: a field of the log without a value would be noise.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        Some(&*self.help).filter(|help| !help.is_empty())
    }

    /// Place, fault and advice, without the severity. A finding on the whole has no place.
    #[must_use]
    pub fn in_words(&self) -> String {
        let Self { origin, what, help, .. } = self;
        let at = if *origin == Origin::Whole { String::new() } else { format!("{origin}: ") };
        let help = if help.is_empty() { String::new() } else { format!(". help: {help}") };
        format!("{at}{what}{help}")
    }

    /// Order of the listing: flags, then the file from top to bottom, then findings without a
    /// place.
    #[must_use]
    pub fn position(&self) -> (u8, usize, usize) {
        match &self.origin {
            Origin::Flag(_) => (0, 0, 0),
            Origin::File { line, column, .. } => (1, *line, *column),
            Origin::Whole => (2, 0, 0),
        }
    }
}

/// The text on a line of its own: names and values of a file may hold any character. Otherwise a
/// file could forge further findings, or control the terminal.
fn printable(text: String) -> String {
    // U+2028 and U+2029 end lines, the rest turns the direction of the text.
    let is_odd =
        |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(is_odd) {
        return text;
    }
    let shown = text.chars().map(|c| match is_odd(c) {
        true => c.escape_default().collect::<String>(),
        false => c.to_string(),
    });
    shown.collect()
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line, column } => write!(formatter, "{name}:{line}:{column}"),
            Self::Flag(flag) => write!(formatter, "{flag}"),
            Self::Whole => write!(formatter, "configuration"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(formatter, "{}: {severity}: {}", self.origin, self.what)?;
        if !self.help.is_empty() {
            write!(formatter, ". help: {}", self.help)?;
        }
        Ok(())
    }
}
