//! All keys, indexed for lookup. Immutable: a reload creates another key ring.

use super::digest::KeyDigest;
use ahash::AHashMap;

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

/// The keys of a file.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    keys: Vec<StoredKey>,
    /// Positions by the first bytes of the hash, which [`KeyRing::new`] makes unique.
    places: AHashMap<u64, usize>,
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
        Self { keys, places, is_emptied: false }
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
