//! Text that a template puts between contents, with holes where it prints the date.

use crate::chat::date::{strftime, unix_seconds_now};
use crate::chat::environment::{DATE_END, DATE_START};

/// One literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TemplateLiteral {
    text: Box<str>,
    /// Formats of dates, each printed before the rest of the text goes on at its offset.
    dates: Vec<(usize, Box<str>)>,
}

/// How dates are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dates {
    /// As marks, which is what the probe renders.
    Marks,
    /// As the date of today.
    Today,
}

impl TemplateLiteral {
    /// From rendered text. `None` when its date marks do not pair.
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

    /// Appends it.
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
