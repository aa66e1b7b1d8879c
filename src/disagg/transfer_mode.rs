//! The two modes of NIXL in vLLM: decode pulls the KV, or prefill pushes it. An engine refuses the
//! KV of an engine with the other mode (0.32, `nixl/metadata.py`).

use forebay_json::Cursor;

/// Longest word that is accepted as a mode.
const MODE_BYTES_MAX: usize = 16;

/// The member `transfer_mode` of prefill's parameters; `None` if absent.
#[must_use]
pub fn transfer_mode(params: &[u8]) -> Option<String> {
    let mut cursor = Cursor::new(params).ok()?;
    cursor.blanks();
    if cursor.peek() != Some(b'{') {
        return None;
    }
    cursor.open();
    let mut first = true;
    let mut found = None;
    while let Some(key) = cursor.next_key(&mut first).ok()? {
        let start = cursor.at();
        cursor.skip_value(1).ok()?;
        if cursor.slice(&key.span) == "transfer_mode" {
            let value = cursor.slice(&(start..cursor.at()));
            let word = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            found = word.filter(|word| word.len() <= MODE_BYTES_MAX).map(str::to_owned);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_read_where_there_is_one() {
        for (params, wanted) in [
            (r#"{"remote_block_ids":[[1]],"transfer_mode":"pull","tp_size":1}"#, Some("pull")),
            (r#" {"transfer_mode" : "push" }"#, Some("push")),
            (r#"{"transfer_mode":"pull","transfer_mode":"push"}"#, Some("push")),
            (r#"{"x":{"transfer_mode":"pull"}}"#, None),
            (r#"{"transfer_mode":null}"#, None),
            (r#"{"transfer_mode":7}"#, None),
            (r#"{"transfer_mode":"0123456789abcdefg"}"#, None),
            (r#"["transfer_mode"]"#, None),
            (r#"{"transfer_mode":"pull""#, None),
            ("{", None),
            ("", None),
        ] {
            assert_eq!(transfer_mode(params.as_bytes()).as_deref(), wanted, "{params}");
        }
    }
}
