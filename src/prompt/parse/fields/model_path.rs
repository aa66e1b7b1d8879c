//! Path of a model: `/v1/models/{id}`.

use super::query::unescaped;
use std::borrow::Cow;

/// A path below `/v1/models/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPath<'a> {
    id: &'a [u8],
}

impl<'a> ModelPath<'a> {
    /// Reads a path, without the query. An id may hold slashes, colons and escapes.
    #[must_use]
    pub fn of(path: &'a [u8]) -> Option<Self> {
        let id = path.strip_prefix(b"/v1/models/").filter(|id| !id.is_empty())?;
        Some(Self { id })
    }

    /// Names that the id may stand for, the likelier first: without escapes, then as it is written,
    /// since a name may hold a percent sign that its client does not escape.
    #[must_use]
    pub fn names(self) -> [Cow<'a, str>; 2] {
        let written = String::from_utf8_lossy(self.id);
        let plain = match unescaped(self.id, b'+') {
            Some(Cow::Owned(plain)) => Cow::Owned(String::from_utf8_lossy(&plain).into_owned()),
            _ => written.clone(),
        };
        [plain, written]
    }
}

#[cfg(test)]
mod tests {
    use super::ModelPath;

    #[test]
    fn an_id_is_read_with_and_without_escapes() {
        for (id, plain) in [
            ("m", "m"),
            ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
            ("Qwen%2FQwen3-8B", "Qwen/Qwen3-8B"),
            ("qwen%2fqwen3", "qwen/qwen3"),
            ("llama3:8b", "llama3:8b"),
            ("llama3%3A8b", "llama3:8b"),
            ("base:lora+v2", "base:lora+v2"),
            ("%D0%BC", "\u{43c}"),
            ("a%20b", "a b"),
            ("100%", "100%"),
            ("%zz", "%zz"),
            ("%FF", "\u{fffd}"),
            ("a/../b", "a/../b"),
            ("/", "/"),
        ] {
            let path = format!("/v1/models/{id}");
            let names = ModelPath::of(path.as_bytes()).unwrap().names();
            assert_eq!((&*names[0], &*names[1]), (plain, id), "{id}");
        }
        for path in ["/v1/models", "/v1/models/", "/v1/model/x", "/v2/models/x", ""] {
            assert_eq!(ModelPath::of(path.as_bytes()), None, "{path}");
        }
    }
}
