//! The key file as text: parsed with the place of each fault, edited without changes to other
//! lines.
//!
//! ```toml
//! [[key]]
//! id = "fbk_1a2b3c4d"
//! hash = "sha256:…"
//! tenant = "search"
//! models = ["qwen3-8b"]     # absent: all models
//! class_best = 1            # absent: queue.class_default
//! created = "2026-11-23T15:04:05Z"
//! ```
//!
//! `key = []` means that there are no keys. A file without `key` may be incomplete.

use super::digest::KeyDigest;
use super::key_ring::{KeyRing, StoredKey};
use forebay_base::limits::{
    API_KEY_MODELS_MAX, API_KEYS_MAX, MODEL_NAME_BYTES_MAX, QUEUE_CLASSES, TENANT_NAME_BYTES_MAX,
};
use forebay_base::{TomlFault, foreign_format};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use toml_edit::{Array, ArrayOfTables, Document, DocumentMut, Item, Table, TableLike, value};

/// Name of the list of tables.
const LIST: &str = "key";

/// A fault of a key file with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFault {
    /// Line of the file, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Description of the fault.
    pub what: String,
    /// Advice; may be empty.
    pub help: Cow<'static, str>,
}

/// Parses the text of a key file.
///
/// # Errors
/// All faults, in the order of the file.
pub fn parse(text: &str) -> Result<KeyRing, Vec<KeyFault>> {
    let mut reader = KeyReader { text, faults: Vec::new(), places: Vec::new(), is_emptied: false };
    let mut keys = Vec::new();
    match Document::parse(text) {
        Ok(document) => keys = reader.root(document.as_table()),
        Err(error) => {
            let TomlFault { at, what, help } =
                TomlFault::of(text, error.message(), error.span(), &[LIST]);
            match foreign_format(text) {
                Some(format) => {
                    let what = format!(
                        "`api_keys`: the file looks like {format}, and has to be TOML: {what}"
                    );
                    reader.fault(error.span(), what, "write it with `forebay key add`");
                }
                None => reader.fault(Some(at..at), format!("`api_keys`: {what}"), help),
            }
        }
    }
    let KeyReader { mut faults, places, is_emptied, .. } = reader;
    if faults.is_empty() {
        let ring = || KeyRing::new(keys).at_lines(lines_of(text, &places));
        return Ok(if is_emptied { KeyRing::emptied() } else { ring() });
    }
    faults.sort_by_key(|fault| (fault.line, fault.column));
    Err(faults)
}

/// Lines of places in a text, from 1. Files of keys are long, so line breaks are counted once.
fn lines_of(text: &str, places: &[usize]) -> Vec<usize> {
    let breaks: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    places.iter().map(|place| breaks.partition_point(|at| at < place) + 1).collect()
}

/// The text with a key added at its end.
///
/// # Errors
/// The text is no TOML.
pub fn add(text: &str, key: &StoredKey) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    let mut table = Table::new();
    table.insert("id", value(&key.id));
    table.insert("hash", value(key.digest.to_string()));
    table.insert("tenant", value(&key.tenant));
    if !key.models.is_empty() {
        table.insert("models", value(key.models.iter().collect::<Array>()));
    }
    if let Some(class) = key.class_best {
        table.insert("class_best", value(i64::from(class)));
    }
    table.insert("created", value(&key.created));
    if document.get(LIST).is_some_and(is_no_key) {
        document.remove(LIST);
    }
    let list = document.entry(LIST).or_insert_with(|| ArrayOfTables::new().into());
    let list = list.as_array_of_tables_mut().ok_or("write keys as [[key]] tables")?;
    list.push(table);
    Ok(document.to_string())
}

/// The text without the key of that id.
///
/// # Errors
/// The text is no TOML, or has no such key.
pub fn remove(text: &str, id: &str) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    let list = document.get_mut(LIST).and_then(Item::as_array_of_tables_mut);
    let list = list.ok_or("there are no [[key]] tables")?;
    let before = list.len();
    list.retain(|table| table.get("id").and_then(Item::as_str) != Some(id));
    if list.len() == before {
        return Err(format!("there is no key {id:?}"));
    }
    if list.is_empty() {
        document.insert(LIST, value(Array::new()));
    }
    Ok(document.to_string())
}

/// True for `key = []`, which means no keys.
fn is_no_key(item: &Item) -> bool {
    item.as_array().is_some_and(Array::is_empty)
}

struct KeyReader<'a> {
    text: &'a str,
    faults: Vec<KeyFault>,
    /// Byte offsets of the keys without a fault.
    places: Vec<usize>,
    /// The file contains `key = []`.
    is_emptied: bool,
}

impl KeyReader<'_> {
    fn root(&mut self, root: &dyn TableLike) -> Vec<StoredKey> {
        let mut keys = Vec::new();
        let mut seen = HashMap::new();
        for (name, item) in root.iter() {
            if name == LIST && is_no_key(item) {
                self.is_emptied = true;
                continue;
            }
            let span = item.span().or_else(|| root.key(name).and_then(toml_edit::Key::span));
            let tables = item.as_array_of_tables().filter(|_| name == LIST);
            let Some(tables) = tables else {
                self.fault(span, format!("`{name}` is no [[key]] table"), "remove it");
                continue;
            };
            for table in tables {
                if keys.len() >= API_KEYS_MAX {
                    let what = format!("more than {API_KEYS_MAX} keys");
                    self.fault(table.span(), what, "remove keys that are not used");
                    return keys;
                }
                if let Some(key) = self.key(table) {
                    self.repeated(table, &key, &mut seen);
                    let models = table.get("models").and_then(Item::span);
                    let span = models.or_else(|| table.span());
                    self.places.push(span.map_or(0, |span| span.start));
                    keys.push(key);
                }
            }
        }
        keys
    }

    /// Two keys with the same id would be indistinguishable; of two with the same hash only the
    /// first would count.
    fn repeated(&mut self, table: &Table, key: &StoredKey, seen: &mut HashMap<String, ()>) {
        let start = format!("{:x}", key.digest.start());
        for (name, mark) in [("id", key.id.clone()), ("hash", start)] {
            if seen.insert(format!("{name} {mark}"), ()).is_some() {
                let span = table.get(name).and_then(Item::span);
                let what = format!("the key {:?} has the {name} of another one", key.id);
                self.fault(span, what, "remove one of the two");
            }
        }
    }

    fn key(&mut self, table: &Table) -> Option<StoredKey> {
        let faults_before = self.faults.len();
        let mut id = None;
        let mut digest = None;
        let mut tenant = None;
        let mut models = Vec::new();
        let mut class_best = None;
        let mut created = String::new();
        for (name, item) in table {
            let place =
                MemberSpan(item.span().or_else(|| table.key(name).and_then(|key| key.span())));
            match name {
                "id" => id = self.word(&place, name, item),
                "tenant" => tenant = self.word(&place, name, item),
                "hash" => {
                    digest = item.as_str().and_then(KeyDigest::parse);
                    if digest.is_none() {
                        let help = "write `sha256:` and the 64 digits of sha256sum";
                        self.fault(place.0, "`hash` is no SHA-256", help);
                    }
                }
                "models" => models = self.models(&place, item),
                "class_best" => class_best = self.class(&place, item),
                "created" => created = item.as_value().map(shown).unwrap_or_default(),
                // A mistyped `models` would allow all models.
                _ => {
                    let known = "a key has id, hash, tenant, models, class_best and created";
                    self.fault(place.0, format!("unknown member `{name}` of a key"), known);
                }
            }
        }
        if self.faults.len() > faults_before {
            return None;
        }
        match (id, digest, tenant) {
            (Some(id), Some(digest), Some(tenant)) => {
                Some(StoredKey { id, digest, tenant, models, class_best, created })
            }
            _ => {
                let what = "a key has no `id`, no `hash` or no `tenant`";
                self.fault(table.span(), what, "`forebay key add` writes all of them");
                None
            }
        }
    }

    /// Names appear in logs, metrics and the command line.
    fn word(&mut self, place: &MemberSpan, name: &str, item: &Item) -> Option<String> {
        let is_word = |text: &&str| {
            (1..=TENANT_NAME_BYTES_MAX).contains(&text.len())
                && text.bytes().all(|byte| (0x21..0x7f).contains(&byte))
        };
        let word = item.as_str().filter(is_word);
        if word.is_none() {
            let what = format!(
                "`{name}` is no text of 1 to {TENANT_NAME_BYTES_MAX} visible ASCII characters \
                 without spaces"
            );
            self.fault(place.0.clone(), what, "");
        }
        word.map(str::to_owned)
    }

    fn models(&mut self, place: &MemberSpan, item: &Item) -> Vec<String> {
        let is_name = |name: &&str| !name.is_empty() && name.len() <= MODEL_NAME_BYTES_MAX;
        let names: Option<Vec<String>> = item.as_array().and_then(|list| {
            let named = list.iter().map(|name| name.as_str().filter(is_name).map(str::to_owned));
            named.collect()
        });
        match names {
            Some(names) if (1..=API_KEY_MODELS_MAX).contains(&names.len()) => names,
            _ => {
                let what = format!("`models` is no list of 1 to {API_KEY_MODELS_MAX} names");
                self.fault(place.0.clone(), what, "leave it out for all models");
                Vec::new()
            }
        }
    }

    fn class(&mut self, place: &MemberSpan, item: &Item) -> Option<u8> {
        let number = item.as_integer().and_then(|class| u8::try_from(class).ok());
        let class = number.filter(|class| *class < QUEUE_CLASSES);
        if class.is_none() {
            let what = format!("`class_best` is no class, 0 to {}", QUEUE_CLASSES - 1);
            self.fault(place.0.clone(), what, "");
        }
        class
    }

    fn fault(
        &mut self,
        span: Option<Range<usize>>,
        what: impl Into<String>,
        help: impl Into<Cow<'static, str>>,
    ) {
        let before = span.and_then(|span| self.text.get(..span.start)).unwrap_or("");
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        self.faults.push(KeyFault {
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or("").chars().count() + 1,
            what: what.into(),
            help: help.into(),
        });
    }
}

/// Place of a member in the file.
struct MemberSpan(Option<Range<usize>>);

/// A time may be written with or without quotes.
fn shown(value: &toml_edit::Value) -> String {
    value.as_str().map_or_else(|| value.to_string().trim().to_owned(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HASH: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn stored(id: &str, secret: &str, models: &[&str], class_best: Option<u8>) -> StoredKey {
        StoredKey {
            id: id.to_owned(),
            digest: KeyDigest::of(secret.as_bytes()).unwrap(),
            tenant: "search".to_owned(),
            models: models.iter().map(|&name| name.to_owned()).collect(),
            class_best,
            created: "2026-11-23T15:04:05Z".to_owned(),
        }
    }

    #[test]
    fn what_is_added_is_read_and_what_is_removed_is_gone() {
        let one = stored("a", "x", &["m", "n"], Some(0));
        let other = stored("b", "y", &[], None);
        let one_more = stored("c", "z", &[], None);
        let begun = "# Ours, do not touch.\n";
        let text = add(&add(begun, &one).unwrap(), &other).unwrap();
        assert!(text.contains(begun), "{text}");
        assert_eq!(parse(&text).unwrap().keys(), [one, other.clone()]);
        let left = remove(&text, "a").unwrap();
        assert_eq!(parse(&left).unwrap().keys(), [other]);
        assert_eq!(remove(&left, "a").unwrap_err(), "there is no key \"a\"");
        assert_eq!(parse("").unwrap().keys(), []);
        assert!(!parse("# keys\n").unwrap().is_emptied());
        let none = remove(&left, "b").unwrap();
        assert!(none.starts_with("key = []\n"), "{none}");
        assert!(parse(&none).unwrap().is_emptied());
        let again = add(&none, &one_more).unwrap();
        assert_eq!(parse(&again).unwrap().keys(), [one_more]);
        assert_eq!(remove("", "a").unwrap_err(), "there are no [[key]] tables");
    }

    #[test]
    fn each_fault_has_its_line() {
        let rest = format!("id = \"a\"\nhash = \"{HASH}\"\ntenant = \"t\"\n");
        for (text, line, what) in [
            ("[[key]\n", 1, "the name of a table has no ]"),
            ("[[key]]\nid = “a”\n", 2, "a typographic quotation mark"),
            ("[key]\nid = \"a\"\n[key]\n", 3, "duplicate key `key`"),
            ("key = 3\n", 1, "`key` is no [[key]] table"),
            ("[[key]]\nid = \"a\"\n", 1, "a key has no `id`, no `hash` or no `tenant`"),
            ("[[key]]\nhash = \"abc\"\n", 2, "`hash` is no SHA-256"),
            ("[[key]]\nid = \"a b\"\n", 2, "`id` is no text"),
            ("[[key]]\ntenant = \"\"\n", 2, "`tenant` is no text"),
            (&format!("[[key]]\n{rest}model = [\"m\"]\n"), 5, "unknown member `model`"),
            (&format!("[[key]]\n{rest}models = []\n"), 5, "`models` is no list"),
            (&format!("[[key]]\n{rest}models = \"m\"\n"), 5, "`models` is no list"),
            (&format!("[[key]]\n{rest}class_best = 4\n"), 5, "`class_best` is no class"),
            (&format!("[[key]]\n{rest}[[key]]\n{rest}"), 6, "has the id of another one"),
            (
                &format!("[[key]]\n{rest}[[key]]\n{}", rest.replace("\"a\"", "\"b\"")),
                7,
                "has the hash of another one",
            ),
        ] {
            let faults = parse(text).unwrap_err();
            let first = &faults[0];
            assert!(first.line == line && first.what.contains(what), "{text}: {faults:?}");
        }
    }

    #[test]
    fn a_key_has_the_line_of_its_models() {
        let table = |id: &str, rest: &str| {
            let digest = KeyDigest::of(id.as_bytes()).unwrap();
            format!("[[key]]\nid = \"{id}\"\nhash = \"{digest}\"\ntenant = \"t\"\n{rest}")
        };
        let text = table("a", "") + &table("b", "models = [\"m\"]\n");
        let ring = parse(&text).unwrap();
        assert_eq!([0, 1, 2].map(|position| ring.line(position)), [1, 9, 1]);
    }

    #[test]
    fn more_keys_than_the_limit_are_refused() {
        let mut text = String::new();
        for number in 0..=API_KEYS_MAX {
            let digest = KeyDigest::of(&number.to_le_bytes()).unwrap();
            text += &format!("[[key]]\nid = \"{number}\"\nhash = \"{digest}\"\ntenant = \"t\"\n");
        }
        let faults = parse(&text).unwrap_err();
        assert!(faults[0].what.contains("more than"), "{faults:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(
            text in "(\\[\\[key\\]\\]|[a-z_]{1,6}|=|\\[|\\]|\"|[0-9]|\n| ){0,40}",
        ) {
            let _ = parse(&text);
        }
    }
}
