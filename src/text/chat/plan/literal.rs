//! Text that a template puts between contents, with holes where it prints the date.

use crate::chat::date::{strftime, unix_seconds_now};
use crate::chat::environment::{DATE_END, DATE_START};

/// A text with the formats of its dates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TemplateLiteral {
    text: Box<str>,
    /// Formats of dates, with their offsets in the text.
    dates: Vec<(usize, Box<str>)>,
}

/// Form of the dates in a written literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dates {
    /// Marks, as the probe renders them.
    Marks,
    /// The date of today.
    Today,
}

impl TemplateLiteral {
    /// A literal from rendered text; `None` when the date marks do not pair.
    pub(super) fn from_rendered(rendered: &str) -> Option<Self> {
        let mut text = String::with_capacity(rendered.len());
        let mut dates = Vec::new();
        let mut rest = rendered;
        while let Some((plain, marked)) = rest.split_once(DATE_START) {
            let (format, tail) = marked.split_once(DATE_END)?;
            text.push_str(plain);
            dates.push((text.len(), format.into()));
            rest = tail;
        }
        text.push_str(rest);
        let whole = !text.contains([DATE_START, DATE_END]);
        whole.then(|| Self { text: text.into_boxed_str(), dates })
    }

    /// Appends the literal to `out`.
    pub(super) fn write(&self, how: Dates, out: &mut Vec<u8>) {
        let mut written = 0;
        for (offset, format) in &self.dates {
            out.extend_from_slice(self.text.get(written..*offset).unwrap_or_default().as_bytes());
            let date = match how {
                Dates::Marks => format!("{DATE_START}{format}{DATE_END}"),
                Dates::Today => strftime(format, unix_seconds_now()),
            };
            out.extend_from_slice(date.as_bytes());
            written = *offset;
        }
        out.extend_from_slice(self.text.get(written..).unwrap_or_default().as_bytes());
    }
}
