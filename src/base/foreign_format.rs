//! Recognizes files that are written in another format than TOML.

/// Format of a text that is no TOML, by its first line with content: JSON begins with a bracket or
/// brace, and a line of YAML has a colon before any `=`. `None`: it looks like TOML with a fault.
#[must_use]
pub fn foreign_format(text: &str) -> Option<&'static str> {
    let lines = text.lines().map(str::trim);
    let line = lines.into_iter().find(|line| !line.is_empty() && !line.starts_with('#'))?;
    let key = line.split(['=', '#']).next().unwrap_or(line);
    let is_list =
        line.strip_prefix('[').is_some_and(|rest| rest.is_empty() || rest.starts_with('{'));
    match line {
        _ if line.starts_with('{') || is_list => Some("JSON"),
        "---" => Some("YAML"),
        _ if !line.starts_with(['[', '/']) && key.contains(':') => Some("YAML"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::foreign_format;

    #[test]
    fn the_first_line_names_the_format() {
        for text in ["{\"a\": 1}", "\n{\n", "[\n{", "[{\"url\": \"x\"}]"] {
            assert_eq!(foreign_format(text), Some("JSON"), "{text}");
        }
        for text in ["---\na: 1", "# c\nlisten: 127.0.0.1:1", "a:\n  - b", "- url: http://a?b=c"] {
            assert_eq!(foreign_format(text), Some("YAML"), "{text}");
        }
        for text in [
            "",
            "# a: b",
            "[health",
            "[[work",
            "a = b",
            "listen = \"a:1",
            "a b",
            "a b # c: d",
            "// a: b",
        ] {
            assert_eq!(foreign_format(text), None, "{text}");
        }
    }
}
