//! Methods of Python's `str` that templates call. Methods in which `minijinja-contrib` agrees with
//! Python come from that crate.

use super::printing::python::is_space;
use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Calls a method that the value itself does not have.
pub(super) fn call(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if value.kind() == ValueKind::String
        && let Some(text) = value.as_str()
        && let Some(result) = string_method(text, name, args)
    {
        return result;
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

/// Calls a method of a string; `None` for methods of `minijinja-contrib`.
fn string_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let result = match name {
        "strip" => strip(text, args, true, true),
        "lstrip" => strip(text, args, true, false),
        "rstrip" => strip(text, args, false, true),
        "split" if args.first().is_none_or(Value::is_none) => split_words(text, args),
        "rsplit" => rsplit(text, args),
        "partition" | "rpartition" => partition(text, name == "partition", args),
        "removeprefix" | "removesuffix" => remove(text, name == "removeprefix", args),
        "index" => from_args::<(&str,)>(args).and_then(|(part,)| {
            let at = text.find(part).map(|at| text.get(..at).unwrap_or_default().chars().count());
            at.map(Value::from)
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))
        }),
        _ => return None,
    };
    Some(result)
}

/// Python's `strip` family; without an argument strips white space by Python's definition.
fn strip(text: &str, args: &[Value], left: bool, right: bool) -> Result<Value, Error> {
    let (set,): (Option<&str>,) = from_args(args)?;
    let stripped = |character: char| set.map_or(is_space(character), |set| set.contains(character));
    let mut rest = text;
    if left {
        rest = rest.trim_start_matches(stripped);
    }
    if right {
        rest = rest.trim_end_matches(stripped);
    }
    Ok(Value::from(rest))
}

fn split_words(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (_, count_max): (Option<Value>, Option<i64>) = from_args(args)?;
    let mut left = usize::try_from(count_max.unwrap_or(-1)).unwrap_or(usize::MAX);
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = if left == 0 { rest.len() } else { rest.find(is_space).unwrap_or(rest.len()) };
        let (word, tail) = rest.split_at(end);
        words.push(Value::from(word));
        rest = tail.trim_start_matches(is_space);
        left = left.saturating_sub(1);
    }
    Ok(Value::from(words))
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, count_max): (&str, Option<i64>) = from_args(args)?;
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    let pieces = match usize::try_from(count_max.unwrap_or(-1)) {
        Ok(count) => text.rsplitn(count.saturating_add(1), separator).collect::<Vec<_>>(),
        Err(_) => text.rsplit(separator).collect(),
    };
    Ok(pieces.into_iter().rev().map(Value::from).collect())
}

fn partition(text: &str, first: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    let found = if first { text.split_once(separator) } else { text.rsplit_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if first => [text, "", ""],
        None => ["", "", text],
    };
    Ok(Value::from(parts.map(Value::from).to_vec()))
}

fn remove(text: &str, prefix: bool, args: &[Value]) -> Result<Value, Error> {
    let (part,): (&str,) = from_args(args)?;
    let rest = if prefix { text.strip_prefix(part) } else { text.strip_suffix(part) };
    Ok(Value::from(rest.unwrap_or(text)))
}
