//! `kv_transfer_params` of a client. Engines read two kinds of things there: ready token ids, which clients may send, and where
//! the KV of a prompt is to be had, which only the router may say: a vLLM 0.32 decode engine that is sent the blocks of another
//! prompt ends itself on an assertion.

use super::json::{Cursor, ScanError};
use super::scan::unescaped;

/// Members by which engines find each other's KV (vLLM 0.33: NIXL, NIXL push, Mooncake), as they are told to the client.
const OWNED: [(&str, &str); 10] = [
    ("do_remote_decode", "kv_transfer_params.do_remote_decode"),
    ("do_remote_prefill", "kv_transfer_params.do_remote_prefill"),
    ("remote_block_ids", "kv_transfer_params.remote_block_ids"),
    ("remote_bootstrap_addr", "kv_transfer_params.remote_bootstrap_addr"),
    ("remote_engine_id", "kv_transfer_params.remote_engine_id"),
    ("remote_host", "kv_transfer_params.remote_host"),
    ("remote_port", "kv_transfer_params.remote_port"),
    ("remote_request_id", "kv_transfer_params.remote_request_id"),
    ("tp_size", "kv_transfer_params.tp_size"),
    ("transfer_id", "kv_transfer_params.transfer_id"),
];

/// The member that only the router may set, if there is one; the cursor stands on the value and leaves it. `null` and `false`
/// count as absent.
pub(super) fn owned(cursor: &mut Cursor<'_>) -> Result<Option<&'static str>, ScanError> {
    if cursor.peek() != Some(b'{') {
        cursor.skip_value(1)?;
        return Ok(None);
    }
    cursor.open();
    let (mut first, mut found) = (true, None);
    while let Some(key) = cursor.next_key(&mut first)? {
        let raw = cursor.slice(&key.span);
        let known = |name: &str| OWNED.iter().find(|(owned, _)| *owned == name);
        let member = if key.escaped { known(&unescaped(raw)) } else { known(raw) };
        let start = cursor.at();
        cursor.skip_value(2)?;
        let is_absent = matches!(cursor.slice(&(start..cursor.at())), "null" | "false");
        found = found.or(member.filter(|_| !is_absent).map(|(_, shown)| *shown));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use crate::parse::{ApiRequest, Endpoint, ScanError, scan};

    fn scanned(params: &str) -> Result<(), ScanError> {
        let body = format!(r#"{{"kv_transfer_params":{params},"model":"m","prompt":"p"}}"#);
        scan(body.as_bytes(), Endpoint::Completions, &mut ApiRequest::default())
    }

    #[test]
    fn clients_do_not_say_where_kv_is() {
        let key = "kv_transfer_params.do_remote_prefill";
        for params in [
            r#"{"do_remote_prefill":true,"remote_host":"10.0.0.1"}"#,
            r#"{"prompt_token_ids":[1],"do_remote\u005fprefill" : true}"#,
            r#"{"do_remote_prefill":true},"kv_transfer_params":{}"#,
        ] {
            assert_eq!(scanned(params), Err(ScanError::Owned { key }), "{params}");
        }
        for params in [
            r#"{"prompt_token_ids":[1,2]}"#,
            r#"{"do_remote_prefill":false,"remote_host":null}"#,
            r#"{"own":{"remote_host":"x"}}"#,
            "null",
            "[{}]",
        ] {
            assert_eq!(scanned(params), Ok(()), "{params}");
        }
    }
}
