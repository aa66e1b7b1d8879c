//! Reads typed values out of a TOML document without stopping at the first fault: a bad value leaves the default
//! in place and becomes a finding. Keys count as known because somebody reads them, so the list of known keys
//! cannot go stale.

use super::finding::{Finding, Origin, Origins};
use super::nearest::nearest;
use super::quantity::{parse_duration, parse_size};
use super::schema::Word;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;
use toml_edit::{Item, TableLike};

/// State of one reading: findings so far and where each key stood.
pub(super) struct Reader<'a> {
    text: &'a str,
    file: &'a str,
    known: Vec<String>,
    unknown: Vec<(String, Origin)>,
    /// What was found wrong.
    pub(super) findings: Vec<Finding>,
    /// Where each key was written.
    pub(super) origins: Origins,
}

/// One table under reading.
pub(super) struct Section<'t> {
    table: Option<&'t dyn TableLike>,
    /// Dotted path with list positions, for origins: `worker.0.`; empty or ending in a dot.
    path: String,
    /// The same as people write it: `worker.`.
    shown: String,
}

impl<'a> Reader<'a> {
    /// For a file of that name and text.
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        Self {
            text,
            file,
            known: Vec::new(),
            unknown: Vec::new(),
            findings: Vec::new(),
            origins: Origins::default(),
        }
    }

    /// Place of a byte range, as line and column.
    pub(super) fn place(&self, span: Option<Range<usize>>) -> Origin {
        let before = span.and_then(|span| self.text.get(..span.start)).unwrap_or("");
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Origin::File {
            name: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or("").chars().count() + 1,
        }
    }

    /// Turns the keys that nobody read into findings, each with the nearest key that exists.
    pub(super) fn finish(mut self) -> (Vec<Finding>, Origins) {
        for (path, origin) in std::mem::take(&mut self.unknown) {
            let (section, key) = path.rsplit_once('.').unwrap_or(("", &path));
            let same_name = || {
                let is_that = |known: &&String| known.rsplit('.').next() == Some(key);
                self.known.iter().find(is_that).map(String::as_str)
            };
            let of_section =
                |known: &&str| known.rsplit_once('.').map_or("", |(of, _)| of) == section;
            let here = self.known.iter().map(String::as_str).filter(of_section);
            let near = nearest(&path, here)
                .or_else(same_name)
                .or_else(|| nearest(&path, self.known.iter().map(String::as_str)));
            let help = near.map_or_else(
                || "remove it, or see the list of keys in the manual".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            self.findings.push(Finding::error(origin, format!("unknown key `{path}`"), help));
        }
        (self.findings, self.origins)
    }
}

impl<'t> Section<'t> {
    /// The whole document.
    pub(super) fn root(table: &'t dyn TableLike) -> Self {
        Self { table: Some(table), path: String::new(), shown: String::new() }
    }

    /// A section without a table: reads nothing, but makes its keys known for suggestions.
    pub(super) fn absent(shown: &str) -> Self {
        Self { table: None, path: format!("{shown}."), shown: format!("{shown}.") }
    }

    /// A `[section]`; absent ones read as empty.
    pub(super) fn section(&self, reader: &mut Reader<'_>, key: &str) -> Self {
        let mut inner = Self::absent(&format!("{}{key}", self.shown));
        let Some((origin, item)) = self.known(reader, key) else { return inner };
        inner.table = item.as_table_like();
        if inner.table.is_none() {
            let what = format!("`{key}` has type {}, not a section", item.type_name());
            let help = format!("write [{key}] on its own line and the keys below it");
            reader.findings.push(Finding::error(origin, what, help));
        }
        inner
    }

    /// The tables of `[[key]]`, each with its origin path.
    pub(super) fn sections(&self, reader: &mut Reader<'_>, key: &str) -> Vec<Self> {
        let Some((origin, item)) = self.known(reader, key) else { return Vec::new() };
        let tables: Vec<(&dyn TableLike, Option<Range<usize>>)> = match item {
            Item::ArrayOfTables(tables) => {
                tables.iter().map(|table| (table as &dyn TableLike, table.span())).collect()
            }
            _ => item
                .as_array()
                .map(|values| {
                    let inline = |value: &'t toml_edit::Value| {
                        value.as_inline_table().map(|table| (table as &dyn TableLike, value.span()))
                    };
                    values.iter().filter_map(inline).collect()
                })
                .unwrap_or_default(),
        };
        if tables.is_empty() {
            let what = format!("`{key}` has type {}, not a list of tables", item.type_name());
            let help = format!("write [[{key}]] on its own line and the keys below it");
            reader.findings.push(Finding::error(origin, what, help));
        }
        let mut sections = Vec::new();
        for (position, (table, span)) in tables.into_iter().enumerate() {
            let place = reader.place(span);
            reader.origins.set(format!("{key}.{position}"), place);
            sections.push(Self {
                table: Some(table),
                path: format!("{key}.{position}."),
                shown: format!("{key}."),
            });
        }
        sections
    }

    /// Reads one key into its place; a fault leaves the place as it was.
    pub(super) fn read<T>(
        &self,
        reader: &mut Reader<'_>,
        key: &str,
        slot: &mut T,
        parse: impl Fn(&Item) -> Result<T, String>,
    ) {
        let Some((origin, item)) = self.known(reader, key) else { return };
        match parse(item) {
            Ok(value) => *slot = value,
            Err(what) => {
                let what = format!("`{}{key}`: {what}", self.shown);
                reader.findings.push(Finding::error(origin, what, ""));
            }
        }
    }

    /// Is the key there, as a string?
    pub(super) fn is_text(&self, key: &str) -> bool {
        self.table.and_then(|table| table.get(key)).is_some_and(Item::is_str)
    }

    /// Notes the keys that nobody asked for.
    pub(super) fn finish(&self, reader: &mut Reader<'_>) {
        let Some(table) = self.table else { return };
        for (key, item) in table.iter() {
            let path = format!("{}{key}", self.shown);
            if !reader.known.contains(&path) {
                let span = table.key(key).and_then(toml_edit::Key::span).or_else(|| item.span());
                let origin = reader.place(span);
                reader.unknown.push((path, origin));
            }
        }
    }

    fn known(&self, reader: &mut Reader<'_>, key: &str) -> Option<(Origin, &'t Item)> {
        let shown = format!("{}{key}", self.shown);
        if !reader.known.contains(&shown) {
            reader.known.push(shown);
        }
        let table = self.table?;
        let (name, item) = table.get_key_value(key)?;
        let origin = reader.place(item.span().or_else(|| name.span()));
        reader.origins.set(format!("{}{key}", self.path), origin.clone());
        Some((origin, item))
    }
}

fn mismatch(item: &Item, wanted: &str) -> String {
    format!("has type {}, should be {wanted}", item.type_name())
}

/// A string.
pub(super) fn text(item: &Item) -> Result<String, String> {
    item.as_str().map(str::to_owned).ok_or_else(|| mismatch(item, "a string in quotes"))
}

/// A string that may be left out.
pub(super) fn some_text(item: &Item) -> Result<Option<String>, String> {
    text(item).map(Some)
}

/// A path that may be left out.
pub(super) fn some_path(item: &Item) -> Result<Option<PathBuf>, String> {
    text(item).map(|path| Some(PathBuf::from(path)))
}

/// One string or a list of strings.
pub(super) fn texts(item: &Item) -> Result<Vec<String>, String> {
    if let Some(one) = item.as_str() {
        return Ok(vec![one.to_owned()]);
    }
    let wanted = "a string or a list of strings";
    let values = item.as_array().ok_or_else(|| mismatch(item, wanted))?;
    let one = |value: &toml_edit::Value| value.as_str().map(str::to_owned);
    values.iter().map(one).collect::<Option<_>>().ok_or_else(|| format!("should be {wanted}"))
}

/// `true`, `false`, or the flags' `"on"` and `"off"`.
pub(super) fn switch(item: &Item) -> Result<bool, String> {
    match (item.as_bool(), item.as_str()) {
        (Some(value), _) => Ok(value),
        (None, Some("on")) => Ok(true),
        (None, Some("off")) => Ok(false),
        _ => Err(mismatch(item, "true or false")),
    }
}

/// A whole number from 0.
pub(super) fn count<T: TryFrom<i64>>(item: &Item) -> Result<T, String> {
    let value = item.as_integer().ok_or_else(|| mismatch(item, "a whole number"))?;
    T::try_from(value).map_err(|_| format!("{value} is out of range"))
}

/// A whole number that may be left out.
pub(super) fn some_count<T: TryFrom<i64>>(item: &Item) -> Result<Option<T>, String> {
    count(item).map(Some)
}

/// A list of whole numbers.
pub(super) fn counts(item: &Item) -> Result<Vec<usize>, String> {
    let wanted = "a list of whole numbers, for example [0, 1]";
    let values = item.as_array().ok_or_else(|| mismatch(item, wanted))?;
    let one =
        |value: &toml_edit::Value| value.as_integer().and_then(|core| usize::try_from(core).ok());
    values.iter().map(one).collect::<Option<_>>().ok_or_else(|| format!("should be {wanted}"))
}

/// A duration in quotes.
pub(super) fn duration(item: &Item) -> Result<Duration, String> {
    let text =
        item.as_str().ok_or_else(|| mismatch(item, "a duration in quotes, for example \"10s\""))?;
    parse_duration(text)
}

/// A size in quotes.
pub(super) fn size(item: &Item) -> Result<usize, String> {
    let text =
        item.as_str().ok_or_else(|| mismatch(item, "a size in quotes, for example \"32MiB\""))?;
    parse_size(text)
}

/// `address:port`.
pub(super) fn address(item: &Item) -> Result<SocketAddr, String> {
    parse_address(item.as_str().ok_or_else(|| mismatch(item, "an address in quotes"))?)
}

/// `address:port` from a flag or the file.
pub(super) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "{text:?} is not an address with a port; write for example 127.0.0.1:8080 or [::]:8080"
        )
    })
}

/// One of the words of an enumeration.
pub(super) fn word<T: Word>(item: &Item) -> Result<T, String> {
    parse_word(item.as_str().ok_or_else(|| mismatch(item, "a word in quotes"))?)
}

/// One of the words of an enumeration, from a flag or the file.
pub(super) fn parse_word<T: Word>(text: &str) -> Result<T, String> {
    T::from_word(text).ok_or_else(|| {
        let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
        let near = nearest(text, words.iter().copied())
            .map_or_else(String::new, |near| format!("; did you mean {near}?"));
        format!("{text:?} is not one of {}{near}", words.join(", "))
    })
}
