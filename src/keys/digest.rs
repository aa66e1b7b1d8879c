//! A key and its hash. A fresh key has 256 random bits, which cannot be guessed from its SHA-256,
//! so a slow salted hash would only add time to each request.

use forebay_base::limits::API_KEY_BYTES_MAX;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::rand::SystemRandom;
use std::fmt::{self, Write};
use subtle::ConstantTimeEq;

/// Prefix of keys of this router, for people and for secret scanners.
pub const KEY_START: &str = "fbk_";
/// Hexadecimal digits of a key that its id repeats. 224 bits stay secret.
const ID_DIGITS: usize = 8;
/// Prefix of a hash in the file.
const HASH_START: &str = "sha256:";

/// SHA-256 of a key. Comparison takes constant time.
#[derive(Clone, Copy, Eq)]
pub struct KeyDigest([u8; SHA256_OUTPUT_LEN]);

/// A newly generated key, shown once.
#[derive(Clone)]
pub struct FreshKey {
    /// The key that the client sends.
    pub key: String,
    /// Prefix of the key, which may appear in the file and the log.
    pub id: String,
}

impl KeyDigest {
    /// Hash of the key that a client sent. `None` if it is longer than any key.
    #[must_use]
    pub fn of(key: &[u8]) -> Option<Self> {
        if key.is_empty() || key.len() > API_KEY_BYTES_MAX {
            return None;
        }
        digest(&SHA256, key).as_ref().try_into().ok().map(Self)
    }

    /// Hash of a token that a client sent, of any length.
    pub(super) fn of_token(token: &[u8]) -> Option<Self> {
        digest(&SHA256, token).as_ref().try_into().ok().map(Self)
    }

    /// Parses the file's form: `sha256:` and 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(HASH_START)?.as_bytes();
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            // `from_str_radix` would accept a sign.
            let pair = std::str::from_utf8(pair).ok().filter(|pair| !pair.contains('+'))?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// The first bytes, used as lookup key. As evenly spread as the hash.
    pub(super) fn start(&self) -> u64 {
        self.0.first_chunk().map_or(0, |start| u64::from_le_bytes(*start))
    }
}

impl PartialEq for KeyDigest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{HASH_START}{}", hexadecimal(&self.0))
    }
}

/// Keeps the hash out of logs.
impl fmt::Debug for KeyDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KeyDigest(..)")
    }
}

impl FreshKey {
    /// Generates a key from the system's random source.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn draw() -> Result<Self, ring::error::Unspecified> {
        let secret: [u8; 32] = ring::rand::generate(&SystemRandom::new())?.expose();
        let key = format!("{KEY_START}{}", hexadecimal(&secret));
        let id = key.get(..KEY_START.len() + ID_DIGITS).unwrap_or(&key).to_owned();
        Ok(Self { key, id })
    }

    /// The hash for the file.
    #[must_use]
    pub fn digest(&self) -> Option<KeyDigest> {
        KeyDigest::of(self.key.as_bytes())
    }
}

impl fmt::Debug for FreshKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "FreshKey({}..)", self.id)
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// FIPS 180-2, appendix B.1: what `printf abc | sha256sum` prints.
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn the_hash_is_that_of_sha256sum() {
        let digest = KeyDigest::of(b"abc").unwrap();
        assert_eq!(digest.to_string(), ABC);
        assert_eq!(KeyDigest::parse(ABC), Some(digest));
        assert_eq!(KeyDigest::parse(&ABC.to_uppercase().replace("SHA", "sha")), Some(digest));
        assert_eq!(format!("{digest:?}"), "KeyDigest(..)");
    }

    #[test]
    fn what_is_no_hash_and_no_key() {
        for text in ["", "sha256:", &ABC[7..], &ABC[..70], &format!("{ABC}0"), "sha256:+1"] {
            assert_eq!(KeyDigest::parse(text), None, "{text}");
        }
        assert_eq!(KeyDigest::parse(&ABC.replacen("ba", "+a", 1)), None);
        assert_eq!(KeyDigest::of(b""), None);
        assert!(KeyDigest::of(&[b'x'; API_KEY_BYTES_MAX]).is_some());
        assert_eq!(KeyDigest::of(&[b'x'; API_KEY_BYTES_MAX + 1]), None);
    }

    #[test]
    fn fresh_keys_differ_and_hide_most_of_themselves() {
        let one = FreshKey::draw().unwrap();
        let other = FreshKey::draw().unwrap();
        assert_ne!(one.key, other.key);
        assert_eq!((one.key.len(), one.id.len()), (68, 12));
        assert!(one.key.starts_with(&one.id) && one.key.bytes().all(|b| b.is_ascii_graphic()));
        assert!(!format!("{one:?}").contains(&one.key));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,80}") {
            if let Some(digest) = KeyDigest::parse(&text) {
                prop_assert_eq!(digest.to_string(), text.to_lowercase());
            }
        }
    }
}
