//! Objects of vLLM in which some members are for clients and some only for the router. A vLLM 0.32
//! decode engine that receives the blocks of another prompt aborts on an assertion. An engine with
//! `kv_cache_report_mode` set reports cache hits as blocks that it never removes. `vllm_xargs` ends
//! up where `kv_transfer_params` and `ec_transfer_params` do (`SamplingParams.extra_args`), so
//! their members are forbidden in it too.

use super::ScanError;
use forebay_json::{Cursor, unescaped};

/// Keys that [`TransferFindings::read`] reads.
pub(super) const KEYS: [&str; 2] = ["kv_transfer_params", "vllm_xargs"];

/// Members by which engines find each other's KV (vLLM 0.33: NIXL, NIXL push, Mooncake), by the
/// names in error messages. `null` and `false` count as absent.
const OWNED_OF_TRANSFER: [(&str, &str); 10] = [
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

/// Members that engines take for keys of their own, with any value.
const OWNED_OF_XARGS: [(&str, &str); 3] = [
    ("ec_transfer_params", "vllm_xargs.ec_transfer_params"),
    ("kv_cache_report_mode", "vllm_xargs.kv_cache_report_mode"),
    ("kv_transfer_params", "vllm_xargs.kv_transfer_params"),
];

/// Token ids of the prompt, which vLLM uses in place of the messages.
const READY_IDS: &str = "prompt_token_ids";

/// Findings so far. An earlier duplicate of a key counts too, since an engine's parser may read the
/// earlier key.
#[derive(Debug, Default)]
pub(super) struct TransferFindings {
    /// The first forbidden member.
    pub(super) error: Option<ScanError>,
    /// The engine computes another prompt than the body contains.
    pub(super) other_prompt: bool,
}

impl TransferFindings {
    /// Reads the value of `name`, an entry of [`KEYS`], from its start to its end.
    pub(super) fn read(&mut self, name: &str, cursor: &mut Cursor<'_>) -> Result<(), ScanError> {
        let is_transfer = name == "kv_transfer_params";
        match cursor.peek() {
            Some(b'{') if is_transfer => self.members(cursor, &OWNED_OF_TRANSFER, true),
            Some(b'{') => self.members(cursor, &OWNED_OF_XARGS, false),
            Some(b'n') => Ok(cursor.skip_value(1)?),
            _ => {
                let key = if is_transfer { "kv_transfer_params" } else { "vllm_xargs" };
                self.error = self.error.or(Some(ScanError::MemberNotObject { key }));
                Ok(cursor.skip_value(1)?)
            }
        }
    }

    fn members(
        &mut self,
        cursor: &mut Cursor<'_>,
        owned: &[(&str, &'static str)],
        may_be_absent: bool,
    ) -> Result<(), ScanError> {
        cursor.open();
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            let raw = cursor.slice(&key.span);
            let decoded = key.escaped.then(|| unescaped(raw));
            let name = decoded.as_deref().unwrap_or(raw);
            let start = cursor.at();
            cursor.skip_value(2)?;
            let is_absent =
                may_be_absent && matches!(cursor.slice(&(start..cursor.at())), "null" | "false");
            if is_absent {
                continue;
            }
            self.other_prompt |= name == READY_IDS;
            let found = owned.iter().find(|(member, _)| *member == name);
            let found = found.map(|(_, key)| ScanError::Owned { key });
            self.error = self.error.or(found);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::parse::{ApiRequest, Endpoint, ScanError, scan};

    fn scanned(members: &str) -> Result<bool, ScanError> {
        let body = format!(r#"{{{members},"model":"m","prompt":"p"}}"#);
        let mut request = ApiRequest::default();
        for endpoint in Endpoint::ALL {
            let before = scan(body.as_bytes(), Endpoint::Completions, &mut request);
            assert_eq!(scan(body.as_bytes(), endpoint, &mut request), before, "{endpoint:?}");
        }
        scan(body.as_bytes(), Endpoint::Completions, &mut request)?;
        Ok(request.reads_no_cache)
    }

    fn of_transfer(params: &str) -> Result<bool, ScanError> {
        scanned(&format!(r#""kv_transfer_params":{params}"#))
    }

    #[test]
    fn clients_do_not_say_where_kv_is() {
        let key = "kv_transfer_params.do_remote_prefill";
        for params in [
            r#"{"do_remote_prefill":true,"remote_host":"10.0.0.1"}"#,
            r#"{"prompt_token_ids":[1],"do_remote\u005fprefill" : true}"#,
            r#"{"do_remote_prefill":true},"kv_transfer_params":{}"#,
        ] {
            assert_eq!(of_transfer(params), Err(ScanError::Owned { key }), "{params}");
        }
        for params in [
            r#"{"do_remote_prefill":false,"remote_host":null}"#,
            r#"{"own":{"remote_host":"x"}}"#,
            "null",
        ] {
            assert_eq!(of_transfer(params), Ok(false), "{params}");
        }
        let ready = r#"{"prompt_token_ids":[1,2]}"#;
        assert_eq!(of_transfer(ready), Ok(true), "another prompt than the body's");
    }

    #[test]
    fn what_engines_would_take_for_an_object_is_one() {
        let key = "kv_transfer_params";
        for params in ["[{}]", "\"{}\"", "1", "false", "\"x\",\"kv_transfer_params\":null"] {
            assert_eq!(of_transfer(params), Err(ScanError::MemberNotObject { key }), "{params}");
        }
        let key = "vllm_xargs";
        let list = r#""vllm_xargs":[["kv_cache_report_mode","full"]]"#;
        assert_eq!(scanned(list), Err(ScanError::MemberNotObject { key }));
        let key = "ec_transfer_params";
        for other in ["{}", "\"x\"", "[]"] {
            let body = format!(r#""ec\u005ftransfer_params":{other}"#);
            assert_eq!(scanned(&body), Err(ScanError::Owned { key }), "{other}");
        }
    }

    #[test]
    fn extra_arguments_are_no_side_door() {
        for (body, key) in [
            (r#"{"kv_cache_report_mode":"full"}"#, "kv_cache_report_mode"),
            (r#"{"kv_cache\u005freport_mode":null}"#, "kv_cache_report_mode"),
            (r#"{"kv_transfer_params":"x"}"#, "kv_transfer_params"),
            (r#"{"ec_transfer_params":["x"]}"#, "ec_transfer_params"),
            (r#"{"kv_cache_report_mode":"full"},"vllm_xargs":{}"#, "kv_cache_report_mode"),
            (r#"{},"vllm_xargs":{"a":{},"kv_transfer_params":1}"#, "kv_transfer_params"),
        ] {
            for name in ["vllm_xargs", "vllm\\u005fxargs"] {
                let scanned = scanned(&format!(r#""{name}":{body}"#));
                let Err(ScanError::Owned { key: reported }) = scanned else { panic!("{body}") };
                assert_eq!(reported, format!("vllm_xargs.{key}"), "{body}");
            }
        }
        for body in ["null", "{}", r#"{"session_id":"s","own":{"kv_cache_report_mode":1}}"#] {
            assert_eq!(scanned(&format!(r#""vllm_xargs":{body}"#)), Ok(false), "{body}");
        }
    }
}
