//! Metadata of a configuration key.

use std::ops::RangeInclusive;

/// Metadata of a key except its type and default.
#[derive(Debug)]
pub struct Key {
    /// As written in the file: `timeouts.head`. In lists of tables without a position:
    /// `worker.url`.
    pub path: &'static str,
    /// Documentation of the table that the key belongs to; lines begin with a space.
    pub about: &'static str,
    /// Effect of the key; lines begin with a space.
    pub doc: &'static str,
    /// Behavior without the key, shown in place of a default.
    pub absent: &'static str,
    /// Notation of the value.
    pub form: Form,
    /// Minimum and maximum, in the key's own unit; milliseconds for durations.
    pub range: RangeInclusive<u64>,
    /// A reload applies a change of this key. Other keys need a restart.
    pub reloadable: bool,
    /// Flag of `serve` that sets the key.
    pub flag: Option<Flag>,
}

/// A flag of `serve` that sets a key.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Name without the dashes.
    pub name: &'static str,
    /// Placeholder of the value in help; empty: a flag without a value, which means `true`.
    pub value: &'static str,
    /// Group in help; empty: the first group.
    pub heading: &'static str,
}

/// Notation of a value, if its type leaves a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The usual notation of the type.
    Plain,
    /// A number of bytes with a unit.
    Size,
    /// A secret, which is never printed.
    Secret,
    /// URLs, printed without user and password.
    Urls,
}

impl Key {
    /// Defaults for the fields of an entry.
    pub(crate) const PLAIN: Self = Self {
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

/// Flag of a key in the table: `flag("Routing", "policy", "POLICY")`.
pub(crate) const fn flag(
    heading: &'static str,
    name: &'static str,
    value: &'static str,
) -> Option<Flag> {
    Some(Flag { name, value, heading })
}
