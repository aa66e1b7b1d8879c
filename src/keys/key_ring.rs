//! All keys, indexed for lookup. Immutable: a reload creates another key ring.

use super::digest::KeyDigest;
use ahash::{AHashMap, AHashSet};

/// A key and its rights. Limits of its tenant are in `[[tenant]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKey {
    /// Id for logs; unique in the file.
    pub id: String,
    /// Hash of the key.
    pub digest: KeyDigest,
    /// Tenant that owns the key.
    pub tenant: String,
    /// Models that the key may use; empty: all.
    pub models: Vec<String>,
    /// Best class of the key's requests; `None`: `queue.class_default`.
    pub class_best: Option<u8>,
    /// Creation time as text.
    pub created: String,
}

/// A model that a key may use, and that is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnservedModel<'a> {
    /// Position of the key in [`KeyRing::keys`].
    pub position: usize,
    /// Id of the key.
    pub key: &'a str,
    /// Name of the model.
    pub model: &'a str,
}

/// The keys of a file.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    keys: Vec<StoredKey>,
    /// Positions by the first bytes of the hash, which [`KeyRing::new`] makes unique.
    places: AHashMap<u64, usize>,
    /// Lines of the keys in their file, from 1. Empty for keys of no file.
    lines: Vec<usize>,
    /// The file has no keys on purpose.
    is_emptied: bool,
}

impl KeyRing {
    /// If the hashes of two keys begin alike, the first key counts; [`super::parse`] refuses a file
    /// with such keys.
    #[must_use]
    pub fn new(keys: Vec<StoredKey>) -> Self {
        let mut places = AHashMap::with_capacity(keys.len());
        for (position, key) in keys.iter().enumerate() {
            places.entry(key.digest.start()).or_insert(position);
        }
        Self { keys, places, lines: Vec::new(), is_emptied: false }
    }

    /// The ring with the line of each key.
    pub(crate) fn at_lines(self, lines: Vec<usize>) -> Self {
        debug_assert_eq!(lines.len(), self.keys.len(), "a line for each key");
        Self { lines, ..self }
    }

    /// Without keys, on purpose.
    #[must_use]
    pub fn emptied() -> Self {
        Self { is_emptied: true, ..Self::default() }
    }

    /// True if the file states that there are no keys. An empty file may be incomplete.
    #[must_use]
    pub const fn is_emptied(&self) -> bool {
        self.is_emptied
    }

    /// The key with that hash, and its position. A client chooses a key, not its hash, so the time
    /// of the lookup leaks nothing about keys. The comparison takes constant time.
    #[must_use]
    pub fn find(&self, digest: &KeyDigest) -> Option<(usize, &StoredKey)> {
        let position = *self.places.get(&digest.start())?;
        let key = self.keys.get(position).filter(|key| key.digest == *digest)?;
        Some((position, key))
    }

    /// Line of the key at that position of [`Self::keys`], from 1; of the models that the key is
    /// limited to, if there are any.
    #[must_use]
    pub fn line(&self, position: usize) -> usize {
        self.lines.get(position).copied().unwrap_or(1)
    }

    /// Models of keys that are not served, each at its first key: many keys have the same models.
    #[must_use]
    pub fn unserved_models(&self, is_served: impl Fn(&str) -> bool) -> Vec<UnservedModel<'_>> {
        let mut seen = AHashSet::new();
        let keys = self.keys.iter().enumerate();
        let models = keys.flat_map(|(position, StoredKey { id, models, .. })| {
            models.iter().map(move |model| UnservedModel { position, key: id, model })
        });
        models.filter(|of| seen.insert(of.model) && !is_served(of.model)).collect()
    }

    /// All keys in file order.
    #[must_use]
    pub fn keys(&self) -> &[StoredKey] {
        &self.keys
    }
}

/// Rings without keys are equal, emptied on purpose or not: both refuse all clients.
impl PartialEq for KeyRing {
    fn eq(&self, other: &Self) -> bool {
        self.keys == other.keys
    }
}

impl Eq for KeyRing {}

impl StoredKey {
    /// True if the key may use that model.
    #[must_use]
    pub fn may_use(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|name| name == model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: &str, models: &[&str]) -> StoredKey {
        StoredKey {
            id: secret.to_owned(),
            digest: KeyDigest::of(secret.as_bytes()).unwrap(),
            tenant: "t".to_owned(),
            models: models.iter().map(|&name| name.to_owned()).collect(),
            class_best: None,
            created: String::new(),
        }
    }

    #[test]
    fn a_key_is_found_by_its_hash_alone() {
        let ring = KeyRing::new(vec![key("one", &[]), key("two", &["m"])]);
        let find = |secret: &str| {
            ring.find(&KeyDigest::of(secret.as_bytes()).unwrap()).map(|(at, key)| (at, &*key.id))
        };
        assert_eq!((find("one"), find("two")), (Some((0, "one")), Some((1, "two"))));
        assert_eq!((find("tw"), find("twoo"), find("Two")), (None, None, None));
    }

    /// Issue 39: each request with such a key was refused, and no check named the key.
    #[test]
    fn a_model_that_is_not_served_is_found_at_its_first_key() {
        let keys = [key("a", &[]), key("b", &["m", "x"]), key("c", &["x", "y"])];
        let ring = KeyRing::new(keys.to_vec());
        let found = ring.unserved_models(|name| name == "m");
        let places: Vec<_> = found.iter().map(|of| (of.position, of.key, of.model)).collect();
        assert_eq!(places, [(1, "b", "x"), (2, "c", "y")]);
    }

    #[test]
    fn a_hash_that_only_begins_alike_is_another_one() {
        let ring = KeyRing::new(vec![key("one", &[])]);
        let own = ring.keys()[0].digest.to_string();
        let alike = format!("{}{}", &own[..own.len() - 1], if own.ends_with('0') { 1 } else { 0 });
        let alike = KeyDigest::parse(&alike).unwrap();
        assert_eq!(alike.start(), ring.keys()[0].digest.start());
        assert_eq!(ring.find(&alike), None);
    }

    #[test]
    fn models_are_names_to_the_letter() {
        assert!(key("k", &[]).may_use("anything"));
        let limited = key("k", &["a", "b"]);
        assert!(limited.may_use("a") && limited.may_use("b"));
        assert!(!limited.may_use("A") && !limited.may_use("ab") && !limited.may_use(""));
    }
}
