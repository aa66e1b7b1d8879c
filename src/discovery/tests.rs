//! Discovery against recorded answers.

use super::descriptions::describe::{
    DiscoveryError, Subject, assume, check_health, discover, is_asleep,
};
use super::descriptions::description::{
    DescribedRank, Description, Listing, events_of_vllm, ranks_of_vllm_metrics, read_models,
    read_sglang_info,
};
use super::descriptions::event_announcement::EventAnnouncement;
use super::descriptions::examination::refused_adapter;
use super::http::WorkerClient;
use super::test_support::{Answers, PLAIN, SGLANG, VLLM, VLLM_RUST, fake, refusing};
use super::trouble_help::trouble_help;
use forebay_config::{AdapterConfig, EngineKind, WorkerConfig, WorkerRole, WorkerUrl};
use forebay_fleet::worker::{Dialect, Role};
use forebay_kv_events::test_support::block_on_local;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

#[test]
fn a_configured_health_path_is_all_that_is_asked() {
    const LITELLM: Answers = &[("/health/liveliness", ""), ("/v1/models", "")];
    block_on_local(async {
        let asker = asker(refusing(LITELLM, &[("/health", 500)]).await);
        let check = async |path| check_health(&asker, path, Dialect::Openai).await.is_ok();
        assert!(check(Some("/health/liveliness")).await);
        assert!(!check(None).await, "the usual one is asked");
        assert!(!check(Some("/health/readiness")).await, "and no other instead of a missing one");
    });
}

/// Issue 39: an engine without the route was found by the first client that asked for an adapter.
#[test]
fn an_engine_without_the_route_of_adapters_is_found() {
    block_on_local(async {
        let adapter = |of: &str| {
            let [name, path] = ["sql", "/sql"].map(str::to_owned);
            [AdapterConfig { name, path, of: of.to_owned(), copies: 1 }]
        };
        let route: &[(&str, u16)] = &[("/v1/load_lora_adapter", 405)];
        for (answers, refused, of, is_found) in [
            (VLLM, &[][..], "tiny", true),
            (VLLM, route, "tiny", false),
            (VLLM, &[], "other", false),
            (SGLANG, &[], "tiny", false),
        ] {
            let address = refusing(answers, refused).await;
            let description = described_at(address, &WorkerConfig::default()).await.unwrap();
            let found = refused_adapter(&asker(address), &description, &adapter(of)).await;
            assert_eq!(found.is_some(), is_found, "{refused:?} {of}: {found:?}");
            let what = "the engine loads no adapter, such as \"sql\": ";
            assert!(found.is_none_or(|found| found.what.starts_with(what)));
        }
    });
}

fn asker(address: SocketAddr) -> WorkerClient {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    WorkerClient::new(client, &format!("http://{address}"), None, Duration::from_secs(5))
}

async fn described(answers: Answers, config: &WorkerConfig) -> Result<Description, DiscoveryError> {
    described_at(fake(answers).await, config).await
}

async fn described_at(
    address: SocketAddr,
    config: &WorkerConfig,
) -> Result<Description, DiscoveryError> {
    let url = WorkerUrl::parse("http://gpu1:8000").unwrap();
    let ip = address.ip();
    let subject = Subject { config, engine: EngineKind::Auto, url: &url, ip, taken_ports: &[] };
    discover(&asker(address), subject).await
}

fn names(description: &Description) -> Vec<&str> {
    description.models.iter().map(|model| &*model.name).collect()
}

fn streams(description: &Description) -> Vec<String> {
    let shown = |rank: &DescribedRank| {
        let replay = |events: &EventAnnouncement| {
            events.replay.as_ref().map_or_else(String::new, |r| format!(" {r}"))
        };
        let events = rank.events.as_ref();
        events.map_or("-".to_owned(), |events| {
            format!("{} {}{}", events.endpoint, events.topic, replay(events))
        })
    };
    description.ranks.iter().map(shown).collect()
}

#[test]
fn recorded_servers_are_recognised() {
    block_on_local(async {
        let none = WorkerConfig::default();
        let vllm = described(VLLM, &none).await.unwrap();
        assert_eq!(vllm.dialect, Dialect::Vllm);
        assert_eq!(names(&vllm), ["tiny"]);
        assert_eq!(vllm.models[0].root.as_deref(), Some("/srv/models/tiny-random-llama"));
        assert!(vllm.models[0].card_json.starts_with("{\"id\":\"tiny\""));
        assert_eq!(
            streams(&vllm),
            ["tcp://gpu1:5557 kv@tiny tcp://gpu1:5657", "tcp://gpu1:5558 kv@tiny tcp://gpu1:5658"]
        );
        assert!(vllm.ranks.iter().all(|r| (r.block_size_tokens, r.kv_block_count) == (32, 64)));

        let rust = described(VLLM_RUST, &none).await.unwrap();
        assert_eq!(rust.dialect, Dialect::Vllm);
        assert_eq!(rust.ranks.len(), 2, "two engines in the metrics");
        assert!(rust.server.is_rust && rust.in_words().starts_with("vLLM with its Rust frontend"));
        assert!(!vllm.server.is_rust, "the Python frontend lists `vllm`");
        assert_eq!(streams(&rust), ["-", "-"]);

        let sglang = described(SGLANG, &none).await.unwrap();
        assert_eq!(sglang.dialect, Dialect::Sglang);
        assert_eq!(names(&sglang), ["tiny"]);
        assert!(sglang.server.is_rust, "the recording is of the Rust server");
        assert_eq!(sglang.models[0].root.as_deref(), Some("/srv/models/tiny-random-llama"));
        assert_eq!(streams(&sglang), ["tcp://gpu1:6657 "]);
        let load = sglang.ranks[0].load.as_ref().unwrap();
        assert_eq!((load.endpoint.to_string(), &*load.topic), ("tcp://gpu1:6658".into(), "load"));
        assert_eq!(sglang.ranks[0].block_size_tokens, 4);
        assert_eq!(sglang.ranks[0].kv_block_count, 25_000);

        let plain = described(PLAIN, &none).await.unwrap();
        assert_eq!((plain.dialect, names(&plain)), (Dialect::Openai, vec!["a", "b"]));
        assert_eq!(plain.models[1].parent.as_deref(), Some("a"));

        let silent = described(&[], &none).await.unwrap();
        assert_eq!(
            (silent.dialect, silent.models.len(), silent.ranks.len()),
            (Dialect::Openai, 0, 1)
        );
        let odd = described(&[("/v1/models", "<html>")], &none).await;
        assert!(matches!(odd, Err(DiscoveryError::Models)));
    });
}

/// A proxy that lists models of its own hides `owned_by`, but not the version.
#[test]
fn the_version_names_the_rust_frontend_too() {
    const LIST: &str = r#"{"data":[{"id":"m","owned_by":"proxy"}]}"#;
    const METRICS: &str = "vllm:num_requests_running{engine=\"0\"} 0\n";
    const RUST: Answers = &[
        ("/v1/models", LIST),
        ("/metrics", METRICS),
        ("/version", r#"{"version":"0.33.0","rust_frontend_version":"0.33.0"}"#),
    ];
    const PYTHON: Answers =
        &[("/v1/models", LIST), ("/metrics", METRICS), ("/version", r#"{"version":"0.33.0"}"#)];
    block_on_local(async {
        let config = WorkerConfig::default();
        for (answers, is_rust) in [(RUST, true), (PYTHON, false)] {
            let found = described(answers, &config).await.unwrap();
            assert_eq!(found.server.is_rust, is_rust, "{answers:?}");
        }
        // A failure of the moment is no change of the frontend.
        let failing = refusing(RUST, &[("/version", 503)]).await;
        assert!(described_at(failing, &config).await.is_err());
    });
}

/// A worker that fails to answer for a moment is what it was, not one without a role or further
/// ranks.
#[test]
fn a_page_that_fails_does_not_change_what_a_worker_is() {
    const PREFILL: Answers = &[
        ("/v1/models", r#"{"data":[{"id":"m","owned_by":"sglang"}]}"#),
        (
            "/server_info",
            r#"{"model_path":"m","dp_size":2,"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998}"#,
        ),
    ];
    const UNREADABLE: Answers = &[
        ("/v1/models", r#"{"data":[{"id":"m","owned_by":"sglang"}]}"#),
        ("/server_info", "<html>"),
    ];
    block_on_local(async {
        let auto = WorkerConfig::default();
        let told = WorkerConfig { role: WorkerRole::Prefill, ..WorkerConfig::default() };
        let prefill = described(PREFILL, &auto).await.unwrap();
        assert_eq!((prefill.role, prefill.ranks.len()), (Role::Prefill, 2));
        for failed in [
            &[("/server_info", 500)][..],
            &[("/server_info", 503)],
            &[("/server_info", 429)],
            &[("/server_info", 404), ("/get_server_info", 502)],
        ] {
            for config in [&auto, &told] {
                let found = described_at(refusing(PREFILL, failed).await, config).await;
                assert!(matches!(found, Err(DiscoveryError::Ask(_))), "{failed:?} {found:?}");
            }
        }
        // It never tells: what is configured counts, and nothing is assumed.
        for missing in
            [&[("/server_info", 404)][..], &[("/server_info", 401)], &[("/server_info", 403)]]
        {
            let found = described_at(refusing(PREFILL, missing).await, &auto).await;
            assert!(matches!(found, Err(DiscoveryError::Role)), "{missing:?} {found:?}");
            let found = described_at(refusing(PREFILL, missing).await, &told).await.unwrap();
            assert_eq!((found.role, found.ranks.len()), (Role::Prefill, 1));
        }
        assert!(matches!(described(UNREADABLE, &auto).await, Err(DiscoveryError::Role)));
        for failed in [&[("/metrics", 500)][..], &[("/kv_event_sources", 503)]] {
            let found = described_at(refusing(VLLM, failed).await, &auto).await;
            assert!(matches!(found, Err(DiscoveryError::Ask(_))), "{failed:?} {found:?}");
        }
        let closed = described_at(refusing(VLLM, &[("/metrics", 403)]).await, &auto).await.unwrap();
        assert_eq!(closed.dialect, Dialect::Vllm, "a proxy in front of it keeps them to itself");
    });
}

/// What each engine tells of how many requests its ranks run at once. The recorded servers do not
/// tell.
#[test]
fn declared_capacity_is_found_where_engines_tell_it() {
    const SETTLED: Answers = &[
        ("/v1/models", recorded!("sglang-0.5.23/models.json")),
        (
            "/server_info",
            r#"{"model_path":"m","page_size":4,"dp_size":2,"enable_dp_attention":true,"max_running_requests":64,
            "internal_states":[{"effective_max_running_requests_per_dp":32},{"effective_max_running_requests_per_dp":31}]}"#,
        ),
        ("/v1/loads", r#"{"loads":[{"dp_rank":0,"max_running_requests":9}]}"#),
    ];
    const LOADS: Answers = &[
        ("/v1/models", recorded!("sglang-0.5.23/models.json")),
        ("/server_info", recorded!("sglang-0.5.23/server_info.json")),
        ("/v1/loads", r#"{"loads":[{"dp_rank":0,"max_running_requests":48}]}"#),
    ];
    const DEVELOPED: Answers = &[
        ("/v1/models", recorded!("vllm-0.32.0/models.json")),
        ("/metrics", recorded!("vllm-rs-0.33.0/metrics.txt")),
        ("/server_info", r#"{"vllm_config":{"scheduler_config":{"max_num_seqs":128}}}"#),
    ];
    const LLAMA: Answers = &[
        ("/v1/models", r#"{"data":[{"id":"g","owned_by":"llamacpp"}]}"#),
        ("/props", r#"{"total_slots":4}"#),
    ];
    const NOT_LLAMA: Answers =
        &[("/v1/models", r#"{"data":[{"id":"g"}]}"#), ("/props", r#"{"total_slots":4}"#)];
    block_on_local(async {
        for (answers, wanted) in [
            (VLLM, &[None, None][..]),
            (VLLM_RUST, &[None, None]),
            (SGLANG, &[None]),
            (SETTLED, &[Some(32), Some(31)]),
            (LOADS, &[Some(48)]),
            (DEVELOPED, &[Some(128), Some(128)]),
            (LLAMA, &[Some(4)]),
            (NOT_LLAMA, &[None]),
        ] {
            let found = described(answers, &WorkerConfig::default()).await.unwrap();
            let told: Vec<_> = found.ranks.iter().map(|rank| rank.running_max).collect();
            assert_eq!(told, wanted, "{:?}", found.dialect);
        }
    });
}

#[test]
fn health_asks_the_cheapest_question_of_each_engine() {
    block_on_local(async {
        for (answers, dialect, well) in [
            (VLLM, Dialect::Vllm, true),
            (SGLANG, Dialect::Sglang, true),
            (PLAIN, Dialect::Openai, true),
            (&[], Dialect::Openai, false),
            (&[], Dialect::Sglang, false),
        ] {
            let asker = asker(fake(answers).await);
            assert_eq!(check_health(&asker, None, dialect).await.is_ok(), well);
        }
    });
}

#[test]
fn the_workers_own_settings_win() {
    block_on_local(async {
        let config = WorkerConfig {
            kv_events: vec!["tcp://*:7000".to_owned()],
            kv_topic: "kv".to_owned(),
            ranks: Some(3),
            models: vec!["tiny".to_owned(), "alias".to_owned()],
            block_size_tokens: Some(8),
            ..WorkerConfig::default()
        };
        let described = described(VLLM, &config).await.unwrap();
        assert_eq!(
            streams(&described),
            [
                "tcp://gpu1:7000 kv tcp://gpu1:5657",
                "tcp://gpu1:7001 kv tcp://gpu1:5658",
                "tcp://gpu1:7002 kv"
            ],
            "the announced replay stays"
        );
        assert!(described.ranks.iter().all(|rank| rank.block_size_tokens == 8));
        assert_eq!(names(&described), ["tiny", "alias"]);
        assert!(described.models[0].root.is_some(), "what is known of a configured name is kept");
    });
    let url = WorkerUrl::parse("http://gpu1:8000").unwrap();
    let config = WorkerConfig::default();
    let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
    let engine = EngineKind::Auto;
    let subject = Subject { config: &config, engine, url: &url, ip, taken_ports: &[] };
    let assumed = assume(subject).unwrap();
    assert_eq!((assumed.models.len(), assumed.ranks.len()), (0, 1));
}

/// Issue 35: each of these made the worker take any model.
#[test]
fn a_worker_without_a_list_is_known_by_it() {
    const EMPTY: Answers = &[("/v1/models", r#"{"data":[]}"#)];
    const STAR: Answers = &[("/v1/models", r#"{"data":[{"id":"*"}]}"#), ("/health", "")];
    const HEALTH: Answers = &[("/health", "")];
    block_on_local(async {
        let none = WorkerConfig::default();
        let models = |names: &[&str]| WorkerConfig {
            models: names.iter().map(|&name| name.to_owned()).collect(),
            ..WorkerConfig::default()
        };
        let any = models(&["*"]);
        let nothing = |status, is_well| Listing::Nothing { status, is_well };
        let cases: [(Answers, &WorkerConfig, Listing); 7] = [
            (EMPTY, &none, nothing(None, true)),
            (STAR, &none, nothing(None, true)),
            (HEALTH, &none, nothing(Some(404), true)),
            (&[], &none, nothing(Some(404), false)),
            (&[], &any, Listing::Any),
            (STAR, &models(&["a", "*"]), Listing::Any),
            (&[], &models(&["a"]), Listing::Configured),
        ];
        for (answers, config, listing) in cases {
            let described = described(answers, config).await.unwrap();
            assert_eq!(described.listing, listing, "{answers:?}");
            let configured = config.models.iter().filter(|name| *name != "*");
            assert_eq!(names(&described), configured.collect::<Vec<_>>());
        }
        for status in [405, 501] {
            let refused: &[_] = Box::leak(Box::new([("/v1/models", status)]));
            let address = refusing(HEALTH, refused).await;
            let described = described_at(address, &none).await.unwrap();
            assert_eq!(described.listing, nothing(Some(status), true));
            assert!(described.in_words().contains("no model listed"), "{}", described.in_words());
        }
        // The engine's names count beside `*`.
        let described = described(VLLM, &any).await.unwrap();
        assert_eq!((names(&described), described.listing), (vec!["tiny"], Listing::Any));
    });
}

#[test]
fn odd_answers_are_survived() {
    assert!(read_models("[]").is_none());
    assert_eq!(read_models(r#"{"data":[1,{"id":2},{"id":"x"}]}"#).unwrap().models.len(), 1);
    let odd = r#"{"data":[{"id":"*"},{"id":""},{"id":"x"},{"id":"*x"}]}"#;
    let named: Vec<_> = read_models(odd).unwrap().models;
    assert_eq!(named.iter().map(|model| &*model.name).collect::<Vec<_>>(), ["x", "*x"]);
    assert!(read_sglang_info("nonsense", "h").is_none());
    let info =
        read_sglang_info(r#"{"dp_size":4000000000,"page_size":-1,"kv_events":7}"#, "h").unwrap();
    assert_eq!(info.ranks.len(), forebay_base::limits::RANKS_MAX);
    let ranks = ranks_of_vllm_metrics("vllm:num_requests_running{engine=\"4000000000\"} 1\n");
    assert_eq!(ranks.len(), 1);
    let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
    assert!(events_of_vllm("{\"x\":{},\"99999999\":{}}", "h", ip).is_empty());
    let off = r#"{"0":{"enable_kv_cache_events":false,"endpoint":"tcp://*:1"},"1":{"enable_kv_cache_events":true,
        "publisher":"null","endpoint":"tcp://*:1"}}"#;
    assert_eq!(events_of_vllm(off, "h", ip), [(0, None), (1, None)].into());
    let rust = r#"{"frontend":"rust","dp_size":2,"page_size":1}"#;
    assert!(read_sglang_info(rust, "h").unwrap().server.port_per_rank);
    let tiered = r#"{"page_size":64,"enable_hierarchical_cache":true}"#;
    assert!(read_sglang_info(tiered, "h").unwrap().ranks[0].expects_tiers);
    assert!(!read_sglang_info(rust, "h").unwrap().ranks[0].expects_tiers);
}

/// Decode workers compare pages. With context parallelism a block of KV events is several pages.
#[test]
fn the_page_of_sglang_is_not_the_block_of_its_events() {
    let info = r#"{"page_size":64,"kv_events":{"block_size":128}}"#;
    let info = read_sglang_info(info, "h").unwrap();
    assert_eq!(info.ranks[0].block_size_tokens, 128);
    assert_eq!(info.server.page_tokens, 64);
    let silent = read_sglang_info(r#"{"dp_size":1}"#, "h").unwrap();
    assert_eq!(silent.server.page_tokens, 0);
}

#[test]
fn a_vllm_that_sleeps_is_found_asleep() {
    let asleep = |answers: Answers| async move { is_asleep(&asker(fake(answers).await)).await };
    block_on_local(async {
        assert!(asleep(&[("/is_sleeping", r#"{"is_sleeping":true}"#)]).await);
        assert!(!asleep(&[("/is_sleeping", r#"{"is_sleeping":false}"#)]).await);
        assert!(!asleep(&[]).await, "without the development mode");
    });
}

/// A key that the engine refuses is another fault than a missing key.
#[test]
fn a_wrong_key_is_no_missing_key() {
    block_on_local(async {
        let address = refusing(&[], &[("/v1/models", 401)]).await;
        let url = WorkerUrl::parse("http://gpu1:8000").unwrap();
        let config = WorkerConfig::default();
        let ip = address.ip();
        let subject =
            Subject { config: &config, engine: EngineKind::Auto, url: &url, ip, taken_ports: &[] };
        for (key, fault, help) in [
            (None, "it refuses the question (401)", "set `api_key_file`"),
            (Some("k".to_owned()), "it refuses the key of the router (401)", "compare `api_key`"),
        ] {
            let client = reqwest::Client::builder().no_proxy().build().unwrap();
            let base = format!("http://{address}");
            let asker = WorkerClient::new(client, &base, key, Duration::from_secs(5));
            let error = discover(&asker, subject).await.unwrap_err().to_string();
            assert!(error.contains(fault), "{error}");
            assert!(trouble_help(&error).contains(help), "{}", trouble_help(&error));
        }
    });
}
