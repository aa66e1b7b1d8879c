//! `log.format`: template of a request's log record, with fields in braces.

use crate::keys::nearest::nearest;

/// Parts of a format in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFormat(Vec<FormatPart>);

/// Literal text or a field.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FormatPart {
    Text(String),
    Field(RecordField),
}

/// Defines the fields with their names.
macro_rules! fields {
    ($($field:ident = $name:literal,)+) => {
        /// A field of a request's record.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RecordField {
            $($field,)+
        }

        impl RecordField {
            /// All fields with their names.
            pub const ALL: &'static [(&'static str, Self)] = &[$(($name, Self::$field),)+];
        }
    };
}

fields! {
    CachedTokens = "cached_tokens",
    Cause = "cause",
    ChoiceReason = "because",
    Client = "client",
    Continued = "continued",
    DpRank = "dp_rank",
    Endpoint = "endpoint",
    Method = "method",
    Model = "model",
    Outcome = "outcome",
    OutputTokens = "output_tokens",
    Path = "path",
    Peer = "peer",
    PromptTokens = "prompt_tokens",
    QueueMs = "queue_ms",
    ReadMs = "read_ms",
    RequestId = "request_id",
    Status = "status",
    Stream = "stream",
    Tenant = "tenant",
    TotalMs = "total_ms",
    TraceId = "trace_id",
    TtftMs = "ttft_ms",
    Worker = "worker",
}

impl RecordFormat {
    /// Parses a format. `{{` and `}}` are literal braces.
    ///
    /// # Errors
    /// The fault: an unbalanced brace, or an unknown name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        if text.contains(char::is_control) {
            return Err("a record is one line without control characters".into());
        }
        while let Some(at) = rest.find(['{', '}']) {
            let (before, brace) = rest.split_at(at);
            plain.push_str(before);
            if let Some(after) = brace.strip_prefix("{{").or_else(|| brace.strip_prefix("}}")) {
                plain.extend(brace.chars().take(1));
                rest = after;
                continue;
            }
            let named = brace.strip_prefix('{').and_then(|inner| inner.split_once('}'));
            let Some((name, after)) = named else {
                return Err("a brace has no other one; write {{ or }} for the brace itself".into());
            };
            if !plain.is_empty() {
                parts.push(FormatPart::Text(std::mem::take(&mut plain)));
            }
            parts.push(FormatPart::Field(field(name)?));
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(FormatPart::Text(plain));
        }
        Ok(Self(parts))
    }

    /// Does a record have anything of its request?
    pub(crate) fn has_fields(&self) -> bool {
        self.0.iter().any(|part| matches!(part, FormatPart::Field(_)))
    }

    /// Formats a record; `value` appends a field's value.
    pub fn write(&self, mut value: impl FnMut(RecordField, &mut Vec<u8>)) -> String {
        let mut line = String::new();
        let mut raw = Vec::new();
        for part in &self.0 {
            match part {
                FormatPart::Text(text) => line.push_str(text),
                FormatPart::Field(field) => {
                    raw.clear();
                    value(*field, &mut raw);
                    escape(&raw, &mut line);
                }
            }
        }
        line
    }
}

fn field(name: &str) -> Result<RecordField, String> {
    let found = RecordField::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, field)| *field).ok_or_else(|| {
        let names: Vec<&str> = RecordField::ALL.iter().map(|(name, _)| *name).collect();
        match &*nearest(name, &names, |near| format!("{{{near}}}")) {
            "" => format!("{{{name}}} is no field; there are {}", names.join(", ")),
            near => format!("{{{name}}} is no field; did you mean {near}?"),
        }
    })
}

/// Escapes all but visible ASCII as `\x0a`, quotes and backslashes included, so that a value cannot
/// be confused with the text around it. An empty value is a dash.
fn escape(raw: &[u8], line: &mut String) {
    if raw.is_empty() {
        line.push('-');
    }
    for &byte in raw {
        if byte.is_ascii_graphic() && !b"\"'\\".contains(&byte) {
            line.push(char::from(byte));
        } else {
            line.push_str(&format!("\\x{byte:02x}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: &str, value: &str) -> String {
        let put = |_, raw: &mut Vec<u8>| raw.extend_from_slice(value.as_bytes());
        RecordFormat::parse(format).unwrap().write(put)
    }

    #[test]
    fn a_value_forges_neither_a_line_nor_a_column() {
        assert_eq!(written("{client} \"{model}\"", "m"), "m \"m\"");
        assert_eq!(written("{{{path}}}", ""), "{-}");
        let forged = "m\n1.2.3.4 \"x\\\u{2028}\u{1b}[0m";
        let line = written("{model}", forged);
        assert_eq!(line, "m\\x0a1.2.3.4\\x20\\x22x\\x5c\\xe2\\x80\\xa8\\x1b[0m");
    }

    #[test]
    fn an_unknown_field_is_told_with_the_nearest() {
        for (format, says) in [
            ("{modle}", "did you mean {model}?"),
            ("{zebra}", "there are cached_tokens, cause"),
            ("{model", "has no other one"),
            ("model}", "has no other one"),
            ("a\nb", "one line"),
        ] {
            let fault = RecordFormat::parse(format).unwrap_err();
            assert!(fault.contains(says), "{fault}");
        }
    }
}
