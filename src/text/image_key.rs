//! Names of images: what tells an engine, and the router, that two images are the same.

use ring::hmac;
use std::fmt::Write as _;

/// Bytes of a name's hash. Who has not the secret cannot look for two images of one name.
const HASH_BYTES: usize = 16;

/// The secret that names are made with. An engine takes two images of one name for the same one, so
/// clients must not be able to make names: one could put an image under the name of another
/// client's.
#[derive(Clone)]
pub struct ImageKey(hmac::Key);

impl ImageKey {
    /// From the text of a secret.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
    }

    /// The name of an image, from the parts that make it.
    #[must_use]
    pub fn name(&self, parts: &[&[u8]]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            // Joined parts of different images could be the same.
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let tag = context.sign();
        let mut name = String::with_capacity(2 * HASH_BYTES);
        for byte in tag.as_ref().iter().take(HASH_BYTES) {
            let _ = write!(name, "{byte:02x}");
        }
        name
    }
}

impl PartialEq for ImageKey {
    /// True if both make the same names.
    fn eq(&self, other: &Self) -> bool {
        self.name(&[]) == other.name(&[])
    }
}

impl std::fmt::Debug for ImageKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ImageKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_key_and_parts() {
        let names = [
            ImageKey::new("a").name(&[b"x", b"y"]),
            ImageKey::new("b").name(&[b"x", b"y"]),
            ImageKey::new("a").name(&[b"xy", b""]),
            ImageKey::new("a").name(&[b"xy"]),
            ImageKey::new("a").name(&[b"y", b"x"]),
        ];
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert!(names.iter().all(|name| name.len() == 2 * HASH_BYTES));
        assert_eq!(names[0], ImageKey::new("a").name(&[b"x", b"y"]));
        assert!(
            ImageKey::new("a") == ImageKey::new("a") && ImageKey::new("a") != ImageKey::new("b")
        );
        assert_eq!(format!("{:?}", ImageKey::new("secret")), "ImageKey(..)");
    }
}
