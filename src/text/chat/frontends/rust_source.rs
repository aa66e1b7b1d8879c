//! The source of a template as the Rust frontends prepare and analyze it.

use crate::chat::rules::{ContentFormat, EngineRules};
use crate::chat::source::{Piece, TagToken, base_name, pieces};
use std::collections::BTreeSet;

/// Makes `{% generation %}` blocks plain scopes, and for SGLang calls of `.items()` a filter, so
/// that a key `items` of a schema does not hide the method.
pub(crate) fn prepare(source: &str, rules: EngineRules) -> String {
    let mut out = String::with_capacity(source.len());
    for piece in pieces(source) {
        let (text, inner) = match &piece {
            Piece::Block { text, inner } => (*text, inner.trim_matches(['-', '+']).trim()),
            Piece::Print { text, .. } => (*text, ""),
            Piece::Other { text } => {
                out.push_str(text);
                continue;
            }
        };
        match inner {
            "generation" => out.push_str(&text.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&text.replacen("endgeneration", "endwith", 1)),
            _ if rules == EngineRules::SglangRust => push_with_items_filter(text, &mut out),
            _ => out.push_str(text),
        }
    }
    out
}

/// Appends a tag with `|items` for `.items()` outside of string literals.
fn push_with_items_filter(tag: &str, out: &mut String) {
    const CALL: &str = ".items()";
    let mut quote = None;
    let mut is_escaped = false;
    let mut skipped = 0_usize;
    for (at, character) in tag.char_indices() {
        if at < skipped {
            continue;
        }
        match quote {
            Some(open) => {
                if !is_escaped && character == open {
                    quote = None;
                }
                is_escaped = !is_escaped && character == '\\';
            }
            None if tag.get(at..).is_some_and(|rest| rest.starts_with(CALL)) => {
                out.push_str("|items");
                skipped = at + CALL.len();
                continue;
            }
            None if matches!(character, '"' | '\'') => quote = Some(character),
            None => {}
        }
        out.push(character);
    }
}

/// The text of a `chat_template.jinja` as `vllm-rs` reads it: without white space at its ends, and
/// with a line end for each backslash and `n`, inside of string literals too.
pub(crate) fn of_vllm_file(source: &str) -> String {
    source.trim().replace("\\n", "\n")
}

/// Detects the form of contents as `vllm-rs` does: a loop anywhere over the content of a message,
/// or over a variable `content`, means parts.
pub(crate) fn vllm_format(source: &str) -> ContentFormat {
    let tags: Vec<Vec<TagToken<'_>>> = pieces(source).iter().filter_map(Piece::words).collect();
    let mut lists: BTreeSet<&str> = BTreeSet::from(["messages"]);
    // A tag may use a name before the tag that sets the name: repeat until no new name is found.
    loop {
        let before = lists.len();
        for tag in &tags {
            if let [TagToken::Name("set"), TagToken::Name(name), TagToken::Sign('='), value @ ..] =
                tag.as_slice()
                && is_of(value, &lists, None)
            {
                lists.insert(name);
            }
        }
        if lists.len() == before {
            break;
        }
    }
    let loops = || {
        tags.iter().filter_map(|tag| match tag.as_slice() {
            [TagToken::Name("for"), TagToken::Name(name), TagToken::Name("in"), value @ ..] => {
                Some((*name, value))
            }
            _ => None,
        })
    };
    let messages: BTreeSet<&str> =
        loops().filter(|(_, value)| is_of(value, &lists, None)).map(|(name, _)| name).collect();
    let is_content = |value: &[TagToken<'_>]| {
        is_of(value, &messages, Some("content")) || is_of(value, &BTreeSet::from(["content"]), None)
    };
    match loops().any(|(_, value)| is_content(value)) {
        true => ContentFormat::Parts,
        false => ContentFormat::Text,
    }
}

/// True if the expression is a variable of the set, or that member of such a variable.
fn is_of(value: &[TagToken<'_>], names: &BTreeSet<&str>, member: Option<&str>) -> bool {
    base_name(value).is_some_and(|(base, found)| found == member && names.contains(base))
}

#[cfg(test)]
mod tests {
    use super::{of_vllm_file, prepare, vllm_format};
    use crate::chat::EngineRules;
    use crate::chat::rules::ContentFormat;

    #[test]
    fn sources_are_prepared_as_the_frontends_do() {
        let source = "{% for k, v in x.items() %}{{ '.items()' ~ k }}{% endfor %}.items()";
        let filtered = "{% for k, v in x|items %}{{ '.items()' ~ k }}{% endfor %}.items()";
        assert_eq!(prepare(source, EngineRules::SglangRust), filtered);
        assert_eq!(prepare(source, EngineRules::VllmRust), source);
        let blocks = "a{%- generation -%}b{% endgeneration %}";
        assert_eq!(prepare(blocks, EngineRules::VllmRust), "a{%- with -%}b{% endwith %}");
        assert_eq!(of_vllm_file("\n{{ '\\n' }}\n "), "{{ '\n' }}");
    }

    #[test]
    fn a_loop_over_a_content_means_parts() {
        let over = |what: &str| {
            vllm_format(&format!(
                "{{% for m in all %}}{{% for p in {what} %}}{{% endfor %}}{{% endfor %}}\
                 {{% set all = messages[1:] %}}"
            ))
        };
        for what in ["m.content", "m['content']", "m.content | list", "content", "m.content[1:]"] {
            assert_eq!(over(what), ContentFormat::Parts, "{what}");
        }
        for what in ["m.tool_calls", "x.content", "m.content or []", "contents"] {
            assert_eq!(over(what), ContentFormat::Text, "{what}");
        }
    }
}
