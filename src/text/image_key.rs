//! Names of images, by which engines and the router compare images.

use ring::hmac;
use std::fmt::Write as _;

/// Bytes of a name's hash. Without the secret no client can search for two images with the same
/// name.
const HASH_BYTES: usize = 16;

/// Secret that names depend on. Engines treat two images with the same name as equal, so a client
/// must not be able to compute names: it could give its image the name of another client's image.
#[derive(Clone)]
pub struct ImageKey(hmac::Key);

impl ImageKey {
    /// A key from the text of a secret.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
    }

    /// The name of an image, from the parts that identify the image.
    #[must_use]
    pub fn name(&self, parts: &[&[u8]]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            // Without lengths, joined parts of different images could be equal.
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
    /// True if both keys give the same names.
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
