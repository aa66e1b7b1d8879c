//! Answers with a good status that are errors: of gateways, and of engines that send the head of a
//! stream before they look at the request.

/// Does the body of an answer, or the first event of a stream, begin as an error of OpenAI's or
/// Anthropic's API, or of vLLM? `data`: the first bytes of it.
#[must_use]
pub fn begins_with_error(data: &[u8]) -> bool {
    let mut rest = data.trim_ascii_start();
    if let Some(event) = rest.strip_prefix(b"event:") {
        let end = event.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let (name, next) = event.split_at_checked(end.unwrap_or(event.len())).unwrap_or_default();
        if name.trim_ascii() == b"error" {
            return true;
        }
        rest = next.trim_ascii_start();
    }
    let body = rest.strip_prefix(b"data:").unwrap_or(rest).trim_ascii_start();
    let Some(members) = body.strip_prefix(b"{") else { return false };
    let members = members.trim_ascii_start();
    if members.starts_with(b"\"error\"") {
        return !is_null(members);
    }
    [&b"\"type\""[..], b"\"object\""].iter().any(|name| {
        let value = members.strip_prefix(*name).and_then(after_colon);
        value.is_some_and(|value| value.starts_with(b"\"error\""))
    })
}

/// `"error":null` is not an error.
fn is_null(members: &[u8]) -> bool {
    let value = members.strip_prefix(b"\"error\"").and_then(after_colon);
    value.is_some_and(|value| value.starts_with(b"null"))
}

fn after_colon(data: &[u8]) -> Option<&[u8]> {
    Some(data.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use super::begins_with_error;

    #[test]
    fn errors_of_each_api_are_known_and_answers_are_none() {
        for error in [
            r#"{"error":{"message":"x"}}"#,
            "\n { \"error\" : \"x\" }",
            r#"{"object":"error","message":"x"}"#,
            r#"{"type": "error", "error": {}}"#,
            "data: {\"error\":{}}\n\n",
            "event: error\ndata: {\"type\":\"error\"}\n\n",
            "event: message\r\ndata: {\"error\":1}\r\n\r\n",
        ] {
            assert!(begins_with_error(error.as_bytes()), "{error}");
        }
        for answer in [
            "",
            "{",
            r#"{"error":null,"id":"x"}"#,
            r#"{"id":"c1","error":{}}"#,
            r#"{"object":"chat.completion"}"#,
            "data: {\"id\":\"c1\"}\n\n",
            "event: message_start\ndata: {\"type\":\"message_start\"}\n\n",
            "event:",
            ": ping\n\n",
        ] {
            assert!(!begins_with_error(answer.as_bytes()), "{answer}");
        }
    }
}
