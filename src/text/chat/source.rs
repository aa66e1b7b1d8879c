//! The source of a template: prepared for the template engine, and analyzed for its use of
//! contents.

use super::rules::{ContentFormat, EngineRules};
use std::collections::BTreeSet;

/// Normalizes line ends as Jinja2 does, and makes `{% generation %}` blocks without effect.
pub(super) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    for piece in pieces(&source) {
        match piece {
            Piece::Block { text, inner } => match inner.trim_matches(['-', '+']).trim() {
                "generation" => out.push_str(&text.replacen("generation", "if true", 1)),
                "endgeneration" => out.push_str(&text.replacen("endgeneration", "endif", 1)),
                _ => out.push_str(text),
            },
            Piece::Print { text, .. } | Piece::Other { text } => out.push_str(text),
        }
    }
    out
}

/// Has the source blocks that only transformers knows?
pub(super) fn has_generation_blocks(source: &str) -> bool {
    pieces(source).iter().any(|piece| match piece {
        Piece::Block { inner, .. } => inner.trim_matches(['-', '+']).trim() == "generation",
        _ => false,
    })
}

/// Form of contents that the template expects, detected as the engine's Python code does.
pub(super) fn content_format(source: &str, rules: EngineRules) -> ContentFormat {
    match rules {
        EngineRules::Vllm | EngineRules::VllmRust => vllm_content_format(source),
        EngineRules::Sglang | EngineRules::SglangRust => sglang_content_format(source),
    }
}

/// Detects the form as SGLang (0.5.23) does: the name of a medium anywhere, or a loop over the
/// content of a `message`, `msg` or `m`, means parts.
fn sglang_content_format(source: &str) -> ContentFormat {
    let names_medium = ["image", "audio", "video", "vision"].iter().any(|it| source.contains(it));
    let loops = |piece: &Piece<'_>| match piece.words().as_deref() {
        Some([TagToken::Name("for"), TagToken::Name(_), TagToken::Name("in"), value @ ..]) => {
            matches!(base_name(value), Some(("message" | "msg" | "m", Some("content"))))
        }
        _ => false,
    };
    let is_parts = names_medium || pieces(source).iter().any(loops);
    if is_parts { ContentFormat::Parts } else { ContentFormat::Text }
}

/// Detects the form as vLLM (0.33) does: a loop over the content of a message means parts. The loop
/// may be in a macro that is called with the content. A variable `content` counts as a content.
fn vllm_content_format(source: &str) -> ContentFormat {
    let tags: Vec<Vec<TagToken<'_>>> = pieces(source).iter().filter_map(Piece::words).collect();
    let mut names = Names::default();
    // A macro may use names before the tag that sets them: repeat until no new name is found.
    while tags.iter().any(|tag| names.learn(tag)) {}
    let mut macros: Vec<LoopingMacro<'_>> = Vec::new();
    let mut open: Option<LoopingMacro<'_>> = None;
    for tag in &tags {
        match tag.as_slice() {
            [TagToken::Name("macro"), TagToken::Name(name), parameters @ ..] => {
                open = Some(LoopingMacro {
                    name,
                    parameters: parameter_names(parameters),
                    over: Vec::new(),
                });
            }
            [TagToken::Name("endmacro"), ..] => macros.extend(open.take()),
            [TagToken::Name("for"), TagToken::Name(_), TagToken::Name("in"), value @ ..] => {
                if names.is_content(value) {
                    return ContentFormat::Parts;
                }
                let [TagToken::Name(name), rest @ ..] = value else { continue };
                let plain = matches!(rest, [] | [TagToken::Name("if" | "recursive"), ..]);
                match &mut open {
                    Some(open) if plain => open.over.push(name),
                    None if plain && *name == "content" => return ContentFormat::Parts,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let called = |tag: &Vec<TagToken<'_>>| macros.iter().any(|it| it.gets_content(tag, &names));
    if tags.iter().any(called) { ContentFormat::Parts } else { ContentFormat::Text }
}

/// Variables with the list of messages, and variables with a message.
struct Names {
    lists: BTreeSet<String>,
    messages: BTreeSet<String>,
}

impl Default for Names {
    fn default() -> Self {
        Self { lists: BTreeSet::from(["messages".to_owned()]), messages: BTreeSet::new() }
    }
}

impl Names {
    /// Learns names from a tag; true when a name was new.
    fn learn(&mut self, tag: &[TagToken<'_>]) -> bool {
        match tag {
            [
                TagToken::Name("set"),
                TagToken::Name(name),
                TagToken::Sign('='),
                TagToken::Name("namespace"),
                arguments @ ..,
            ] => {
                let fields = arguments.windows(2).enumerate().filter_map(|(at, pair)| match pair {
                    [TagToken::Name(field), TagToken::Sign('=')] => {
                        Some((field, arguments.get(at + 2..)?))
                    }
                    _ => None,
                });
                let aliases: Vec<String> = fields
                    .filter(|(_, value)| self.is_list(until_comma(value)))
                    .map(|(field, _)| format!("{name}.{field}"))
                    .collect();
                aliases.into_iter().filter(|alias| self.lists.insert(alias.clone())).count() > 0
            }
            [TagToken::Name("set"), TagToken::Name(name), TagToken::Sign('='), value @ ..] => {
                self.is_list(value) && self.lists.insert((*name).to_owned())
            }
            [
                TagToken::Name("set"),
                TagToken::Name(name),
                TagToken::Sign('.'),
                TagToken::Name(field),
                TagToken::Sign('='),
                value @ ..,
            ] => self.is_list(value) && self.lists.insert(format!("{name}.{field}")),
            [TagToken::Name("for"), TagToken::Name(name), TagToken::Name("in"), value @ ..] => {
                self.is_list(value) && self.messages.insert((*name).to_owned())
            }
            _ => false,
        }
    }

    fn is_list(&self, value: &[TagToken<'_>]) -> bool {
        match base_name(value) {
            Some((base, None)) => self.lists.contains(base),
            Some((base, Some(member))) => self.lists.contains(&format!("{base}.{member}")),
            None => false,
        }
    }

    fn is_content(&self, value: &[TagToken<'_>]) -> bool {
        base_name(value)
            .is_some_and(|(base, member)| member == Some("content") && self.messages.contains(base))
    }
}

/// A macro with its parameters and the plain variables that its loops run over.
struct LoopingMacro<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
    over: Vec<&'a str>,
}

impl LoopingMacro<'_> {
    /// True if the tag calls the macro with a message's content for a parameter of its loops.
    fn gets_content(&self, tag: &[TagToken<'_>], names: &Names) -> bool {
        tag.windows(2).enumerate().any(|(at, pair)| {
            let calls =
                matches!(pair, [TagToken::Name(name), TagToken::Sign('(')] if *name == self.name);
            calls && self.loops_over_argument(tag.get(at + 2..).unwrap_or_default(), names)
        })
    }

    fn loops_over_argument(&self, arguments: &[TagToken<'_>], names: &Names) -> bool {
        let mut rest = arguments;
        let mut index = 0;
        while !rest.is_empty() {
            let argument = until_comma(rest);
            let (parameter, value) = match argument {
                [TagToken::Name(name), TagToken::Sign('='), value @ ..] => (Some(*name), value),
                value => (self.parameters.get(index).copied(), value),
            };
            if names.is_content(value) && parameter.is_some_and(|name| self.over.contains(&name)) {
                return true;
            }
            if !matches!(rest.get(argument.len()), Some(TagToken::Sign(','))) {
                return false;
            }
            rest = rest.get(argument.len() + 1..).unwrap_or_default();
            index += 1;
        }
        false
    }
}

/// Words up to the comma or bracket that ends an argument.
fn until_comma<'w, 'a>(words: &'w [TagToken<'a>]) -> &'w [TagToken<'a>] {
    let mut depth = 0_usize;
    let end = words.iter().position(|word| match word {
        TagToken::Sign('(' | '[' | '{') => {
            depth += 1;
            false
        }
        TagToken::Sign(')' | ']' | '}') if depth > 0 => {
            depth -= 1;
            false
        }
        TagToken::Sign(',' | ')' | ']' | '}') => depth == 0,
        _ => false,
    });
    words.get(..end.unwrap_or(words.len())).unwrap_or_default()
}

/// Names in a macro's list of parameters, in order.
fn parameter_names<'a>(words: &[TagToken<'a>]) -> Vec<&'a str> {
    let starts = words.windows(2).filter_map(|pair| match pair {
        [TagToken::Sign('(' | ','), TagToken::Name(name)] => Some(*name),
        _ => None,
    });
    starts.collect()
}

/// String literals of a template that may affect the rendering of a content.
#[derive(Debug, Default)]
pub(super) struct Literals {
    /// Literals searched for in a string: `'x' in …`, `….split('x')`; also values of `set`, which
    /// may be searched for.
    pub(super) searched: BTreeSet<String>,
    /// All other string literals.
    pub(super) other: BTreeSet<String>,
}

/// Collects the literals of a template.
pub(super) fn literals(source: &str) -> Literals {
    let mut found = Literals::default();
    for words in pieces(source).iter().filter_map(Piece::words) {
        let set = matches!(words.first(), Some(TagToken::Name("set")));
        // Callee of each open bracket; `None` for brackets that are no call.
        let mut open: Vec<Option<&str>> = Vec::new();
        for (index, word) in words.iter().enumerate() {
            match word {
                TagToken::Sign('(') => {
                    open.push(match index.checked_sub(1).and_then(|i| words.get(i)) {
                        Some(TagToken::Name(name)) => Some(*name),
                        // A tuple inside a call belongs to that call: startswith(('a', 'b')).
                        _ => open.last().copied().flatten(),
                    });
                }
                TagToken::Sign(')') => {
                    open.pop();
                }
                TagToken::Text(text) if !text.is_empty() => {
                    let callee = open.last().copied().flatten();
                    let searched = callee.is_some_and(|name| SEARCHES.contains(&name));
                    let tested = matches!(
                        (words.get(index + 1), words.get(index + 2)),
                        (Some(TagToken::Name("in")), _)
                            | (Some(TagToken::Name("not")), Some(TagToken::Name("in")))
                    );
                    let is_set_value = set && callee.is_none() && looks_like_mark(text);
                    let searched = searched || tested || is_set_value;
                    if searched { &mut found.searched } else { &mut found.other }
                        .insert(text.clone());
                }
                _ => {}
            }
        }
    }
    found.other.retain(|text| !found.searched.contains(text));
    found
}

/// Methods and filters that search a string for their argument.
const SEARCHES: [&str; 15] = [
    "split",
    "rsplit",
    "startswith",
    "endswith",
    "replace",
    "find",
    "rfind",
    "index",
    "rindex",
    "count",
    "partition",
    "rpartition",
    "removeprefix",
    "removesuffix",
    "startingwith",
];

fn looks_like_mark(text: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte.is_ascii_whitespace();
    text.len() >= 2 && !text.bytes().all(plain)
}

/// `(name, member)` of `name`, `name.member` or `name['member']`, with any filters or slices behind
/// it.
pub(super) fn base_name<'w>(words: &'w [TagToken<'_>]) -> Option<(&'w str, Option<&'w str>)> {
    let [TagToken::Name(base), rest @ ..] = words else { return None };
    let (member, rest) = match rest {
        [TagToken::Sign('.'), TagToken::Name(member), rest @ ..] => (Some(*member), rest),
        [TagToken::Sign('['), TagToken::Text(member), TagToken::Sign(']'), rest @ ..] => {
            (Some(member.as_str()), rest)
        }
        rest => (None, rest),
    };
    let slice = |rest: &[TagToken<'_>]| {
        let inside = rest.iter().take_while(|word| !matches!(word, TagToken::Sign(']')));
        inside.filter(|word| matches!(word, TagToken::Sign(':'))).count() > 0
    };
    match rest {
        [] | [TagToken::Sign('|'), ..] | [TagToken::Name("if" | "recursive" | "is"), ..] => {
            Some((base, member))
        }
        [TagToken::Sign('['), ..] if slice(rest) => Some((base, member)),
        _ => None,
    }
}

/// A piece of the source.
pub(super) enum Piece<'a> {
    /// A tag `{% … %}`, whole and without its braces.
    Block { text: &'a str, inner: &'a str },
    /// A tag `{{ … }}`, whole and without its braces.
    Print { text: &'a str, inner: &'a str },
    /// Text and comments between tags.
    Other { text: &'a str },
}

impl<'a> Piece<'a> {
    /// The words of a tag, without the marks of whitespace control.
    pub(super) fn words(&self) -> Option<Vec<TagToken<'a>>> {
        let (Self::Block { inner, .. } | Self::Print { inner, .. }) = self else { return None };
        let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
        Some(words(inner.strip_suffix(['-', '+']).unwrap_or(inner)))
    }
}

pub(super) fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(start) = next_open(rest) {
        let (text, tag) = rest.split_at(start);
        if !text.is_empty() {
            found.push(Piece::Other { text });
        }
        let length = tag_length(tag);
        let (text, tail) = tag.split_at(length);
        let inner = text.get(2..length.saturating_sub(2)).unwrap_or_default();
        found.push(match text.as_bytes().get(1) {
            Some(b'%') => Piece::Block { text, inner },
            Some(b'{') => Piece::Print { text, inner },
            _ => Piece::Other { text },
        });
        rest = tail;
    }
    if !rest.is_empty() {
        found.push(Piece::Other { text: rest });
    }
    found
}

fn next_open(text: &str) -> Option<usize> {
    ["{%", "{{", "{#"].iter().filter_map(|mark| text.find(mark)).min()
}

/// Length of the tag at the front with its closing mark; marks inside string literals do not count.
fn tag_length(tag: &str) -> usize {
    let bytes = tag.as_bytes();
    let close: &[u8] = match bytes.get(1) {
        Some(b'%') => b"%}",
        Some(b'{') => b"}}",
        _ => return tag.find("#}").map_or(tag.len(), |at| at + 2),
    };
    let mut at = 2;
    let mut braces = 0_usize;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' | b'\'' => at += text_length(bytes.get(at..).unwrap_or_default()),
            _ if braces == 0 && bytes.get(at..).is_some_and(|rest| rest.starts_with(close)) => {
                return at + 2;
            }
            _ => {
                match byte {
                    b'{' => braces += 1,
                    b'}' => braces = braces.saturating_sub(1),
                    _ => {}
                }
                at += 1;
            }
        }
    }
    tag.len()
}

/// Length of the string literal at the front, quotes included.
fn text_length(bytes: &[u8]) -> usize {
    let quote = bytes.first();
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            byte if Some(byte) == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// A word of an expression.
#[derive(Debug)]
pub(super) enum TagToken<'a> {
    Name(&'a str),
    Text(String),
    Sign(char),
}

fn words(inner: &str) -> Vec<TagToken<'_>> {
    let mut found = Vec::new();
    let mut rest = inner.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' | '\'' => {
                let length = text_length(rest.as_bytes()).min(rest.len());
                let end = length.saturating_sub(1).max(1);
                found.push(TagToken::Text(unescape(rest.get(1..end).unwrap_or_default())));
                length
            }
            _ if first.is_alphanumeric() || first == '_' => {
                let ends = |character: char| !character.is_alphanumeric() && character != '_';
                let length = rest.find(ends).unwrap_or(rest.len());
                found.push(TagToken::Name(rest.get(..length).unwrap_or_default()));
                length
            }
            _ => {
                found.push(TagToken::Sign(first));
                first.len_utf8()
            }
        };
        rest = rest.get(length..).unwrap_or_default().trim_start();
    }
    found
}

/// Resolves the escapes that templates use; unknown escapes keep their backslash.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some(quoted @ ('\\' | '\'' | '"')) => out.push(quoted),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{content_format, literals, prepare};
    use crate::chat::rules::{ContentFormat, EngineRules};
    use proptest::prelude::{prop_assert_eq, proptest};

    #[test]
    fn generation_blocks_become_neutral() {
        let source = "a{%- generation -%}b{% endgeneration %}c{{ '{% generation %}' }}";
        assert_eq!(prepare(source), "a{%- if true -%}b{% endif %}c{{ '{% generation %}' }}");
    }

    #[test]
    fn loops_over_contents_are_found() {
        for source in [
            "{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
            "{%- for m in messages[1:] -%}{%- for c in m['content'] | list -%}{%- endfor -%}{%- endfor -%}",
            "{% set rest = messages[1:] %}{% for m in rest %}{% for c in m[\"content\"] if c %}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}",
            "{% macro show(a, b=[1, 2]) %}{% for c in b %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(f(1, 2), m.content) }}{% endfor %}",
            "{% macro show(a, b='') %}{% for c in a %}{% endfor %}{% endmacro %}{% for m in messages %}{{ 'x' + show(b=1, a=m['content']) | trim }}{% endfor %}",
            "{% set ns = namespace(x=1, rest=messages[1:]) %}{% for m in ns.rest %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{% set ns.rest = messages %}{% for m in ns.rest %}{% for c in m.content %}{% endfor %}{% endfor %}",
        ] {
            assert_eq!(content_format(source, EngineRules::Vllm), ContentFormat::Parts, "{source}");
        }
        for source in [
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}",
            "{# {% for m in messages %}{% for c in m.content %} #}",
            "{% for c in other.content %}{% endfor %}",
            "{% for m in messages %}{% set text = m.content %}{% for c in text %}{% endfor %}{% endfor %}",
            "{% macro show(content) %}{% for c in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.other) }}{% endfor %}",
            "{% macro show(a, b) %}{% for c in b %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content, [1, 2]) }}{% endfor %}",
        ] {
            assert_eq!(content_format(source, EngineRules::Vllm), ContentFormat::Text, "{source}");
        }
    }

    #[test]
    fn literals_are_told_apart() {
        let found = literals(
            "{% if '</think>' in c %}{{ c.split('<a>')[-1].strip('x') }}{% endif %}{{ '<|im_start|>' + \"q\\n\" }}\
             {% set end = '<end>' %}{% if r == 'user' and c.startswith(('p', \"q\")) and 'not' not in c %}{% endif %}",
        );
        let searched: Vec<&str> = found.searched.iter().map(String::as_str).collect();
        assert_eq!(searched, ["</think>", "<a>", "<end>", "not", "p", "q"]);
        let other: Vec<&str> = found.other.iter().map(String::as_str).collect();
        assert_eq!(other, ["<|im_start|>", "q\n", "user", "x"]);
    }

    proptest! {
        #[test]
        fn any_source_is_survived(source in "[{}%#'\"a-c\\\\ .=é\n(in)-]{0,60}") {
            literals(&source);
            content_format(&source, EngineRules::Vllm);
            content_format(&source, EngineRules::Sglang);
            let without_generation = !source.contains("generation");
            prop_assert_eq!(prepare(&source) == source, without_generation);
        }
    }
}
