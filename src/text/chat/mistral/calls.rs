//! Calls of tools, and tools that a request offers.

use crate::chat::error::RenderError;
use crate::chat::printing::numbers::{self, NumberDialect};
use crate::chat::printing::python_json::{write_python_json, write_string};
use crate::chat::steps::count_read;
use serde_json::{Map, Value};

/// Longest name of a function.
const NAME_BYTES_MAX: usize = 64;
/// Faults that serde finds in texts that Python reads.
const ONLY_HERE: [&str; 5] = [
    "number out of range",
    "recursion limit exceeded",
    "lone leading surrogate",
    "unexpected end of hex escape",
    "invalid unicode code point",
];
/// Numbers that Python reads although JSON has none.
const PYTHON_NUMBERS: [&str; 2] = ["NaN", "Infinity"];

/// A call of a function.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) id: &'a str,
    arguments: &'a str,
}

impl Call<'_> {
    /// Appends the arguments as JSON; `{}` for text that is no JSON object.
    pub(super) fn write_arguments(&self, out: &mut String) -> Result<(), RenderError> {
        match read_json(self.arguments)? {
            Some(arguments @ Value::Object(_)) => write_python_json(&arguments, false, out),
            _ => out.push_str("{}"),
        }
        Ok(())
    }
}

/// Reads `tool_calls` of a message.
pub(super) fn read_calls(calls: Option<&Value>) -> Result<Vec<Call<'_>>, RenderError> {
    let refused = || RenderError::Unsupported("the engine refuses these calls");
    match calls {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(calls)) => {
            calls.iter().map(|call| read_call(call).ok_or_else(refused)).collect()
        }
        Some(_) => Err(refused()),
    }
}

fn read_call(call: &Value) -> Option<Call<'_>> {
    let function = call.get("function")?;
    let arguments = function.get("arguments")?.as_str()?;
    let id = short_id(call.get("id")?.as_str()?);
    Some(Call { name: function_name(function)?, id, arguments })
}

fn function_name(function: &Value) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let name = function.get("name")?.as_str()?;
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain);
    fits.then_some(name)
}

/// Characters of an id that the engine keeps: the last ones.
const ID_CHARACTERS: usize = 9;

/// The end of an id.
pub(super) fn short_id(id: &str) -> &str {
    let at = id.char_indices().rev().nth(ID_CHARACTERS - 1).map_or(0, |(at, _)| at);
    id.get(at..).unwrap_or(id)
}

/// Appends text as the JSON that it holds, `{}` for no text, and else as a string.
pub(super) fn write_json_text(text: &str, out: &mut String) -> Result<(), RenderError> {
    match read_json(text)? {
        Some(value) => write_python_json(&value, false, out),
        None => write_string(text, false, out),
    }
    Ok(())
}

/// Reads JSON as Python does: `{}` from no text, `None` from text that is no JSON.
fn read_json(text: &str) -> Result<Option<Value>, RenderError> {
    if text.is_empty() {
        return Ok(Some(Value::Object(Map::new())));
    }
    count_read(text.len());
    let otherwise = RenderError::Unsupported("JSON that Python reads otherwise");
    let Ok(respelled) = numbers::respelled(text, NumberDialect::Python) else {
        return Err(otherwise);
    };
    let error = match serde_json::from_str(&respelled) {
        Ok(value) => return Ok(Some(value)),
        Err(error) => error.to_string(),
    };
    count_read(text.len());
    let is_only_here = ONLY_HERE.iter().any(|known| error.starts_with(known))
        || PYTHON_NUMBERS.iter().any(|number| text.contains(number));
    match is_only_here {
        true => Err(otherwise),
        false => Ok(None),
    }
}

/// The tools as the prompt shows them: a list with fixed keys.
pub(super) fn tools_text(tools: &Value) -> Result<String, RenderError> {
    let refused = || RenderError::Unsupported("the engine refuses these tools");
    let tools = tools.as_array().filter(|tools| !tools.is_empty()).ok_or_else(refused)?;
    let mut text = String::from("[");
    for (index, tool) in tools.iter().enumerate() {
        let function = tool.get("function").ok_or_else(refused)?;
        let name = function_name(function).ok_or_else(refused)?;
        text.push_str(if index == 0 { "" } else { ", " });
        text.push_str("{\"type\": \"function\", \"function\": {\"name\": ");
        write_string(name, false, &mut text);
        text.push_str(", \"description\": ");
        match function.get("description") {
            None | Some(Value::Null) => write_string("", false, &mut text),
            Some(Value::String(description)) => write_string(description, false, &mut text),
            Some(_) => return Err(refused()),
        }
        text.push_str(", \"parameters\": ");
        match function.get("parameters") {
            None | Some(Value::Null) => text.push_str("{}"),
            Some(parameters) if parameters.is_object() => {
                write_python_json(parameters, false, &mut text);
            }
            Some(_) => return Err(refused()),
        }
        text.push_str("}}");
    }
    text.push(']');
    Ok(text)
}
