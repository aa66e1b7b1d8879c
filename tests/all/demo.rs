//! The demo from end to end, short.

use forebay::demo::{DemoConfig, run};
use serde_json::Value;
use std::time::Duration;

#[test]
fn a_short_demo_writes_lines_tables_and_json() {
    let dir = tempfile::tempdir().expect("folder");
    let json = dir.path().join("demo.json");
    let config =
        DemoConfig { duration: Duration::from_secs(3), json: Some(json.clone()), terminal: false };
    let mut out = Vec::new();
    run(&config, &mut out).expect("runs");
    let text = String::from_utf8(out).expect("text");
    eprintln!("{text}");
    assert!(text.contains("TTFT p99") && text.contains("cache hit rate"), "{text}");
    assert!(text.starts_with("Live page, while the demo runs: http://127.0.0.1:"), "{text}");
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(json).expect("file")).expect("json");
    let policies = json["policies"].as_object().expect("object");
    assert_eq!(policies.keys().collect::<Vec<_>>(), ["kv", "round_robin"]);
    for policy in policies.values() {
        let fields: Vec<_> = policy.as_object().expect("object").keys().collect();
        assert_eq!(
            fields,
            ["requests", "errors", "hit_rate", "ttft_ms_p50", "ttft_ms_p99", "requests_per_s"]
        );
        assert!(policy["requests"].as_u64() > Some(10), "{policy}");
        assert_eq!(policy["errors"], 0);
    }
    let hit_rate = |policy: &str| policies[policy]["hit_rate"].as_f64().expect("number");
    assert!(hit_rate("kv") > hit_rate("round_robin"), "{policies:?}");
    let killed = &json["killed_engine"];
    for form in ["whole", "streams"] {
        let count = |name: &str| killed[form][name].as_u64().expect("number");
        assert!(count("answered") > 10, "{killed}");
        assert_eq!(count("failed"), 0, "{killed}");
        assert_eq!(count("sent"), count("answered") + count("cut"), "{killed}");
    }
    assert_eq!(killed["whole"]["cut"], 0, "{killed}");
}
