//! Types of a tool's parameters, in the notation of TypeScript that Harmony uses for JSON Schema.

use crate::chat::error::RenderError;
use crate::chat::printing::numbers::quick_float;
use crate::chat::printing::python::write_float;
use crate::chat::steps::{count_read, count_written};
use forebay_base::limits::PROMPT_BYTES_MATCHED_MAX;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Spaces that a variant of `oneOf` is indented by.
const VARIANT_INDENT: usize = 3;
/// Spaces that the type of a property is indented by.
const PROPERTY_INDENT: usize = 4;

/// The text of tools.
#[derive(Default)]
pub(super) struct SchemaText {
    text: String,
    /// Start of the last `null` that was looked for and found.
    null_at: Option<usize>,
    /// Bytes that were searched for a `null`.
    #[cfg(test)]
    pub(super) searched_bytes: usize,
}

impl SchemaText {
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    fn push_str(&mut self, text: &str) {
        count_written(text.len());
        self.text.push_str(text);
    }

    fn push(&mut self, character: char) {
        count_written(1);
        self.text.push(character);
    }

    /// Is there a `null` behind `start`? Looks at each byte once, because the caller writes a
    /// `null` where there is none.
    fn has_null(&mut self, start: usize) -> bool {
        if self.null_at.is_none_or(|at| at < start) {
            let written = self.text.get(start..).unwrap_or_default();
            count_read(written.len());
            #[cfg(test)]
            {
                self.searched_bytes += written.len();
            }
            self.null_at = written.rfind("null").map(|at| start + at);
        }
        self.null_at.is_some_and(|at| at >= start)
    }

    /// Ends texts that are longer than what is matched: the indent of nested schemas multiplies
    /// them.
    fn check_length(&self) -> Result<(), RenderError> {
        let is_short = self.text.len() <= PROMPT_BYTES_MATCHED_MAX;
        is_short.then_some(()).ok_or(RenderError::Unsupported("the schemas of tools are too long"))
    }
}

/// Writes the type of a schema. `indent`: spaces before the lines of the type.
pub(super) fn write_type(
    schema: &Value,
    indent: usize,
    out: &mut SchemaText,
) -> Result<(), RenderError> {
    count_read(1);
    out.check_length()?;
    if let Some(variants) = schema.get("oneOf").and_then(Value::as_array) {
        return write_variants(variants, indent, out);
    }
    if let Some(kinds) = schema.get("type").and_then(Value::as_array) {
        let mut names = kinds.iter().filter_map(Value::as_str).map(type_name).peekable();
        if names.peek().is_some() {
            return write_joined(names, out);
        }
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => write_object(schema, indent, out)?,
        Some("string") => write_string_type(schema, out)?,
        Some("number" | "integer") => out.push_str("number"),
        Some("boolean") => out.push_str("boolean"),
        Some("array") => match schema.get("items") {
            Some(items) => {
                write_type(items, indent, out)?;
                out.push_str("[]");
            }
            None => out.push_str("Array<any>"),
        },
        _ => out.push_str("any"),
    }
    Ok(())
}

fn type_name(name: &str) -> &str {
    if name == "integer" { "number" } else { name }
}

fn write_joined<'a>(
    names: impl Iterator<Item = &'a str>,
    out: &mut SchemaText,
) -> Result<(), RenderError> {
    for (index, name) in names.enumerate() {
        out.push_str(if index == 0 { "" } else { " | " });
        out.push_str(name);
    }
    out.check_length()
}

fn write_string_type(schema: &Value, out: &mut SchemaText) -> Result<(), RenderError> {
    let values = schema.get("enum").and_then(Value::as_array);
    let mut texts = values.into_iter().flatten().filter_map(Value::as_str).peekable();
    if texts.peek().is_none() {
        out.push_str("string");
    }
    for (index, text) in texts.enumerate() {
        out.push_str(if index == 0 { "\"" } else { " | \"" });
        out.push_str(text);
        out.push('"');
    }
    out.check_length()
}

fn write_object(schema: &Value, indent: usize, out: &mut SchemaText) -> Result<(), RenderError> {
    if let Some(description) = text_of(schema, "description") {
        write_comment(description, indent, out)?;
    }
    out.push_str("{\n");
    let required = schema.get("required").and_then(Value::as_array);
    let required: HashSet<&str> =
        required.into_iter().flatten().filter_map(Value::as_str).collect();
    count_read(required.len());
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let mark = if required.contains(name.as_str()) { "" } else { "?" };
        write_property_head(property, indent, out)?;
        let variants = property.get("oneOf").and_then(Value::as_array);
        match variants {
            Some(variants) => {
                write_choice_comments(property, variants, indent, out)?;
                write_indent(indent, out);
                out.push_str(name);
                out.push_str(mark);
                out.push_str(":\n");
                write_choices(property, variants, indent, out)?;
            }
            None => {
                write_indent(indent, out);
                out.push_str(name);
                out.push_str(mark);
                out.push_str(": ");
                write_nullable(property, indent + PROPERTY_INDENT, out)?;
                out.push(',');
                if property.get("oneOf").is_none()
                    && let Some(default) = property.get("default")
                {
                    out.push_str(" // ");
                    write_default(property, default, false, out);
                }
                out.push('\n');
            }
        }
    }
    write_indent(indent, out);
    out.push('}');
    out.check_length()
}

/// Comments above every property: title, description, examples.
fn write_property_head(
    property: &Value,
    indent: usize,
    out: &mut SchemaText,
) -> Result<(), RenderError> {
    if let Some(title) = text_of(property, "title") {
        write_comment(title, indent, out)?;
        write_indent(indent, out);
        out.push_str("//\n");
    }
    if property.get("oneOf").is_none()
        && let Some(description) = text_of(property, "description")
    {
        write_comment(description, indent, out)?;
    }
    let examples = property.get("examples").and_then(Value::as_array);
    if let Some(examples) = examples.filter(|examples| !examples.is_empty()) {
        write_comment("Examples:", indent, out)?;
        for example in examples.iter().filter_map(Value::as_str) {
            write_indent(indent, out);
            out.push_str("// - \"");
            out.push_str(example);
            out.push_str("\"\n");
            out.check_length()?;
        }
    }
    out.check_length()
}

/// Comments above a property with `oneOf`: its description, unless the first variant repeats it,
/// and its default.
fn write_choice_comments(
    property: &Value,
    variants: &[Value],
    indent: usize,
    out: &mut SchemaText,
) -> Result<(), RenderError> {
    if let Some(description) = description_above(property, variants) {
        write_comment(description, indent, out)?;
    }
    if let Some(default) = property.get("default") {
        write_indent(indent, out);
        out.push_str("// ");
        write_default(property, default, false, out);
        out.push('\n');
    }
    out.check_length()
}

fn description_above<'a>(property: &'a Value, variants: &[Value]) -> Option<&'a str> {
    let of_first = variants.first().and_then(|variant| text_of(variant, "description"));
    text_of(property, "description").filter(|own| Some(*own) != of_first)
}

/// The variants of a property, a line each.
fn write_choices(
    property: &Value,
    variants: &[Value],
    indent: usize,
    out: &mut SchemaText,
) -> Result<(), RenderError> {
    let own = text_of(property, "description");
    let is_above = description_above(property, variants).is_some();
    for (index, variant) in variants.iter().enumerate() {
        write_indent(indent, out);
        out.push_str(" | ");
        write_nullable(variant, indent + VARIANT_INDENT, out)?;
        let description = text_of(variant, "description");
        let description =
            description.filter(|text| !(index == 0 && is_above) && Some(*text) != own);
        write_trailing(variant, description, false, out);
        out.push('\n');
    }
    write_indent(indent, out);
    out.push_str(",\n");
    Ok(())
}

/// The variants of a schema that is not a property.
fn write_variants(
    variants: &[Value],
    indent: usize,
    out: &mut SchemaText,
) -> Result<(), RenderError> {
    for variant in variants {
        out.push('\n');
        write_indent(indent, out);
        out.push_str(" | ");
        write_nullable(variant, indent + VARIANT_INDENT, out)?;
        write_trailing(variant, text_of(variant, "description"), true, out);
    }
    Ok(())
}

/// A type, with `null` where the schema is `nullable` and the type does not name it.
fn write_nullable(schema: &Value, indent: usize, out: &mut SchemaText) -> Result<(), RenderError> {
    let start = out.text.len();
    write_type(schema, indent, out)?;
    let is_nullable = schema.get("nullable").and_then(Value::as_bool) == Some(true);
    if is_nullable && !out.has_null(start) {
        out.push_str(" | null");
        out.null_at = out.text.len().checked_sub("null".len());
    }
    Ok(())
}

/// A comment behind a variant.
fn write_trailing(
    variant: &Value,
    description: Option<&str>,
    quotes_enums: bool,
    out: &mut SchemaText,
) {
    let default = variant.get("default");
    if description.is_none() && default.is_none() {
        return;
    }
    out.push_str(" // ");
    out.push_str(description.unwrap_or_default());
    if let Some(default) = default {
        out.push_str(if description.is_some() { " " } else { "" });
        write_default(variant, default, quotes_enums, out);
    }
}

/// `default: ` and the value. Texts of enumerations stand without quotes, except where
/// `quotes_enums` is set; other texts are quoted, but not escaped.
fn write_default(schema: &Value, default: &Value, quotes_enums: bool, out: &mut SchemaText) {
    out.push_str("default: ");
    let values = schema.get("enum").and_then(Value::as_array);
    let is_enum = values.is_some_and(|values| !values.is_empty());
    match default {
        Value::String(text) if !is_enum => {
            out.push('"');
            out.push_str(text);
            out.push('"');
        }
        Value::String(text) if !quotes_enums => out.push_str(text),
        other => out.push_str(&as_rust_reads(other).to_string()),
    }
}

/// The value behind vLLM's hands: Python prints the floats, and the library reads these digits.
fn as_rust_reads(value: &Value) -> Value {
    count_read(1);
    match value {
        Value::Array(items) => items.iter().map(as_rust_reads).collect(),
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(key, value)| (key.clone(), as_rust_reads(value))).collect(),
        ),
        Value::Number(number) if number.is_f64() => {
            let mut text = String::new();
            write_float(number.as_f64().unwrap_or_default(), &mut text);
            quick_float(&text).map_or_else(|| value.clone(), Value::from)
        }
        other => other.clone(),
    }
}

fn write_comment(text: &str, indent: usize, out: &mut SchemaText) -> Result<(), RenderError> {
    write_indent(indent, out);
    out.push_str("// ");
    out.push_str(text);
    out.push('\n');
    out.check_length()
}

fn write_indent(indent: usize, out: &mut SchemaText) {
    count_written(indent);
    out.text.extend(std::iter::repeat_n(' ', indent));
}

fn text_of<'a>(schema: &'a Value, key: &str) -> Option<&'a str> {
    schema.get(key)?.as_str()
}

/// Writes the section of tools, from its heading on.
pub(super) fn write_tools(tools: &[Tool<'_>], out: &mut SchemaText) -> Result<(), RenderError> {
    out.push_str("# Tools\n\n## functions\n\nnamespace functions {\n\n");
    for tool in tools {
        for line in tool.description.lines() {
            out.push_str("// ");
            out.push_str(line);
            out.push('\n');
        }
        out.push_str("type ");
        out.push_str(tool.name);
        match tool.parameters {
            Some(parameters) => {
                out.push_str(" = (_: ");
                write_type(parameters, 0, out)?;
                out.push_str(") => any;\n\n");
            }
            None => out.push_str(" = () => any;\n\n"),
        }
    }
    out.push_str("} // namespace functions");
    out.check_length()
}

/// A function that the request offers.
pub(super) struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    parameters: Option<&'a Value>,
}

impl<'a> Tool<'a> {
    /// Reads the object with the name; `None` for an object that the engine refuses.
    pub(super) fn read(function: &'a Map<String, Value>) -> Option<Self> {
        let name = function.get("name")?.as_str()?;
        let description = match function.get("description") {
            None | Some(Value::Null) => "",
            Some(description) => description.as_str()?,
        };
        let parameters = function.get("parameters").filter(|parameters| !parameters.is_null());
        parameters.is_none_or(Value::is_object).then_some(Self { name, description, parameters })
    }
}
