//! The template engine set up as the Rust frontends of vLLM and SGLang set it up. Both run
//! minijinja with its own printing and filters, so lists print as `["a", none]`, not as
//! `['a', None]`.

use crate::chat::environment::{TEMPLATE, TemplateClock};
use crate::chat::printing::json::{RustJson, tojson_of};
use crate::chat::printing::python::write_number;
use crate::chat::rules::EngineRules;
use forebay_base::limits::TEMPLATE_STEPS_MAX;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, escape_formatter};

/// An environment with a prepared source as its only template.
pub(crate) fn build(
    source: String,
    clock: TemplateClock,
    rules: EngineRules,
) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(TEMPLATE_STEPS_MAX));
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    let style = match rules {
        EngineRules::SglangRust => RustJson::PythonFloats,
        _ => RustJson::ShortFloats,
    };
    environment
        .add_filter("tojson", move |value: &Value, named: Kwargs| tojson_of(value, &named, style));
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
    });
    environment.add_function("strftime_now", move |format: &str| clock.print(format));
    if rules == EngineRules::SglangRust {
        add_sglang(&mut environment);
    }
    environment.add_template_owned(TEMPLATE, source)?;
    Ok(environment)
}

/// What SGLang's renderer adds: floats in Python's notation, `length` of nothing, and `fromjson`.
fn add_sglang(environment: &mut Environment<'static>) {
    environment.set_formatter(print);
    environment.add_filter("string", |state: &State<'_, '_>, value: &Value| {
        float_text(value)
            .map_or_else(|| minijinja::filters::string(state, value), |text| Ok(Value::from(text)))
    });
    environment.add_filter("length", |value: &Value| value.len().unwrap_or(0));
    for name in ["fromjson", "from_json"] {
        environment.add_filter(name, from_json);
    }
}

fn print(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    match float_text(value) {
        Some(text) => {
            out.write_str(&text).map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot write"))
        }
        None => escape_formatter(out, state, value),
    }
}

/// Python's notation of a float; `None` for other values.
fn float_text(value: &Value) -> Option<String> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| {
        let mut text = String::new();
        write_number(value, &mut text);
        text
    })
}

/// Parses a string as JSON; other values stay.
fn from_json(value: Value) -> Result<Value, Error> {
    let Some(text) = value.as_str() else { return Ok(value) };
    let parsed: serde_json::Value = serde_json::from_str(text)
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "cannot parse JSON"))?;
    Ok(Value::from_serialize(parsed))
}
