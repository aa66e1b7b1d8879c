//! What servers say of their ranks and their part in disaggregation: as recorded, as their sources
//! write it, and as nonsense.

use super::description::{SglangInfo, events_of_vllm, ranks_of_vllm_metrics, read_sglang_info};
use super::kv_source::SglangPlace;
use forebay_base::limits::RANKS_MAX;
use forebay_fleet::worker::Role;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

fn sglang(body: &str) -> SglangInfo {
    read_sglang_info(body, "h").unwrap()
}

fn place(body: &str) -> (Option<Role>, Option<u16>) {
    let SglangPlace { role, bootstrap_port } = sglang(body).place;
    (role, bootstrap_port)
}

fn numbers(info: &SglangInfo) -> Vec<u32> {
    info.ranks.iter().map(|rank| rank.number).collect()
}

#[test]
fn sglang_says_what_it_does_and_where_its_registry_is() {
    let python =
        r#"{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"port":30000}"#;
    assert_eq!(place(python), (Some(Role::Prefill), Some(8_998)));
    let rust = r#"{"frontend":"rust","disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,
        "deployment_info":{"disaggregation_bootstrap_port":30001,"dp_rank":1,"dp_size":2}}"#;
    assert_eq!(place(rust), (Some(Role::Prefill), Some(30_001)), "its listener's own word first");
    let decode = r#"{"disaggregation_mode":"decode","disaggregation_bootstrap_port":8998}"#;
    assert_eq!(place(decode), (Some(Role::Decode), None), "only what it assumes of others");
    assert_eq!(place(r#"{"disaggregation_mode":"null"}"#), (Some(Role::Both), None));
    for odd in [
        r#"{"disaggregation_mode":7,"disaggregation_bootstrap_port":"8998"}"#,
        r#"{"disaggregation_mode":"both","disaggregation_bootstrap_port":0}"#,
        r#"{"disaggregation_bootstrap_port":70000,"deployment_info":3}"#,
    ] {
        assert_eq!(place(odd), (None, None), "{odd}");
    }
}

#[test]
fn a_url_of_the_rust_server_stands_for_the_ranks_from_its_own_on() {
    let rust = |dp_rank: u32, machines: u32| {
        let body = format!(
            r#"{{"frontend":"rust","dp_size":4,"deployment_info":{{"dp_rank":{dp_rank},"nnodes":{machines}}}}}"#
        );
        let info = sglang(&body);
        assert!(info.server.port_per_rank);
        numbers(&info)
    };
    assert_eq!(rust(0, 1), [0, 1, 2, 3]);
    assert_eq!(rust(0, 0), [0, 1, 2, 3]);
    assert_eq!(rust(0, 2), [0, 1], "the others are on another machine");
    assert_eq!(rust(2, 2), [2, 3]);
    assert_eq!(rust(1, 1), [1], "somebody lists the ranks one by one");
    assert_eq!(rust(9, 2), [9], "odd, but no reason to fail");
    assert_eq!(numbers(&sglang(r#"{"dp_size":2,"deployment_info":{"dp_rank":1}}"#)), [0, 1]);
}

#[test]
fn vllm_numbers_the_ranks_of_a_deployment_across_its_urls() {
    let metrics = |labels: &[&str]| {
        let of = |label: &&str| format!("vllm:num_requests_running{{engine=\"{label}\"}} 0\n");
        let text: String = labels.iter().map(of).collect();
        let ranks = ranks_of_vllm_metrics(&text);
        ranks.iter().map(|rank| rank.number).collect::<Vec<_>>()
    };
    assert_eq!(metrics(&[]), [0]);
    assert_eq!(metrics(&["0"]), [0]);
    assert_eq!(metrics(&["3"]), [3], "alone behind its URL");
    assert_eq!(metrics(&["5", "4"]), [4, 5]);
    assert_eq!(metrics(&["0", "2"]), [0, 1, 2], "one that is not told is there nevertheless");
    assert_eq!(metrics(&["-1", "x", "", "1.5", "4294967296", "1"]), [1], "no ranks");
    assert_eq!(metrics(&["70000", "0"]), [0]);
    assert_eq!(metrics(&["0", "1024"]), [0], "further than the fleet can be large");
    let config = "vllm:num_requests_running{engine=\"4\"} 0\nvllm:num_requests_running{engine=\"5\"} 0\n\
        vllm:cache_config_info{engine=\"5\",block_size=\"16\",num_gpu_blocks=\"9\"} 1\n";
    let told: Vec<_> = ranks_of_vllm_metrics(config).iter().map(|r| r.kv_block_count).collect();
    assert_eq!(told, [9, 9], "all are configured alike");
    let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
    let source = r#"{"enable_kv_cache_events":true,"endpoint":"tcp://*:5561"}"#;
    let events =
        events_of_vllm(&format!("{{\"4\":{source},\"-1\":{source},\"x\":{source}}}"), "h", ip);
    assert_eq!(events.keys().collect::<Vec<_>>(), [&4]);
}

proptest! {
    #[test]
    fn no_metrics_of_vllm_panic_or_make_too_many_ranks(
        labels in proptest::collection::vec("-?[0-9]{0,11}|[a-z]{0,3}", 0..20),
        block_size in any::<i64>(),
        noise in "\\PC{0,40}",
    ) {
        let mut text = format!("{noise}\n");
        for label in &labels {
            text += &format!("vllm:num_requests_running{{engine=\"{label}\"}} 1\n");
            text += &format!(
                "vllm:cache_config_info{{engine=\"{label}\",block_size=\"{block_size}\",num_gpu_blocks=\"{noise}\"}} 1\n"
            );
        }
        let ranks = ranks_of_vllm_metrics(&text);
        prop_assert!((1..=RANKS_MAX).contains(&ranks.len()));
        let in_a_row = ranks.windows(2).all(|pair| pair[0].number + 1 == pair[1].number);
        prop_assert!(in_a_row);
    }

    #[test]
    fn no_word_of_sglang_panics_or_makes_too_many_ranks(
        numbers in proptest::array::uniform7(proptest::option::of(any::<i64>())),
        mode in "prefill|decode|null|[a-z]{0,4}",
        frontend in "rust|python",
    ) {
        let [dp_size, dp_rank, nnodes, port, own_port, page, tokens] =
            numbers.map(|number| serde_json::to_string(&number).unwrap());
        let body = format!(
            r#"{{"frontend":"{frontend}","disaggregation_mode":"{mode}","dp_size":{dp_size},"page_size":{page},
            "max_total_num_tokens":{tokens},"disaggregation_bootstrap_port":{port},
            "deployment_info":{{"dp_rank":{dp_rank},"nnodes":{nnodes},"disaggregation_bootstrap_port":{own_port}}}}}"#
        );
        let info = sglang(&body);
        prop_assert!((1..=RANKS_MAX).contains(&info.ranks.len()));
        prop_assert!(info.place.role != Some(Role::Decode) || info.place.bootstrap_port.is_none());
    }
}
