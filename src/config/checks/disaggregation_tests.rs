//! Roles and what belongs to them, as people meet them: files and flags in, findings out.

use crate::*;

fn findings(text: &str) -> Vec<String> {
    let loaded = load(Some(ConfigText { name: "f", text }), &Flags::default());
    loaded.findings.iter().map(ToString::to_string).collect()
}

/// The findings on a vLLM or SGLang pair of which the prefill worker has these keys.
fn of_prefill(engine: &str, keys: &str) -> Vec<String> {
    findings(&format!(
        "engine = \"{engine}\"\n[[worker]]\nurl = \"http://d:1\"\nrole = \"decode\"\n\
         [[worker]]\nurl = \"http://p:1\"\nrole = \"prefill\"\n{keys}"
    ))
}

#[test]
fn pairs_of_every_kind_are_fine() {
    for (engine, keys) in [
        ("sglang", ""),
        ("sglang", "bootstrap_host = \"[fd00::1]\"\nbootstrap_port = 8998"),
        ("auto", "bootstrap_host = \"fd00::1\"\ntopology = \"rack-1\""),
        ("vllm", ""),
        ("vllm", "kv_flow = \"two_phase\""),
        ("vllm", "kv_flow = \"push\"\nkv_engine_id = \"e\"\nkv_port = 5600\nkv_tp_size = 2"),
        ("vllm", "kv_flow = \"mooncake\"\nbootstrap_port = 8998"),
    ] {
        assert_eq!(of_prefill(engine, keys), [""; 0], "{engine}: {keys}");
    }
}

#[test]
fn keys_that_do_not_fit_are_found() {
    for (engine, keys, expected) in [
        (
            "sglang",
            "kv_flow = \"push\"",
            "f:8:11: error: `kv_flow` is for vLLM, and this worker is \"sglang\"",
        ),
        ("vllm", "kv_flow = \"push\"", "f:8:11: error: `kv_engine_id` is missing"),
        ("vllm", "kv_flow = \"pull\"", "f:8:11: error: `worker.kv_flow`: \"pull\" is not one of"),
        ("vllm", "kv_port = 5600", "f:8:11: warning: `kv_port` is not used: `kv_flow` is not"),
        ("vllm", "bootstrap_port = 1", "f:8:18: warning: `bootstrap_port` is not used"),
        ("sglang", "bootstrap_host = \"a b\"", "f:8:18: error: `bootstrap_host` \"a b\": the host"),
        ("sglang", "bootstrap_host = \"h:1\"", "f:8:18: error: `bootstrap_host` \"h:1\": the host"),
        (
            "sglang",
            "bootstrap_host = \"10.0.0\"",
            "f:8:18: error: `bootstrap_host` \"10.0.0\": the",
        ),
        ("sglang", "bootstrap_port = 0", "f:8:18: error: `worker.bootstrap_port` is 0"),
        ("sglang", "bootstrap_port = 70000", "f:8:18: error: `worker.bootstrap_port`: 70000 is"),
        ("sglang", "topology = \"\"", "f:8:12: error: `topology` is a label"),
        ("openai", "", "f:7:8: error: `role` is \"prefill\", but an `openai` worker cannot"),
    ] {
        let found = of_prefill(engine, keys);
        let fits = found.iter().any(|finding| finding.starts_with(expected));
        assert!(fits, "{engine}, {keys}: {found:?}");
    }
    let push = "kv_flow = \"push\"\nkv_engine_id = \"e\"";
    for (keys, expected) in [
        ("kv_port = 0", "f:10:11: error: `worker.kv_port` is 0"),
        (
            "kv_port = 65534\nranks = 3",
            "f:10:11: error: the last rank's port, counted up from `kv_port`, would be 65536",
        ),
    ] {
        let found = of_prefill("vllm", &format!("{push}\n{keys}"));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{keys}: {found:?}");
    }
    assert_eq!(of_prefill("vllm", &format!("{push}\nkv_port = 65534\nranks = 2")), [""; 0]);
    let zero = of_prefill("vllm", "kv_flow = \"push\"\nkv_engine_id = \"\"\nkv_tp_size = 0");
    assert!(zero[0].starts_with("f:9:16: error: `kv_engine_id` has to be"), "{zero:?}");
    assert!(zero[1].starts_with("f:10:14: error: `worker.kv_tp_size` is 0"), "{zero:?}");
}

#[test]
fn what_belongs_to_prefill_workers_is_not_taken_from_others() {
    let decode = |keys: &str| {
        findings(&format!(
            "engine = \"sglang\"\n[[worker]]\nurl = \"http://p:1\"\nrole = \"prefill\"\n\
             [[worker]]\nurl = \"http://d:1\"\nrole = \"decode\"\n{keys}"
        ))
    };
    assert_eq!(decode(""), [""; 0]);
    let found = decode("bootstrap_host = \"h\"\nbootstrap_port = 8998");
    assert!(found[0].starts_with("f:8:18: warning: `bootstrap_host` is not used"), "{found:?}");
    assert!(found[1].starts_with("f:9:18: warning: `bootstrap_port` is not used"), "{found:?}");
}

#[test]
fn mooncake_without_questions_needs_its_engine_id() {
    let text = "[[worker]]\nurl = \"http://p:1\"\nengine = \"vllm\"\nrole = \"prefill\"\nkv_flow = \"mooncake\"\n\
                [[worker]]\nurl = \"http://d:1\"\nrole = \"decode\"\n";
    assert_eq!(findings(text), [""; 0]);
    let found = findings(&format!("{text}[health]\nenabled = false\n"));
    assert!(found[0].starts_with("f:5:11: error: `kv_engine_id` is missing"), "{found:?}");
}

/// NIXL's two modes are two connectors, whose halves do not understand each other.
#[test]
fn a_decode_worker_that_no_prefill_worker_hands_to_is_found() {
    let pair = |prefill: &str, decode: &str| {
        findings(&format!(
            "engine = \"vllm\"\n[[worker]]\nurl = \"http://d:1\"\nrole = \"decode\"\n{decode}\n\
             [[worker]]\nurl = \"http://p:1\"\nrole = \"prefill\"\n\
             kv_engine_id = \"e\"\n{prefill}\n"
        ))
    };
    let pull = "kv_flow = \"two_phase\"";
    let push = "kv_flow = \"push\"";
    for (prefill, decode) in [("", ""), ("", pull), (pull, pull), (push, push), (push, "")] {
        assert_eq!(pair(prefill, decode), [""; 0], "{prefill} {decode}");
    }
    for (prefill, decode) in [("", push), (pull, push), (push, pull)] {
        let found = pair(prefill, decode);
        assert_eq!(found.len(), 1, "{prefill} {decode}: {found:?}");
        assert!(
            found[0].starts_with("f:5:11: warning: this decode worker takes KV by"),
            "{found:?}"
        );
    }
    let lonely = findings(&format!(
        "[[worker]]\nurl = \"http://d:1\"\nrole = \"both\"\n{push}\nkv_engine_id = \"e\"\n"
    ));
    assert!(lonely[0].contains("`kv_flow` is not used: the role is \"both\""), "{lonely:?}");
}

/// Issue 39: pairs that can never meet had no finding.
#[test]
fn legs_of_two_engines_or_without_a_common_label_are_found() {
    let pair = |prefill: &str, decode: &str| {
        findings(&format!(
            "[[worker]]\nurl = \"http://p:1\"\nrole = \"prefill\"\n{prefill}\n\
             [[worker]]\nurl = \"http://d:1\"\nrole = \"decode\"\n{decode}\n"
        ))
    };
    let vllm = "engine = \"vllm\"";
    let sglang = "engine = \"sglang\"";
    let label = |label: &str| format!("topology = \"{label}\"");
    for (prefill, decode, word) in [
        (vllm, sglang, "one is SGLang"),
        (sglang, vllm, "one is SGLang"),
        (&*label("a"), &*label("b"), "`topology`"),
    ] {
        let found = pair(prefill, decode);
        assert_eq!(found.len(), 1, "{found:?}");
        let begin = "f:3:8: warning: this worker can be no pair with any decode worker: ";
        assert!(found[0].starts_with(begin) && found[0].contains(word), "{found:?}");
    }
    for (prefill, decode) in [(vllm, vllm), (sglang, sglang), ("", sglang), (&*label("a"), "")] {
        assert_eq!(pair(prefill, decode), [""; 0], "{prefill} {decode}");
    }
    // A further worker without a label may be a partner of any.
    let more = format!("{}\n[[worker]]\nurl = \"http://e:1\"\nrole = \"decode\"\n", label("b"));
    assert_eq!(pair(&label("a"), &more), [""; 0]);
}

#[test]
fn a_push_worker_without_its_engine_id_may_fall_back_to_two_phases() {
    let text = "[[worker]]\nurl = \"http://p:1\"\nengine = \"vllm\"\nrole = \"prefill\"\nkv_flow = \"push\"\n\
                [[worker]]\nurl = \"http://d:1\"\nrole = \"decode\"\n";
    let found = findings(&format!("{text}[disaggregation]\nfallback = \"two_phase\"\n"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("f:5:11: warning: `kv_engine_id` is missing"), "{found:?}");
}

#[test]
fn a_loopback_address_is_of_no_use_to_other_machines() {
    let pair = |decode: &str, keys: &str| {
        findings(&format!(
            "[[worker]]\nurl = \"http://127.0.0.1:1\"\nrole = \"prefill\"\n{keys}\n\
             [[worker]]\nurl = \"http://{decode}\"\nrole = \"decode\"\n"
        ))
    };
    let found = pair("gpu2:1", "");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("f:2:7: warning: decode workers on other machines"), "{found:?}");
    assert_eq!(pair("gpu2:1", "bootstrap_host = \"gpu1\""), [""; 0]);
    assert_eq!(pair("gpu2:1", "engine = \"vllm\""), [""; 0], "it answers where it is");
    assert_eq!(pair("[::1]:1", ""), [""; 0], "all on one machine");
}

#[test]
fn a_leg_without_the_other_is_found() {
    let worker = |role: &str, engine: &str| {
        format!("[[worker]]\nurl = \"http://{role}:1\"\nrole = \"{role}\"\nengine = \"{engine}\"\n")
    };
    let found = findings(&worker("prefill", "vllm"));
    assert!(found[0].starts_with("f:3:8: warning: there are prefill workers but no decode"));
    let found = findings(&worker("decode", "sglang"));
    assert!(found[0].starts_with("f:3:8: warning: there are SGLang decode workers but no"));
    assert_eq!(findings(&worker("decode", "vllm")), [""; 0], "it answers alone");
    let asked = format!("{}[[worker]]\nurl = \"http://x:1\"\n", worker("prefill", "sglang"));
    assert_eq!(findings(&asked), [""; 0], "the other may turn out to decode");
}

#[test]
fn limits_of_roles_have_ranges() {
    let with = |key: &str| {
        findings(&format!("[disaggregation]\n{key}\n[[worker]]\nurl = \"http://a:1\"\n"))
    };
    for (key, expected) in [
        ("prefill_timeout = \"0s\"", "f:2:19: error: `disaggregation.prefill_timeout` is 0"),
        ("uncached_tokens_min = 99999999", "f:2:23: warning: `disaggregation.uncached_tokens_min`"),
        ("decode_kv_use_percent = 1001", "f:2:25: error: `disaggregation.decode_kv_use_percent`"),
        ("fallback = \"whole\"", "f:2:12: error: `disaggregation.fallback`: \"whole\" is not one"),
    ] {
        let found = with(key);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{key}: {found:?}");
    }
    assert_eq!(with("prefill_concurrency_max = 0\ndecode_kv_use_percent = 0"), [""; 0]);
}

#[test]
fn flags_give_roles() {
    let flags = Flags {
        workers: vec!["http://w:1".to_owned()],
        prefill: vec!["http://p:1".to_owned(), "p2:1".to_owned()],
        decode: vec!["http://d:1".to_owned()],
        kv_events: ["-", "tcp://p:5557"].map(str::to_owned).to_vec(),
        ..Flags::default()
    };
    let text = "[[worker]]\nurl = \"http://d:1\"\nname = \"known\"\nrole = \"both\"\n\
                [[worker]]\nurl = \"http://left-out:1\"\n";
    let loaded = load(Some(ConfigText { name: "f", text }), &flags);
    let said: Vec<String> = loaded.findings.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("--prefill p2:1: error: `url` \"p2:1\""), "{said:?}");
    let workers: Vec<_> = loaded.config.workers.iter().map(|w| (&*w.url, w.role)).collect();
    assert_eq!(
        workers,
        [
            ("http://w:1", WorkerRole::Auto),
            ("http://p:1", WorkerRole::Prefill),
            ("p2:1", WorkerRole::Prefill),
            ("http://d:1", WorkerRole::Decode),
        ]
    );
    assert_eq!(loaded.config.workers[1].kv_events, ["tcp://p:5557"]);
    assert_eq!(loaded.config.workers[3].name.as_deref(), Some("known"));
}

#[test]
fn limits_of_roles_change_by_reload_and_roles_by_restart() {
    let config = |text: &str| Config::from_toml(text).unwrap();
    let worker = |role: &str| format!("[[worker]]\nurl = \"http://d:1\"\nrole = \"{role}\"\n");
    let mut running = config(&worker("decode"));
    let wanted = config(&format!("{}[disaggregation]\nuncached_tokens_min = 9\n", worker("both")));
    let changes = running.take_over(&wanted);
    assert_eq!(changes.applied, ["disaggregation.uncached_tokens_min"]);
    assert_eq!(changes.restart, ["worker.0.role"]);
    assert_eq!(running.flow.disaggregation.uncached_tokens_min, 9);
}

#[test]
fn pools_that_count_for_nothing_are_found() {
    const KV: &str = "policy = \"kv\"";
    let long = format!("kv_pool = \"{}\"", "p".repeat(65));
    for (head, keys, expected) in [
        (KV, "kv_pool = \"p\"", ""),
        (KV, &*format!("kv_pool = \"{}\"", "p".repeat(64)), ""),
        (KV, "kv_pool = \"a b\"", "error: `kv_pool` is a name: visible ASCII"),
        (KV, "kv_pool = \"\"", "error: `kv_pool` is a name: visible ASCII"),
        (KV, &*long, "error: `kv_pool` is a name of 65 bytes, more than 64"),
        ("policy = \"random\"", "kv_pool = \"p\"", "warning: `kv_pool` is not used: the policy is"),
        (
            "policy = \"kv\"\nkv.pool_credit_percent = 0",
            "kv_pool = \"p\"",
            "warning: `kv_pool` is not used: `kv.",
        ),
        (KV, "engine = \"openai\"\nkv_pool = \"p\"", "warning: `kv_pool` is not used: an `openai`"),
    ] {
        let text = format!("{head}\n[[worker]]\nurl = \"http://a:1\"\n{keys}");
        let found: Vec<String> =
            findings(&text).into_iter().filter(|f| f.contains("kv_pool")).collect();
        assert_eq!(found.len(), usize::from(!expected.is_empty()), "{keys}: {found:?}");
        assert!(found.iter().all(|found| found.contains(expected)), "{keys}: {found:?}");
    }
}

#[test]
fn pools_of_blocks_that_never_match_are_found() {
    for (first, second, expected) in [
        ("block_size = 16", "block_size = 16", ""),
        ("block_size = 16", "", ""),
        ("block_size = 16", "block_size = 32", "different block sizes, 16 and 32"),
        ("engine = \"vllm\"", "engine = \"sglang\"", "different engines, vLLM and SGLang"),
        ("engine = \"vllm\"", "engine = \"auto\"", ""),
        ("models = [\"m\"]\nengine = \"vllm\"", "models = [\"n\"]\nengine = \"sglang\"", ""),
    ] {
        let text = format!(
            "policy = \"kv\"\n[[worker]]\nurl = \"http://a:1\"\nkv_pool = \"p\"\n{first}\n\
             [[worker]]\nurl = \"http://b:1\"\nkv_pool = \"p\"\n{second}"
        );
        let found: Vec<String> =
            findings(&text).into_iter().filter(|f| f.contains("the pool")).collect();
        assert_eq!(found.len(), usize::from(!expected.is_empty()), "{second}: {found:?}");
        assert!(found.iter().all(|found| found.contains(expected)), "{second}: {found:?}");
    }
}
