//! The `tojson` filter of chat templates: Python's `json.dumps(ensure_ascii=False)`, without
//! escapes for HTML.

use super::python::write_number;
use super::python_json::write_string;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
#[expect(clippy::needless_pass_by_value, reason = "the signature of filters")]
pub(crate) fn tojson(
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let given: Option<Value> = named.get(name)?;
        Ok(given.or_else(|| positional.get(index).cloned()).filter(|value| !value.is_none()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = argument(1, "indent")?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|value| value.is_true());
    named.assert_all_used()?;
    let indent = match indent {
        Some(value) => match value.as_str() {
            Some(text) => Some(text.to_owned()),
            None => Some(" ".repeat(value.as_usize().unwrap_or_default().min(INDENT_MAX))),
        },
        None => None,
    };
    let default_item = if indent.is_some() { "," } else { ", " };
    let separator = |index: usize, default: &str| -> String {
        let given = separators.as_ref().and_then(|pair| pair.get_item_by_index(index).ok());
        given.as_ref().and_then(Value::as_str).unwrap_or(default).to_owned()
    };
    let style = Style {
        ensure_ascii,
        sort_keys,
        item: separator(0, default_item),
        key: separator(1, ": "),
        indent,
        rust: None,
    };
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

/// `tojson` of the Rust frontends, which take only named arguments. SGLang's (`PythonFloats`) takes
/// only `indent`, and ignores the rest.
pub(crate) fn tojson_of(value: &Value, named: &Kwargs, kind: RustJson) -> Result<Value, Error> {
    let named_value = |name: &str| -> Option<Value> {
        named.get::<Option<Value>>(name).ok().flatten().filter(|value| !value.is_none())
    };
    let indent = named_value("indent").map(|value| match value.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(value.as_usize().unwrap_or_default().min(INDENT_MAX)),
    });
    let takes_all = kind == RustJson::ShortFloats;
    let is_set = |name| takes_all && named_value(name).is_some_and(|value| value.is_true());
    let separators = named_value("separators").filter(|_| takes_all);
    let separator = |index: usize, default: &str| -> String {
        let given = separators.as_ref().and_then(|pair| pair.get_item_by_index(index).ok());
        given.as_ref().and_then(Value::as_str).unwrap_or(default).to_owned()
    };
    let style = Style {
        ensure_ascii: is_set("ensure_ascii"),
        sort_keys: is_set("sort_keys"),
        item: separator(0, if indent.is_some() { "," } else { ", " }),
        key: separator(1, ": "),
        indent,
        rust: Some(kind),
    };
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

/// JSON of a Rust frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RustJson {
    /// vLLM: floats as `1e-7`.
    ShortFloats,
    /// SGLang: floats as `1e-07`.
    PythonFloats,
}

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    item: String,
    key: String,
    indent: Option<String>,
    /// Frontend in Rust, which prints undefined values as null.
    rust: Option<RustJson>,
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Undefined if self.rust.is_some() => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.write_number(value, out),
            ValueKind::String => {
                write_string(value.as_str().unwrap_or_default(), self.ensure_ascii, out);
            }
            ValueKind::Map => return self.write_map(value, depth, out),
            ValueKind::Seq | ValueKind::Iterable => return self.write_list(value, depth, out),
            kind => {
                let text = format!("a value of type {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, text));
            }
        }
        Ok(())
    }

    fn write_number(&self, value: &Value, out: &mut String) {
        let short = (self.rust == Some(RustJson::ShortFloats) && !value.is_integer())
            .then(|| serde_json::Number::from_f64(f64::try_from(value.clone()).ok()?))
            .flatten();
        match short {
            Some(number) => out.push_str(&number.to_string()),
            None => write_number(value, out),
        }
    }

    fn write_list(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.start_item(empty, depth, out);
            empty = false;
            self.write(&item, depth + 1, out)?;
        }
        self.close(']', empty, depth, out);
        Ok(())
    }

    fn write_map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        out.push('{');
        for (index, key) in keys.iter().enumerate() {
            self.start_item(index == 0, depth, out);
            match key.as_str() {
                Some(text) => write_string(text, self.ensure_ascii, out),
                None => {
                    // As keys, json.dumps writes numbers, booleans and null as strings.
                    let mut text = String::new();
                    self.write(key, depth + 1, &mut text)?;
                    write_string(&text, self.ensure_ascii, out);
                }
            }
            out.push_str(&self.key);
            self.write(&value.get_item(key)?, depth + 1, out)?;
        }
        self.close('}', keys.is_empty(), depth, out);
        Ok(())
    }

    fn start_item(&self, first: bool, depth: usize, out: &mut String) {
        if !first {
            out.push_str(&self.item);
        }
        self.break_line(depth + 1, out);
    }

    fn close(&self, bracket: char, empty: bool, depth: usize, out: &mut String) {
        if !empty {
            self.break_line(depth, out);
        }
        out.push(bracket);
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }
}

/// The body scan refuses deeper values, and templates do not build deeper values.
const DEPTH_MAX: usize = 256;
/// Widest indent of a level.
const INDENT_MAX: usize = 64;
