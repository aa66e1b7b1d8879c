//! Requests that each rank runs at once, as far as its engine reports the number. Sans-IO like
//! [`super::description`]: bodies in, numbers out. A number is the limit of a single rank; past it
//! requests wait inside the engine.

use serde_json::Value;

/// Larger numbers are ignored; engines run some thousands at most.
const RUNNING_MAX_MAX: u64 = 1 << 20;

/// SGLang's `/server_info`: the limit that the rank's scheduler has settled on, else the server's
/// argument.
///
/// The scheduler's value applies to a single rank. The argument is divided among ranks that share
/// attention (`enable_dp_attention`); replicas of the whole engine each get it in full. Some
/// versions up to 0.5.19 divided it among replicas too; those versions all report the scheduler's
/// value, which takes precedence.
pub(crate) fn of_sglang_info(info: &Value, dp_rank: u32, dp_size: u32) -> Option<u32> {
    let states = info.get("internal_states").and_then(Value::as_array);
    let settled = states.and_then(|states| {
        let own = states.get(usize::try_from(dp_rank).ok()?);
        // All ranks are configured alike; behind some front ends only the first rank reports.
        own.or(states.first())?.get("effective_max_running_requests_per_dp").and_then(believed)
    });
    settled.or_else(|| {
        let field = |key: &str| {
            let deployment = info.get("deployment_info");
            info.get(key).or_else(|| deployment.and_then(|deployment| deployment.get(key)))
        };
        let all = field("max_running_requests").and_then(believed)?;
        let is_shared = field("enable_dp_attention").and_then(Value::as_bool).unwrap_or(false);
        let share = if is_shared { all.checked_div(dp_size)? } else { all };
        (share > 0).then_some(share)
    })
}

/// SGLang's `/v1/loads`: the limit of each rank.
pub(crate) fn of_sglang_loads(body: &str) -> Vec<(u32, u32)> {
    let answer: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    let loads = answer.get("loads").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let each = loads.iter().filter_map(|load| {
        let rank = match load.get("dp_rank") {
            None | Some(Value::Null) => 0,
            Some(number) => u32::try_from(number.as_u64()?).ok()?,
        };
        Some((rank, load.get("max_running_requests").and_then(believed)?))
    });
    each.collect()
}

/// vLLM's `/server_info?config_format=json`, served only in development mode: `max_num_seqs` is the
/// limit per rank. vLLM reports it nowhere else; the metric `kv_cache_max_concurrency` counts
/// requests of the longest possible length, which does not bound usual requests.
pub(crate) fn of_vllm_info(body: &str) -> Option<u32> {
    let info: Value = serde_json::from_str(body).ok()?;
    believed(info.get("vllm_config")?.get("scheduler_config")?.get("max_num_seqs")?)
}

/// llama.cpp's `/props`: its number of slots.
pub(crate) fn of_llama_props(body: &str) -> Option<u32> {
    let props: Value = serde_json::from_str(body).ok()?;
    believed(props.get("total_slots")?)
}

fn believed(value: &Value) -> Option<u32> {
    let number = value.as_u64().filter(|&number| number > 0 && number <= RUNNING_MAX_MAX)?;
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_total_is_shared_out_only_where_the_ranks_share_it() {
        let of = |info: Value, rank, size| of_sglang_info(&info, rank, size);
        let argument = json!({"max_running_requests": 64});
        assert_eq!(of(argument.clone(), 0, 1), Some(64));
        assert_eq!(of(argument, 3, 4), Some(64), "copies of the engine run as many each");
        let attention = json!({"max_running_requests": 66, "enable_dp_attention": true});
        assert_eq!(of(attention, 3, 4), Some(16), "one batch in four parts");
        let rust = json!({"deployment_info":
            {"max_running_requests": 32, "enable_dp_attention": true, "dp_size": 2}});
        assert_eq!(of(rust, 1, 2), Some(16));
        let settled = json!({"max_running_requests": 64, "enable_dp_attention": true,
            "internal_states": [{"effective_max_running_requests_per_dp": 15},
                                {"effective_max_running_requests_per_dp": 14}]});
        assert_eq!(of(settled.clone(), 1, 2), Some(14), "the scheduler's word");
        assert_eq!(of(settled, 7, 8), Some(15), "ranks that do not answer are like the first");
    }

    #[test]
    fn nonsense_is_unknown() {
        for told in [json!(null), json!(0), json!(-4), json!(1.5), json!("64"), json!(u64::MAX)] {
            let info = json!({"max_running_requests": told, "internal_states": [{}, 7]});
            assert_eq!(of_sglang_info(&info, 1, 2), None, "{told}");
            let body = json!({"total_slots": told}).to_string();
            assert_eq!(of_llama_props(&body), None, "{told}");
        }
        let fewer = json!({"max_running_requests": 3, "enable_dp_attention": true});
        assert_eq!(of_sglang_info(&fewer, 0, 4), None, "less than one each");
        for body in ["", "[]", "{}", r#"{"loads":7}"#, r#"{"loads":[1,{"dp_rank":-1}]}"#] {
            assert_eq!(of_sglang_loads(body), []);
            assert_eq!(of_vllm_info(body), None);
        }
    }

    #[test]
    fn ranks_tell_their_own() {
        let body = r#"{"timestamp":"2026-01-01","loads":[
            {"dp_rank":1,"num_running_reqs":2,"max_running_requests":40},
            {"dp_rank":0,"num_running_reqs":0,"max_running_requests":48},
            {"dp_rank":2,"num_running_reqs":0}]}"#;
        assert_eq!(of_sglang_loads(body), [(1, 40), (0, 48)]);
        let body = r#"{"vllm_config":{"scheduler_config":{"max_num_seqs":256}},"vllm_env":{}}"#;
        assert_eq!(of_vllm_info(body), Some(256));
        assert_eq!(of_vllm_info(r#"{"vllm_config":"model='m', max_num_seqs=256"}"#), None);
        assert_eq!(of_llama_props(r#"{"total_slots":4,"model_path":"m.gguf"}"#), Some(4));
    }
}
