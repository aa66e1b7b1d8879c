//! Model cards: the objects in the response of `GET /v1/models`.

use serde::Deserialize;

#[derive(Deserialize)]
struct CardLength {
    max_model_len: Option<u64>,
}

/// Limit of prompt and output tokens together, from the card of vLLM and SGLang.
#[must_use]
pub fn context_tokens(card_json: &str) -> Option<u64> {
    let card: CardLength = serde_json::from_str(card_json).ok()?;
    card.max_model_len.filter(|tokens| *tokens > 0)
}

#[cfg(test)]
mod tests {
    use super::context_tokens;

    #[test]
    fn the_context_is_a_number_or_unknown() {
        for (card, tokens) in [
            (r#"{"id":"m","max_model_len":4096,"permission":[{}]}"#, Some(4_096)),
            (r#"{"id":"m","max_model_len":null}"#, None),
            (r#"{"id":"m","max_model_len":"4096"}"#, None),
            (r#"{"id":"m","max_model_len":0}"#, None),
            (r#"{"id":"m","max_model_len":-1}"#, None),
            (r#"{"id":"m"}"#, None),
            ("", None),
        ] {
            assert_eq!(context_tokens(card), tokens, "{card}");
        }
    }
}
