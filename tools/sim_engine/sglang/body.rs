//! Top-level fields of a body. Unknown fields are ignored, and of a repeated field the last counts,
//! as in SGLang.

use super::error::{ErrorShape, Failure};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;

/// Fields by name, not parsed any further.
pub(super) struct SglangBody<'a>(HashMap<String, &'a RawValue>);

/// A single value, or a value for each of several prompts.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub(super) enum OneOrList<T> {
    One(T),
    List(Vec<T>),
}

impl<T> OneOrList<T> {
    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::List(list) => list,
        }
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self, Self::List(_))
    }
}

impl<'a> SglangBody<'a> {
    /// Reads a JSON object.
    pub(super) fn read(bytes: &'a [u8], shape: ErrorShape) -> Result<Self, Failure> {
        serde_json::from_slice(bytes).map(Self).map_err(|error| {
            Failure::bad_request(match shape {
                ErrorShape::Native => error.to_string(),
                ErrorShape::Openai => format!("Failed to parse the request body as JSON: {error}"),
            })
        })
    }

    /// A field as written; `None` when absent or null.
    pub(super) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied().filter(|value| value.get() != "null")
    }

    /// A field of a given type.
    pub(super) fn get<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, Failure> {
        let parse = |value: &'a RawValue| serde_json::from_str(value.get());
        self.raw(name).map(parse).transpose().map_err(|error| {
            Failure::bad_request(format!(
                "Failed to deserialize the JSON body into the target type: {name}: {error}"
            ))
        })
    }

    /// An integer of 64 bits, or a list of such integers; null is `None` in either place.
    pub(super) fn integers(&self, name: &str) -> Result<Option<OneOrList<Option<i64>>>, Failure> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        let text = value.get();
        let wrong = || Failure::bad_request(type_message(text, "OptionalInt64OrList"));
        if text.starts_with('[') {
            let list: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| wrong())?;
            let numbers = list.iter().map(|one| match one.get() {
                "null" => Ok(None),
                one => integer(one).map(Some),
            });
            return numbers.collect::<Result<_, _>>().map(|list| Some(OneOrList::List(list)));
        }
        integer(text).map(|number| Some(OneOrList::One(Some(number))))
    }

    /// A text, or a list of texts.
    pub(super) fn texts(&self, name: &str) -> Result<Option<OneOrList<String>>, Failure> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(value.get())
            .map(Some)
            .map_err(|_| Failure::bad_request(type_message(value.get(), "OptionalStringOrList")))
    }
}

fn integer(text: &str) -> Result<i64, Failure> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    Err(Failure::bad_request(if is_integer {
        "integer out of range".to_owned()
    } else {
        type_message(text, "OptionalInt64OrList")
    }))
}

fn type_message(text: &str, wanted: &str) -> String {
    let kind = match text.as_bytes().first() {
        Some(b'"') => format!("string {text}"),
        Some(b'{') => "map".to_owned(),
        Some(b'[') => "sequence".to_owned(),
        Some(b't' | b'f') => format!("boolean `{text}`"),
        _ => format!("floating point `{text}`"),
    };
    format!("invalid type: {kind}, expected a value or an array of values for {wanted}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_64_bits_or_lists_of_them() {
        let read = |value: &str| {
            let text = format!(r#"{{"bootstrap_room":1,"bootstrap_room":{value}}}"#);
            let body = SglangBody::read(text.as_bytes(), ErrorShape::Native).expect("JSON");
            body.integers("bootstrap_room").map_err(|failure| failure.message)
        };
        assert_eq!(read("9223372036854775807"), Ok(Some(OneOrList::One(Some(i64::MAX)))));
        assert_eq!(read("-5"), Ok(Some(OneOrList::One(Some(-5)))));
        assert_eq!(read("null"), Ok(None));
        assert_eq!(read("[7, null]"), Ok(Some(OneOrList::List(vec![Some(7), None]))));
        assert_eq!(read("18446744073709551615"), Err("integer out of range".into()));
        let text = "invalid type: string \"12\", expected a value or an array of values for OptionalInt64OrList";
        assert_eq!(read("\"12\""), Err(text.into()));
        assert!(read("1.5").is_err() && read("{}").is_err() && read("[true]").is_err());
    }
}
