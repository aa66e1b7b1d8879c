//! Types of keys: parsing, printing and naming.

use super::key::{Form, Key};
use super::nearest::nearest;
use crate::values::quantity::{format_duration, format_size, parse_duration, parse_size};
use forebay_base::limits::SHARDS_MAX;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use toml_edit::Item;

/// Shown in place of a secret.
const MASK: &str = "***";

/// The value of a key.
pub(crate) trait Setting {
    /// Takes the value from the file; returns the fault as text. A fault changes nothing.
    fn read(&mut self, key: &Key, item: &Item) -> Result<(), String>;

    /// Takes the value from a flag.
    fn read_flag(&mut self, key: &Key, text: &str) -> Result<(), String> {
        self.read(key, &toml_edit::value(text))
    }

    /// The value in the file's notation, secrets masked; `None` without a value.
    fn show(&self, key: &Key) -> Option<Value>;

    /// Type of the value.
    fn kind(&self, key: &Key) -> Kind;

    /// Its size, for comparison with [`Key::range`]; milliseconds for durations.
    fn number(&self) -> Option<u64> {
        None
    }
}

/// Types for the reference page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Switch,
    Count,
    /// A number of bytes with its unit.
    Size,
    /// A time with its unit.
    Duration,
    Address,
    Text,
    /// A string or a list of strings.
    Texts,
    /// Indices of CPU cores.
    Cores,
    /// A choice of words, each with its meaning.
    Words(Vec<(&'static str, &'static str)>),
}

impl Kind {
    /// Formats a number of that type.
    #[must_use]
    pub fn format(&self, number: u64) -> String {
        match self {
            Self::Duration => format_duration(Duration::from_millis(number)),
            Self::Size => format_size(usize::try_from(number).unwrap_or(usize::MAX)),
            _ => number.to_string(),
        }
    }

    /// Formats the key's range; empty without a limit.
    #[must_use]
    pub fn format_range(&self, key: &Key) -> String {
        match (*key.range.start(), *key.range.end()) {
            (0, u64::MAX) => String::new(),
            (least, u64::MAX) => format!("at least {}", self.format(least)),
            (least, most) => format!("{} to {}", self.format(least), self.format(most)),
        }
    }
}

fn mismatch(item: &Item, wanted: &str) -> String {
    format!("has type {}, should be {wanted}", item.type_name())
}

fn text_of<'i>(item: &'i Item, wanted: &str) -> Result<&'i str, String> {
    item.as_str().ok_or_else(|| mismatch(item, wanted))
}

/// Masks the user in `scheme://user:password@host`; several URLs are separated by commas.
fn without_password(urls: &str) -> String {
    let mask = |url: &str| match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            let start = url.get(..scheme + 3);
            let host = url.get(at..);
            format!("{}{MASK}{}", start.unwrap_or_default(), host.unwrap_or_default())
        }
        _ => url.to_owned(),
    };
    urls.split(',').map(mask).collect::<Vec<_>>().join(",")
}

impl Setting for bool {
    /// `true`, `false`, or the flag values `"on"` and `"off"`.
    fn read(&mut self, _: &Key, item: &Item) -> Result<(), String> {
        *self = match (item.as_bool(), item.as_str()) {
            (Some(value), _) => value,
            (None, Some("on")) => true,
            (None, Some("off")) => false,
            (None, Some(text)) => {
                return Err(format!("{text:?} is not on or off; write true or false"));
            }
            _ => return Err(mismatch(item, "true or false")),
        };
        Ok(())
    }

    fn show(&self, _: &Key) -> Option<Value> {
        Some(json!(self))
    }

    fn kind(&self, _: &Key) -> Kind {
        Kind::Switch
    }
}

impl Setting for String {
    fn read(&mut self, _: &Key, item: &Item) -> Result<(), String> {
        text_of(item, "a string in quotes")?.clone_into(self);
        Ok(())
    }

    fn show(&self, key: &Key) -> Option<Value> {
        Some(match key.form {
            Form::Secret if !self.is_empty() => json!(MASK),
            Form::Urls => json!(without_password(self)),
            _ => json!(self),
        })
    }

    fn kind(&self, _: &Key) -> Kind {
        Kind::Text
    }
}

impl Setting for PathBuf {
    fn read(&mut self, _: &Key, item: &Item) -> Result<(), String> {
        *self = text_of(item, "a string in quotes")?.into();
        Ok(())
    }

    fn show(&self, _: &Key) -> Option<Value> {
        Some(json!(self.display().to_string()))
    }

    fn kind(&self, _: &Key) -> Kind {
        Kind::Text
    }
}

impl Setting for SocketAddr {
    fn read(&mut self, _: &Key, item: &Item) -> Result<(), String> {
        let text = text_of(item, "an address in quotes")?;
        let help = "write for example 127.0.0.1:8080 or [::]:8080";
        *self =
            text.parse().map_err(|_| format!("{text:?} is not an address with a port; {help}"))?;
        Ok(())
    }

    fn show(&self, _: &Key) -> Option<Value> {
        Some(json!(self.to_string()))
    }

    fn kind(&self, _: &Key) -> Kind {
        Kind::Address
    }
}

impl Setting for Duration {
    fn read(&mut self, _: &Key, item: &Item) -> Result<(), String> {
        *self = parse_duration(text_of(item, "a duration in quotes, for example \"10s\"")?)?;
        Ok(())
    }

    fn show(&self, _: &Key) -> Option<Value> {
        Some(json!(format_duration(*self)))
    }

    fn kind(&self, _: &Key) -> Kind {
        Kind::Duration
    }

    fn number(&self) -> Option<u64> {
        Some(u64::try_from(self.as_millis()).unwrap_or(u64::MAX))
    }
}

macro_rules! number {
    ($($type:ty)+) => {$(
        impl Setting for $type {
            fn read(&mut self, key: &Key, item: &Item) -> Result<(), String> {
                let number = if key.form == Form::Size {
                    let text = text_of(item, "a size in quotes, for example \"32MiB\"")?;
                    i64::try_from(parse_size(text)?).unwrap_or(i64::MAX)
                } else {
                    item.as_integer().ok_or_else(|| mismatch(item, "a whole number"))?
                };
                *self = number.try_into().map_err(|_| match number < 0 {
                    true => format!("{number} is negative; write 0 or more"),
                    false => format!("{number} is too large; write at most {}", <$type>::MAX),
                })?;
                Ok(())
            }

            fn read_flag(&mut self, key: &Key, text: &str) -> Result<(), String> {
                match text.parse::<i64>() {
                    Ok(number) if key.form != Form::Size => {
                        self.read(key, &toml_edit::value(number))
                    }
                    Err(_) if key.form != Form::Size => {
                        Err(format!("{text:?} is not a whole number"))
                    }
                    _ => self.read(key, &toml_edit::value(text)),
                }
            }

            fn show(&self, key: &Key) -> Option<Value> {
                match (self.kind(key), self.number()) {
                    (kind @ Kind::Size, Some(number)) => Some(json!(kind.format(number))),
                    _ => Some(json!(self)),
                }
            }

            fn kind(&self, key: &Key) -> Kind {
                if key.form == Form::Size { Kind::Size } else { Kind::Count }
            }

            fn number(&self) -> Option<u64> {
                u64::try_from(*self).ok()
            }
        }
    )+};
}
number!(u8 u16 u32 usize);

impl Setting for Vec<String> {
    /// A string or a list of strings.
    fn read(&mut self, _: &Key, item: &Item) -> Result<(), String> {
        if let Some(text) = item.as_str() {
            *self = vec![text.to_owned()];
            return Ok(());
        }
        let wanted = "a string or a list of strings";
        let values = item.as_array().ok_or_else(|| mismatch(item, wanted))?;
        let string_of = |value: &toml_edit::Value| value.as_str().map(str::to_owned);
        let all: Option<_> = values.iter().map(string_of).collect();
        *self = all.ok_or_else(|| format!("should be {wanted}"))?;
        Ok(())
    }

    fn show(&self, _: &Key) -> Option<Value> {
        Some(json!(self))
    }

    fn kind(&self, _: &Key) -> Kind {
        Kind::Texts
    }
}

impl Setting for Vec<usize> {
    /// A list of numbers, or the flag's `0-3,8` in quotes.
    fn read(&mut self, _: &Key, item: &Item) -> Result<(), String> {
        if let Some(text) = item.as_str() {
            *self = parse_cores(text)?;
            return Ok(());
        }
        let wanted = "a list of whole numbers, for example [0, 1]";
        let values = item.as_array().ok_or_else(|| mismatch(item, wanted))?;
        let core_of =
            |value: &toml_edit::Value| value.as_integer().and_then(|core| core.try_into().ok());
        let all: Option<_> = values.iter().map(core_of).collect();
        *self = all.ok_or_else(|| format!("should be {wanted}"))?;
        Ok(())
    }

    fn show(&self, _: &Key) -> Option<Value> {
        Some(json!(self))
    }

    fn kind(&self, _: &Key) -> Kind {
        Kind::Cores
    }
}

/// Parses core numbers in the given order: `0,2` or `0-3,8`.
fn parse_cores(text: &str) -> Result<Vec<usize>, String> {
    let fault = || format!("{text:?} is not a list of cores; write for example 0,2 or 0-3");
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().map_err(|_| fault())?;
        let last: usize = last.trim().parse().map_err(|_| fault())?;
        if first > last {
            return Err(fault());
        }
        if last - first >= SHARDS_MAX || cores.len() >= SHARDS_MAX {
            return Err(format!("more than the {SHARDS_MAX} cores of one process"));
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

/// An optional key, which has no value if omitted.
impl<T: Setting + Default> Setting for Option<T> {
    fn read(&mut self, key: &Key, item: &Item) -> Result<(), String> {
        let mut value = T::default();
        value.read(key, item)?;
        *self = Some(value);
        Ok(())
    }

    fn read_flag(&mut self, key: &Key, text: &str) -> Result<(), String> {
        let mut value = T::default();
        value.read_flag(key, text)?;
        *self = Some(value);
        Ok(())
    }

    fn show(&self, key: &Key) -> Option<Value> {
        self.as_ref()?.show(key)
    }

    fn kind(&self, key: &Key) -> Kind {
        T::default().kind(key)
    }

    fn number(&self) -> Option<u64> {
        self.as_ref()?.number()
    }
}

/// Words of an enum in the file and on the command line. Implemented by `words!`.
pub trait Word: Copy + PartialEq + 'static {
    /// All variants with their word and its meaning.
    const WORDS: &'static [(&'static str, Self, &'static str)];

    /// The word of this variant.
    #[must_use]
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, variant, _)| *variant == self).map_or("", |(name, ..)| name)
    }
}

impl<T: Word> Setting for T {
    fn read(&mut self, _: &Key, item: &Item) -> Result<(), String> {
        let words: Vec<&str> = T::WORDS.iter().map(|(word, ..)| *word).collect();
        let text = item.as_str().ok_or_else(|| {
            let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
            mismatch(item, &format!("a word in quotes: {}", quoted.join(", ")))
        })?;
        let found = T::WORDS.iter().find(|(word, ..)| *word == text);
        *self = found.map(|(_, variant, _)| *variant).ok_or_else(|| {
            let near = nearest(text, &words, str::to_owned);
            let hint = if near.is_empty() { near } else { format!("; did you mean {near}?") };
            format!("{text:?} is not one of {}{hint}", words.join(", "))
        })?;
        Ok(())
    }

    fn show(&self, _: &Key) -> Option<Value> {
        Some(json!(self.word()))
    }

    fn kind(&self, _: &Key) -> Kind {
        Kind::Words(T::WORDS.iter().map(|(word, _, doc)| (*word, *doc)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_and_ranges_of_cores() {
        for (text, cores) in [("0", vec![0]), ("0,2", vec![0, 2]), ("1-3,8", vec![1, 2, 3, 8])] {
            assert_eq!(parse_cores(text), Ok(cores));
        }
        for bad in ["", "a", "3-1", "1,,2", "-1", "0-1000000000000", "0x1"] {
            assert!(parse_cores(bad).is_err(), "{bad}");
        }
    }
}
