//! Data-parallel ranks, of pairs and of whole requests: the rank that was chosen is the one that
//! the engine is told.

use crate::rig::pairs::{ask, ask_with, idle, number, pair_config, ready, room};
use crate::rig::stub::{Arrival, Stub};
use crate::rig::stub_pages::Pages;
use crate::rig::{Client, metric, post};
use std::collections::BTreeSet;
use std::net::TcpListener;

const ASK: &str = r#"{"model":"m","prompt":"hi"}"#;

/// A worker whose ranks have a port each, in a row.
fn port_each(pages: &Pages) -> Vec<Stub> {
    let count = u16::try_from(pages.dp_size).unwrap();
    let listeners = || -> Option<Vec<TcpListener>> {
        let first = fastrand::u16(30_000..32_000);
        (first..first + count).map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).collect()
    };
    let mut tries = std::iter::repeat_with(listeners).take(100).flatten();
    let listeners = tries.next().expect("ports in a row");
    listeners.into_iter().map(|listener| Stub::listening(listener, pages.clone())).collect()
}

#[test]
fn the_ranks_of_a_pair_are_told_in_the_body() {
    let prefill = Stub::start(Pages::sglang("prefill").ranks(2));
    let decode = Stub::start(Pages::sglang("decode").ranks(3));
    let workers = [(&prefill, ""), (&decode, "")];
    let router = ready(pair_config(&workers, ""), &workers);
    let mut of_prefill = BTreeSet::new();
    let mut of_decode = BTreeSet::new();
    for turn in 0..24 {
        prefill.forget();
        decode.forget();
        let reply = ask(&router, "/v1/completions", ASK).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let legs: [Arrival; 2] = [prefill.arrival(0), decode.arrival(0)];
        let [p, d] = [0, 1].map(|leg| {
            assert!(legs[leg].fields("x-data-parallel-rank").is_empty(), "{}", legs[leg].head);
            assert!(!legs[leg].text().contains("\"data_parallel_rank\""), "{}", legs[leg].text());
            number(legs[leg].text(), "routed_dp_rank").expect("a rank")
        });
        for leg in &legs {
            assert_eq!(number(leg.text(), "disagg_prefill_dp_rank"), Some(p), "{}", leg.text());
            assert_eq!(room(leg.text()), room(legs[0].text()));
            assert_eq!(room(leg.text()) % 2, p, "turn {turn}");
        }
        let shown = |name: &str| reply.field(name).unwrap().to_owned();
        assert_eq!(shown("x-forebay-worker"), format!("{}/{d}", decode.address));
        assert_eq!(shown("x-forebay-prefill-worker"), format!("{}/{p}", prefill.address));
        of_prefill.insert(p);
        of_decode.insert(d);
    }
    assert_eq!(of_prefill, BTreeSet::from([0, 1]));
    assert_eq!(of_decode, BTreeSet::from([0, 1, 2]));
    for (stub, ranks) in [(&prefill, 2), (&decode, 3)] {
        for rank in 0..ranks {
            let name = format!("forebay_in_flight{{worker=\"{}\",dp_rank=\"{rank}\"", stub.address);
            assert!(metric(&router, &name) == 0.0);
        }
    }
    idle(&router);
}

#[test]
fn a_rank_with_a_port_of_its_own_is_told_by_it() {
    let mut pages = Pages::sglang("prefill").ranks(2);
    pages.port_per_rank = true;
    let prefill = port_each(&pages);
    let decode = Stub::start(Pages::sglang("decode"));
    let workers = [(&prefill[0], ""), (&decode, "")];
    let router = ready(pair_config(&workers, ""), &workers);
    let mut seen = BTreeSet::new();
    for _ in 0..16 {
        prefill.iter().for_each(Stub::forget);
        decode.forget();
        assert_eq!(ask(&router, "/v1/completions", ASK).reply().status, 200);
        let second = decode.arrival(0);
        idle(&router);
        let rank = usize::from(prefill[0].arrivals().is_empty());
        let first = prefill[rank].arrival(0);
        assert_eq!(room(first.text()), room(second.text()));
        assert_eq!(room(first.text()) % 2, rank as u64, "{}", first.text());
        assert_eq!(number(first.text(), "routed_dp_rank"), None, "{}", first.text());
        assert_eq!(number(second.text(), "disagg_prefill_dp_rank"), Some(rank as u64));
        seen.insert(rank);
    }
    assert_eq!(seen, BTreeSet::from([0, 1]));
}

#[test]
fn vllm_ranks_are_told_by_the_header_of_each_leg() {
    let handed = br#"{"kv_transfer_params":{"do_remote_prefill":true}}"#;
    let prefill = Stub::start(Pages::vllm().ranks(2));
    let decode = Stub::start(Pages::vllm().ranks(2));
    let workers = [(&prefill, "role = \"prefill\""), (&decode, "role = \"decode\"")];
    let router = ready(pair_config(&workers, ""), &workers);
    prefill.always(crate::rig::stub::answer(handed));
    let mut of_prefill = BTreeSet::new();
    let mut of_decode = BTreeSet::new();
    for _ in 0..16 {
        prefill.forget();
        decode.forget();
        let reply = ask(&router, "/v1/completions", ASK).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let rank = |leg: &Arrival| {
            let told = leg.fields("x-data-parallel-rank");
            assert_eq!(told.len(), 1, "{}", leg.head);
            assert!(!leg.text().contains("dp_rank"), "{}", leg.text());
            told[0].to_owned()
        };
        let p = rank(&prefill.arrival(0));
        let d = rank(&decode.arrival(0));
        let shown = |name: &str| reply.field(name).unwrap().to_owned();
        assert_eq!(shown("x-forebay-worker"), format!("{}/{d}", decode.address));
        assert_eq!(shown("x-forebay-prefill-worker"), format!("{}/{p}", prefill.address));
        of_prefill.insert(p);
        of_decode.insert(d);
    }
    assert_eq!((of_prefill.len(), of_decode.len()), (2, 2));
    idle(&router);
}

#[test]
fn a_client_may_name_the_rank() {
    for pages in [Pages::vllm(), Pages::sglang("null")] {
        let worker = Stub::start(pages.ranks(3));
        let workers = [(&worker, "")];
        let router = ready(pair_config(&workers, ""), &workers);
        for turn in 0..9 {
            worker.forget();
            let rank = turn % 3;
            // However it is written.
            let name = ["X-Data-Parallel-Rank", "x-data-parallel-rank", "X-data-parallel-rank"];
            let field = format!("{}: {rank}\r\n", name[turn / 3]);
            let reply = ask_with(&router, "/v1/completions", &field, ASK).reply();
            assert_eq!(reply.status, 200, "{}", reply.text());
            let shown = format!("{}/{rank}", worker.address);
            assert_eq!(reply.field("x-forebay-worker"), Some(&*shown));
            let told = worker.arrival(0);
            assert_eq!(told.fields("x-data-parallel-rank"), [rank.to_string()], "{}", told.head);
            assert_eq!(told.text(), ASK);
        }
        worker.forget();
        for bad in ["3", "-1", "one", "", "1, 2", "18446744073709551617"] {
            let field = format!("x-data-parallel-rank: {bad}\r\n");
            let reply = ask_with(&router, "/v1/completions", &field, ASK).reply();
            assert_eq!(reply.status, 400, "{bad:?} {}", reply.text());
            assert!(reply.text().to_lowercase().contains("data-parallel-rank"), "{}", reply.text());
        }
        assert!(worker.arrivals().is_empty());
        idle(&router);
    }
}

/// SGLang reads no header there (0.5.23), so the body says it, whoever chose.
#[test]
fn a_whole_generate_says_its_rank_in_the_body() {
    let worker = Stub::start(Pages::sglang("null").ranks(3));
    let workers = [(&worker, "")];
    let router = ready(pair_config(&workers, ""), &workers);
    let bodies = [
        (r#"{"text":"hi","stream":false}"#, r#"{"routed_dp_rank":R,"text":"hi","stream":false}"#),
        (" \n{ }\t", "{\"routed_dp_rank\":R }\t"),
    ];
    for (body, expected) in bodies {
        for named in [Some(2), Some(0), None, None, None] {
            worker.forget();
            let field = named.map(|rank| format!("x-data-parallel-rank: {rank}\r\n"));
            let reply =
                ask_with(&router, "/generate", field.as_deref().unwrap_or(""), body).reply();
            assert_eq!(reply.status, 200, "{}", reply.text());
            let told = worker.arrival(0);
            let rank = number(told.text(), "routed_dp_rank").expect("a rank");
            assert_eq!(told.text(), expected.replace('R', &rank.to_string()));
            assert_eq!(told.fields("content-length"), [told.body.len().to_string()]);
            assert!(told.fields("x-data-parallel-rank").is_empty(), "{}", told.head);
            assert!(named.is_none_or(|named| named == rank));
            let shown = format!("{}/{rank}", worker.address);
            assert_eq!(reply.field("x-forebay-worker"), Some(&*shown));
        }
    }
    idle(&router);
}

#[test]
fn the_rank_is_told_once_also_where_there_is_only_one() {
    let worker = Stub::start(Pages::vllm());
    let workers = [(&worker, "")];
    let router = ready(pair_config(&workers, ""), &workers);
    let reply = ask_with(&router, "/v1/completions", "x-data-parallel-rank: 0\r\n", ASK).reply();
    assert_eq!(reply.status, 200);
    assert!(worker.arrival(0).fields("x-data-parallel-rank").len() <= 1);
    let reply = ask_with(&router, "/v1/completions", "x-data-parallel-rank: 1\r\n", ASK).reply();
    assert_eq!(reply.status, 400, "{}", reply.text());
}

#[test]
fn one_connection_may_name_one_rank_after_the_other() {
    let worker = Stub::start(Pages::vllm().ranks(2));
    let workers = [(&worker, "")];
    let router = ready(pair_config(&workers, ""), &workers);
    let mut client = Client::connect(router.listen);
    for rank in [1, 0, 1, 1] {
        worker.forget();
        let request = String::from_utf8(post("/v1/completions", ASK.as_bytes())).unwrap();
        let field = format!("host: router\r\nx-data-parallel-rank: {rank}\r\n");
        client.send(request.replacen("host: router\r\n", &field, 1).as_bytes());
        assert_eq!(client.reply().status, 200);
        assert_eq!(worker.arrival(0).fields("x-data-parallel-rank"), [rank.to_string()]);
    }
}
