//! What a key of the configuration is.

use std::ops::RangeInclusive;

/// All that is known of a key but its type and its default.
#[derive(Debug)]
pub struct Key {
    /// As written in the file: `timeouts.head`. In lists of tables without a position:
    /// `worker.url`.
    pub path: &'static str,
    /// Documentation of the table that the key belongs to; lines begin with a space.
    pub about: &'static str,
    /// What it does; lines begin with a space.
    pub doc: &'static str,
    /// Stands for the default where there is no value: what happens without the key.
    pub absent: &'static str,
    /// How the value is written.
    pub form: Form,
    /// Least and most, in the key's own unit; milliseconds for durations.
    pub range: RangeInclusive<u64>,
    /// A running router takes over a change. Others wait for the next process.
    pub reloadable: bool,
    /// The flag of `serve` that sets it.
    pub flag: Option<Flag>,
}

/// A flag of `serve` that sets a key.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Without the dashes.
    pub name: &'static str,
    /// Placeholder of the value in help; empty: the flag stands alone and means `true`.
    pub value: &'static str,
    /// Group in help; empty: the first.
    pub heading: &'static str,
}

/// How a value is written, where its type leaves a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As its type says.
    Plain,
    /// A number of bytes, with its unit.
    Size,
    /// Never printed.
    Secret,
    /// URLs, printed without user and password.
    Urls,
}

impl Key {
    /// What an entry of the table need not say.
    pub(super) const PLAIN: Self = Self {
        path: "",
        about: "",
        doc: "",
        absent: "",
        form: Form::Plain,
        range: 0..=u64::MAX,
        reloadable: true,
        flag: None,
    };
}

/// In the table of keys: the flag of a key, `flag("Routing", "policy", "POLICY")`.
pub(super) const fn flag(
    heading: &'static str,
    name: &'static str,
    value: &'static str,
) -> Option<Flag> {
    Some(Flag { name, value, heading })
}
