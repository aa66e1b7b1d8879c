//! The template engine set up as Hugging Face `transformers` sets up Jinja2 for chat templates:
//! blocks trimmed, loop controls, `tojson` without HTML escapes, `raise_exception`, `strftime_now`,
//! Python's methods and printing.

use super::date::{strftime, unix_seconds_now};
use super::methods;
use super::printing::json::tojson;
use super::printing::python::{is_space, write_str};
use super::source::prepare;
use forebay_base::limits::TEMPLATE_STEPS_MAX;
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};

/// Result of `strftime_now` in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplateClock {
    /// The date of the system clock.
    System,
    /// The format between two marks, to learn where a template prints the date.
    Marks,
}

impl TemplateClock {
    /// Result of `strftime_now` with this format.
    pub(super) fn print(self, format: &str) -> String {
        match self {
            Self::System => strftime(format, unix_seconds_now()),
            Self::Marks => format!("{DATE_START}{format}{DATE_END}"),
        }
    }
}

/// Name of the chat template in its environment.
pub(super) const TEMPLATE: &str = "chat";
/// Opens a format of [`TemplateClock::Marks`]. A noncharacter, so no template text contains it.
pub(super) const DATE_START: char = '\u{fdd0}';
/// Closes a format of [`TemplateClock::Marks`].
pub(super) const DATE_END: char = '\u{fdd1}';

/// An environment with `source` as its only template.
pub(super) fn build(source: &str, clock: TemplateClock) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(TEMPLATE_STEPS_MAX));
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(print);
    environment.add_filter("tojson", tojson);
    environment.add_filter("trim", trim);
    environment.add_filter("string", |value: &Value| text_of(value));
    environment.add_filter("upper", |value: &Value| text_of(value).to_uppercase());
    environment.add_filter("lower", |value: &Value| text_of(value).to_lowercase());
    environment.add_filter("items", |value: &Value| match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => minijinja::filters::items(value),
    });
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.is_undefined() {
            true => Ok(0),
            false => minijinja::filters::length(value),
        });
    }
    // An undefined value counts as an empty list.
    environment.add_test("sequence", |value: &Value| {
        let kind = value.kind();
        matches!(kind, ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number)
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: &str| clock.print(format));
    environment.add_template_owned(TEMPLATE, prepare(source))?;
    Ok(environment)
}

/// Prints a value as `{{ value }}` does.
fn print(out: &mut Output<'_>, _state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&text_of(value)),
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot write"))
}

/// The text of Python's `str(value)`.
fn text_of(value: &Value) -> String {
    let mut text = String::new();
    write_str(value, &mut text);
    text
}

/// Jinja's filter `trim`: `str(value).strip(chars)`.
fn trim(value: &Value, characters: Option<&str>) -> String {
    let text = text_of(value);
    let stripped =
        |character: char| characters.map_or(is_space(character), |set| set.contains(character));
    text.trim_matches(stripped).to_owned()
}

#[cfg(test)]
mod tests {
    use super::{TEMPLATE, TemplateClock, build};

    fn render(source: &str, variables: &str) -> String {
        let variables: serde_json::Value = serde_json::from_str(variables).unwrap();
        let environment = build(source, TemplateClock::System).unwrap();
        environment.get_template(TEMPLATE).unwrap().render(variables).unwrap()
    }

    #[test]
    fn prints_and_trims_as_python_does() {
        let variables = r#"{"t": true, "n": null, "l": ["a", 1.0], "s": " \u001fx\u00a0 "}"#;
        assert_eq!(
            render("{{ t }}|{{ n }}|{{ l }}|{{ missing }}", variables),
            "True|None|['a', 1.0]|"
        );
        assert_eq!(
            render("[{{ s | trim }}][{{ s.strip() }}][{{ s.lstrip() }}]", variables),
            "[x][x][x\u{a0} ]"
        );
        assert_eq!(
            render("{{ 'a b  c'.split() }}{{ 'xax'.strip('x') }}", "{}"),
            "['a', 'b', 'c']a"
        );
        assert_eq!(
            render("{{ 'a-b-c'.rsplit('-', 1) }}{{ 'a-b'.partition('-')[2] }}", "{}"),
            "['a-b', 'c']b"
        );
        assert_eq!(render("{{ 'abc'.removeprefix('a').removesuffix('c') }}", "{}"), "b");
    }

    #[test]
    fn tojson_is_json_dumps() {
        let variables = r#"{"v": {"b": "<é'&\u0001>", "a": [1, 2.50, null, true, {}, []]}}"#;
        assert_eq!(
            render("{{ v | tojson }}", variables),
            "{\"b\": \"<é'&\\u0001>\", \"a\": [1, 2.5, null, true, {}, []]}"
        );
        assert_eq!(
            render("{{ v | tojson(indent=2) }}", variables),
            "{\n  \"b\": \"<é'&\\u0001>\",\n  \"a\": [\n    1,\n    2.5,\n    null,\n    true,\n    {},\n    []\n  ]\n}"
        );
        assert_eq!(
            render("{{ v.a | tojson(separators=(',', ':')) }}", variables),
            "[1,2.5,null,true,{},[]]"
        );
        assert_eq!(
            render(
                "{{ v | tojson(ensure_ascii=true, sort_keys=true) }}",
                r#"{"v": {"b": "é😀", "a": 1}}"#
            ),
            "{\"a\": 1, \"b\": \"\\u00e9\\ud83d\\ude00\"}"
        );
    }

    #[test]
    fn blocks_are_trimmed_and_one_last_newline_dropped() {
        assert_eq!(render("  {% if true %}\n a\n  {% endif %}\nb\n\n", "{}"), " a\nb\n");
        assert_eq!(
            render(
                "{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
                "{}"
            ),
            "13"
        );
        assert_eq!(render("a\r\n{%- generation -%} x {%- endgeneration %}\r\nb", "{}"), "axb");
    }

    #[test]
    fn strings_and_mappings_are_sequences() {
        assert_eq!(
            render(
                "{{ 'a' is sequence }}{{ {} is iterable }}{{ 1 is iterable }}{{ none is sequence }}{{ x is iterable }}",
                "{}"
            ),
            "TrueTrueFalseFalseTrue"
        );
    }
}
