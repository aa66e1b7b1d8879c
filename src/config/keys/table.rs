//! Values with their keys, and the macros that derive from a single entry everything that a key
//! needs: field, default, parsing, printing, range check, reload, flag and reference page.
//!
//! The tables are in `schema`, `flow` and `worker`. An entry per key:
//!
//! ```text
//! /// What it does, when to change it. The text of the reference page and of the flag's help.
//! name: Type = default, { range: 1..=10, reloadable: false, ... };
//! ```
//!
//! The part in braces sets fields of [`Key`] and may be omitted.

use super::key::Key;
use super::setting::Setting;

/// Visitor of every key and its value, in table order.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(&'static Key, &mut dyn Setting);

/// Values with their keys. Lists of tables are excluded.
pub(crate) trait KeyTable {
    fn visit(&mut self, visit: Visit<'_>);

    /// Takes over reloadable keys, and records differences.
    fn take_from(&mut self, wanted: &Self, changes: &mut Changes)
    where
        Self: Sized;

    /// Visits every key of a copy.
    fn each(&self, mut see: impl FnMut(&'static Key, &dyn Setting))
    where
        Self: Clone + Sized,
    {
        self.clone().visit(&mut |key, setting| see(key, setting));
    }
}

/// Keys with different values, by their dotted paths, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Applied to the running configuration.
    pub applied: Vec<String>,
    /// Need a restart to take effect.
    pub restart: Vec<String>,
    /// Added and removed workers.
    pub workers: WorkerChanges,
}

/// URLs of workers that only the new or only the old file contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerChanges {
    /// URLs of added workers.
    pub joined: Vec<String>,
    /// URLs of removed workers.
    pub left: Vec<String>,
}

impl Changes {
    /// Records that the file named by a key was reloaded with different contents.
    pub fn also_applied(&mut self, key: &str) {
        if self.applied.iter().all(|applied| applied != key) {
            self.applied.push(key.to_owned());
            self.applied.sort_unstable();
        }
    }

    /// Compares a key's values, and takes the wanted value if the key is reloadable.
    pub(crate) fn take<T: Clone + PartialEq>(
        &mut self,
        key: Option<&Key>,
        running: &mut T,
        wanted: &T,
    ) {
        let Some(key) = key.filter(|_| running != wanted) else { return };
        if key.reloadable {
            running.clone_from(wanted);
            self.applied.push(key.path.to_owned());
        } else {
            self.restart.push(key.path.to_owned());
        }
    }
}

/// Defines a section as a struct with its keys. `in "timeouts."` is the prefix of their names.
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
            const KEYS: &'static [$crate::keys::key::Key] = &[$(
                $crate::keys::key::Key {
                    $($($attribute: $value,)+)?
                    ..$crate::keys::key::Key {
                        path: concat!($prefix, stringify!($field)),
                        about: Self::ABOUT,
                        doc: concat!($($doc),+),
                        ..$crate::keys::key::Key::PLAIN
                    }
                },
            )*];
        }

        impl $crate::keys::table::KeyTable for $name {
            fn visit(&mut self, visit: $crate::keys::table::Visit<'_>) {
                let mut keys = Self::KEYS.iter();
                $(if let Some(key) = keys.next() { visit(key, &mut self.$field); })*
                $($(self.$section.visit(visit);)*)?
            }

            fn take_from(&mut self, wanted: &Self, changes: &mut $crate::keys::table::Changes) {
                let mut keys = Self::KEYS.iter();
                $(changes.take(keys.next(), &mut self.$field, &wanted.$field);)*
                $($(self.$section.take_from(&wanted.$section, changes);)*)?
            }
        }
    };
}

/// Defines the words of a key with a choice. The first is the default.
macro_rules! words {
    (
        $(#[doc = $about:literal])+
        pub enum $name:ident {
            $(#[doc = $first_doc:literal])+ $first:ident = $first_word:literal,
            $($(#[doc = $doc:literal])+ $variant:ident = $word:literal,)*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = $first_doc])+
            #[default]
            $first,
            $($(#[doc = $doc])+ $variant,)*
        }

        impl $crate::keys::setting::Word for $name {
            const WORDS: &'static [(&'static str, Self, &'static str)] = &[
                ($first_word, Self::$first, concat!($($first_doc),+)),
                $(($word, Self::$variant, concat!($($doc),+)),)*
            ];
        }
    };
}

pub(crate) use {table, words};
