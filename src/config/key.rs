//! What a key of the configuration is, and the macros that turn one entry into all that a key
//! needs: field, default, reading, printing, range check, reload, flag and reference page.
//!
//! The tables are in `schema`, `flow` and `worker`. One entry per key:
//!
//! ```text
//! /// What it does, when to change it. The text of the reference page and of the flag's help.
//! name: Type = default, { range: 1..=10, reloadable: true, ... };
//! ```
//!
//! The part in braces sets fields of [`Key`] and may be left out.

use super::reload::Changes;
use super::setting::Setting;
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
    /// A running router takes over a change. Others wait for a restart.
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
        reloadable: false,
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

/// Sees every key and its place, in the order of the table.
pub(super) type Visit<'v> = &'v mut dyn FnMut(&'static Key, &mut dyn Setting);

/// Values with their keys. Lists of tables are no part of it.
pub(super) trait Table {
    /// Shows every key.
    fn visit(&mut self, visit: Visit<'_>);

    /// Takes over what may change while the router runs, and notes what differs.
    fn take_from(&mut self, wanted: &Self, changes: &mut Changes)
    where
        Self: Sized;

    /// Shows every key of a copy.
    fn each(&self, mut see: impl FnMut(&'static Key, &dyn Setting))
    where
        Self: Clone + Sized,
    {
        self.clone().visit(&mut |key, setting| see(key, setting));
    }
}

/// A section as a struct with its keys. `in "timeouts."` is what stands before the names.
macro_rules! table {
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $name:ident in $prefix:literal {
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $type:ty = $default:expr
                    $(, { $($attribute:ident: $value:expr),+ $(,)? })?;
            )*
        }
        $(sections { $($(#[doc = $section_doc:literal])+ $section:ident: $section_type:ty,)* })?
        $(lists { $($(#[doc = $list_doc:literal])+ $list:ident: $item:ty,)* })?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq $($(, $derive)+)?)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $type,)*
            $($($(#[doc = $section_doc])+ pub $section: $section_type,)*)?
            $($($(#[doc = $list_doc])+ pub $list: Vec<$item>,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    $($($section: Default::default(),)*)?
                    $($($list: Vec::new(),)*)?
                }
            }
        }

        impl $name {
            const ABOUT: &'static str = concat!($($about),+);
            const KEYS: &'static [$crate::key::Key] = &[$(
                $crate::key::Key {
                    $($($attribute: $value,)+)?
                    ..$crate::key::Key {
                        path: concat!($prefix, stringify!($field)),
                        about: Self::ABOUT,
                        doc: concat!($($doc),+),
                        ..$crate::key::Key::PLAIN
                    }
                },
            )*];
        }

        impl $crate::key::Table for $name {
            fn visit(&mut self, visit: $crate::key::Visit<'_>) {
                let mut keys = Self::KEYS.iter();
                $(if let Some(key) = keys.next() { visit(key, &mut self.$field); })*
                $($(self.$section.visit(visit);)*)?
            }

            fn take_from(&mut self, wanted: &Self, changes: &mut $crate::reload::Changes) {
                let mut keys = Self::KEYS.iter();
                $(changes.take(keys.next(), &mut self.$field, &wanted.$field);)*
                $($(self.$section.take_from(&wanted.$section, changes);)*)?
            }
        }
    };
}

/// The words of a key that takes one of several. The first is the default.
macro_rules! words {
    (
        $(#[doc = $about:literal])+
        pub enum $name:ident {
            $(#[doc = $first_doc:literal])+ $first:ident = $first_word:literal,
            $($(#[doc = $doc:literal])+ $variant:ident = $word:literal,)*
        }
        $(planned $planned:literal)?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = $first_doc])+
            #[default]
            $first,
            $($(#[doc = $doc])+ $variant,)*
        }

        impl $crate::setting::Word for $name {
            const WORDS: &'static [(&'static str, Self, &'static str)] = &[
                ($first_word, Self::$first, concat!($($first_doc),+)),
                $(($word, Self::$variant, concat!($($doc),+)),)*
            ];
            const PLANNED: &'static [&'static str] = &[$($planned)?];
        }
    };
}

pub(super) use {table, words};
