//! Tests of probes.

use super::*;
use axum::Router;
use axum::http::{StatusCode, Uri};
use forebay_base::{Clock, NanosSinceStart};
use forebay_config::Connectors;
use forebay_kv_events::test_support::block_on_local;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// A prefill worker that answers its first health check, and no later one. The registry at its port
/// answers twice that a rank is missing, and no later request.
async fn worker_that_falls_ill() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked: [Arc<AtomicUsize>; 2] = Default::default();
    let models = json!({ "data": [{ "id": "m", "owned_by": "sglang" }] }).to_string();
    let info = json!({
        "model_path": "m", "disaggregation_mode": "prefill",
        "disaggregation_bootstrap_port": address.port(),
    });
    let app = Router::new().fallback(move |uri: Uri| {
        let count = |which: usize| asked[which].fetch_add(1, Ordering::Relaxed);
        let (status, body, silent) = match uri.path() {
            "/v1/models" => (StatusCode::OK, models.clone(), false),
            "/server_info" => (StatusCode::OK, info.to_string(), false),
            "/model_info" if count(0) == 0 => (StatusCode::OK, String::new(), false),
            "/model_info" => (StatusCode::INTERNAL_SERVER_ERROR, String::new(), false),
            "/route" => (StatusCode::SERVICE_UNAVAILABLE, String::new(), count(1) >= 2),
            _ => (StatusCode::NOT_FOUND, String::new(), false),
        };
        async move {
            if silent {
                std::future::pending::<()>().await;
            }
            (status, body)
        }
    });
    tokio::task::spawn_local(async move { axum::serve(listener, app).await });
    address
}

#[test]
fn a_silent_registry_does_not_keep_the_health_checks_waiting() {
    block_on_local(async {
        let address = worker_that_falls_ill().await;
        let worker = WorkerConfig { url: format!("http://{address}"), ..WorkerConfig::default() };
        let mut config = Config { workers: vec![worker], ..Config::default() };
        let patience = Duration::from_secs(60);
        config.health = HealthConfig {
            interval: Duration::from_millis(600),
            timeout: patience,
            unhealthy_after: 1,
            healthy_after: 1,
            ..HealthConfig::default()
        };
        let clients = WorkerClients::new(&config, &Connectors::default()).unwrap();
        let (notices, mut told) = mpsc::channel(64);
        let texts = ModelTexts::new(Clock::start(), false);
        let config = Arc::new(config);
        let signs = Rc::new(SignsOfLife::new(Clock::start()));
        let probing = ProbeFactory { config: Arc::clone(&config), clients, texts, notices, signs };
        let probe = |(n, worker)| probing.one(WorkerIndex::try_from_index(n)?, worker);
        for probe in config.workers.iter().enumerate().filter_map(probe) {
            tokio::task::spawn_local(probe.run());
        }
        let seen = async {
            let mut states = Vec::new();
            while !states.contains(&WorkerState::Down) {
                if let ProbeNotice::State { state, .. } = told.recv().await.unwrap() {
                    states.push(state);
                }
            }
            states
        };
        // The registry's silence lasts four times as long.
        let states = timeout(patience / 4, seen).await.expect("in time");
        assert_eq!(states, [WorkerState::Up, WorkerState::Down]);
    });
}

/// A server of one model, at this address.
async fn server_of(model: &'static str, address: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let models = json!({ "data": [{ "id": model }] }).to_string();
    let app = Router::new().fallback(move |uri: Uri| {
        let is_list = uri.path() == "/v1/models";
        let body = if is_list { models.clone() } else { String::new() };
        let status = match uri.path() {
            "/v1/models" | "/health" => StatusCode::OK,
            _ => StatusCode::NOT_FOUND,
        };
        async move { (status, body) }
    });
    tokio::task::spawn_local(async move { axum::serve(listener, app).await });
    address
}

/// Blue and green: the name moves, and the server at its old address goes on answering.
#[test]
fn a_name_that_moves_is_followed_while_its_old_address_answers() {
    block_on_local(async {
        let blue = server_of("blue", SocketAddr::from(([127, 0, 0, 1], 0))).await;
        let green = SocketAddr::from(([127, 0, 0, 2], blue.port()));
        let green = server_of("green", green).await;
        let url = format!("http://engine.invalid:{}", blue.port());
        let worker = WorkerConfig { url, ..WorkerConfig::default() };
        let mut config = Config { workers: vec![worker.clone()], ..Config::default() };
        config.health.interval = Duration::from_millis(10);
        let clients = WorkerClients::new(&config, &Connectors::default()).unwrap();
        let (notices, mut told) = mpsc::channel(64);
        let clock = Clock::start();
        let config = Arc::new(config);
        let texts = ModelTexts::new(clock, false);
        let signs = Rc::new(SignsOfLife::new(clock));
        let probing = ProbeFactory { config, clients, texts, notices, signs };
        let mut probe = probing.one(WorkerIndex(0), &worker).unwrap();
        let place = Rc::new(std::cell::Cell::new(blue));
        probe.name.scripted = Some(Rc::clone(&place));
        probe.name.age_max = Duration::from_millis(20);
        tokio::task::spawn_local(probe.run());
        let mut described = async |wanted: SocketAddr| loop {
            match told.recv().await.unwrap() {
                ProbeNotice::Described { address, description, .. } if address == wanted => {
                    return description.model_names()[0].to_string();
                }
                ProbeNotice::State { state, .. } => assert_eq!(state, WorkerState::Up),
                _ => {}
            }
        };
        let patience = Duration::from_secs(20);
        assert_eq!(timeout(patience, described(blue)).await.unwrap(), "blue");
        place.set(green);
        assert_eq!(timeout(patience, described(green)).await.unwrap(), "green");
    });
}

#[test]
fn who_is_busy_stays_up_until_nothing_moves() {
    let health = HealthConfig { unhealthy_after: 2, ..HealthConfig::default() };
    let mut reached = HealthCounts::default();
    assert!(reached.good(&health));
    let mut bad = |is_busy| reached.bad(&health, is_busy);
    use CheckFailure::{Counted, Down, Excused};
    assert_eq!([bad(true), bad(true), bad(true)], [Counted, Excused, Counted], "said once");
    assert_eq!(bad(false), Down, "at once");
    let clock = Clock::start();
    let signs = SignsOfLife::new(clock);
    let worker = WorkerIndex(3);
    let long = Duration::from_secs(60);
    assert!(!signs.were_within(long, worker));
    signs.note(worker, clock.now());
    assert!(signs.were_within(long, worker) && !signs.were_within(long, WorkerIndex(2)));
    signs.note(worker, NanosSinceStart::default());
    assert!(!signs.were_within(Duration::ZERO, worker));
}

#[test]
fn one_that_was_up_and_is_gone_goes_down() {
    block_on_local(async {
        let worker = WorkerConfig { url: "http://127.0.0.1:1".into(), ..WorkerConfig::default() };
        let mut config = Config::default();
        config.health.unhealthy_after = 2;
        let clients = WorkerClients::new(&config, &Connectors::default()).unwrap();
        let (notices, mut told) = mpsc::channel(4);
        let clock = Clock::start();
        let config = Arc::new(config);
        let texts = ModelTexts::new(clock, false);
        let signs = Rc::new(SignsOfLife::new(clock));
        let probing = ProbeFactory { config, clients, texts, notices, signs };
        let probe = probing.one(WorkerIndex(0), &worker).unwrap().of_one_that_is_up();
        tokio::task::spawn_local(probe.run());
        let mut next =
            async || timeout(Duration::from_secs(30), told.recv()).await.expect("in time");
        let first = next().await;
        let Some(ProbeNotice::Trouble { error: Some(error), .. }) = first else {
            panic!("no reason: {first:?}");
        };
        assert!(error.starts_with("health checks fail, and it is down after 2: "), "{error}");
        let second = next().await;
        let is_down = matches!(second, Some(ProbeNotice::State { state: WorkerState::Down, .. }));
        assert!(is_down, "{second:?}");
    });
}

/// `WHY` was empty until the worker was down.
#[test]
fn checks_that_fail_are_a_reason_until_a_check_passes() {
    block_on_local(async {
        let healths = [200, 503, 503, 200, 200];
        let address = server_with_healths(&healths).await;
        let worker = WorkerConfig { url: format!("http://{address}"), ..WorkerConfig::default() };
        let mut config = Config { workers: vec![worker], ..Config::default() };
        config.health.interval = Duration::from_millis(5);
        config.health.unhealthy_after = 3;
        let clients = WorkerClients::new(&config, &Connectors::default()).unwrap();
        let (notices, mut reported) = mpsc::channel(8);
        let clock = Clock::start();
        let config = Arc::new(config);
        let texts = ModelTexts::new(clock, false);
        let signs = Rc::new(SignsOfLife::new(clock));
        let probing = ProbeFactory { config, clients, texts, notices, signs };
        let worker = &probing.config.workers[0];
        let probe = probing.one(WorkerIndex(0), worker).unwrap();
        tokio::task::spawn_local(probe.run());
        let mut reasons = Vec::new();
        while reasons.last() != Some(&None) {
            let notice = timeout(Duration::from_secs(30), reported.recv()).await.expect("in time");
            match notice {
                Some(ProbeNotice::Trouble { error, .. }) => reasons.push(error),
                Some(ProbeNotice::State { state, .. }) => assert_eq!(state, WorkerState::Up),
                _ => {}
            }
        }
        let failing = "health checks fail, and it is down after 3: /health: status 503";
        assert_eq!(reasons, [Some(failing.to_owned()), None]);
    });
}

/// A server of one model with these results of its health checks; the last result lasts.
async fn server_with_healths(statuses: &[u16]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let statuses = statuses.to_vec();
    let checks = Arc::new(AtomicUsize::new(0));
    let models = json!({ "data": [{ "id": "m", "owned_by": "vllm" }] }).to_string();
    let app = Router::new().fallback(move |uri: Uri| {
        let (status, body) = match uri.path() {
            "/v1/models" => (200, models.clone()),
            "/health" => {
                let check = checks.fetch_add(1, Ordering::Relaxed);
                (statuses[check.min(statuses.len() - 1)], String::new())
            }
            _ => (404, String::new()),
        };
        async move { (StatusCode::from_u16(status).unwrap(), body) }
    });
    tokio::task::spawn_local(async move { axum::serve(listener, app).await });
    address
}

#[test]
fn thresholds_count_in_a_row() {
    let health = HealthConfig { unhealthy_after: 2, healthy_after: 2, ..HealthConfig::default() };
    let mut reached = HealthCounts::default();
    let bad = |reached: &mut HealthCounts| reached.bad(&health, false);
    assert_eq!([(); 2].map(|()| bad(&mut reached)), [CheckFailure::Counted; 2], "never up");
    assert!(!reached.good(&health));
    assert_eq!(bad(&mut reached), CheckFailure::Counted);
    assert!(!reached.good(&health));
    assert!(reached.good(&health) && reached.is_up() && !reached.take_recovery());
    assert!(!reached.good(&health), "up already");
    assert_eq!(bad(&mut reached), CheckFailure::Counted);
    assert!(!reached.good(&health));
    assert_eq!(bad(&mut reached), CheckFailure::Counted);
    assert_eq!(bad(&mut reached), CheckFailure::Down);
    assert!(!reached.is_up());
    assert_eq!(bad(&mut reached), CheckFailure::Counted, "down already");
    assert!(!reached.good(&health));
    assert!(reached.good(&health) && reached.take_recovery() && !reached.take_recovery());
}

/// A server of one model whose health path answers this status after the first check.
async fn server_with_health(status: StatusCode) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let models = json!({ "data": [{ "id": "m" }] }).to_string();
    let checks = Arc::new(AtomicUsize::new(0));
    let app = Router::new().fallback(move |uri: Uri| {
        let (status, body) = match uri.path() {
            "/v1/models" => (StatusCode::OK, models.clone()),
            "/health" if checks.fetch_add(1, Ordering::Relaxed) == 0 => {
                (StatusCode::OK, String::new())
            }
            "/health" => (status, String::new()),
            _ => (StatusCode::NOT_FOUND, String::new()),
        };
        async move { (status, body) }
    });
    tokio::task::spawn_local(async move { axum::serve(listener, app).await });
    address
}

/// Under load an engine answers no health check, or an error of a server. A path or a key that is
/// refused is no load, whatever signs of life the worker gives.
#[test]
fn a_refused_path_or_key_is_never_busy() {
    for (status, goes_down) in [(401, true), (403, true), (404, true), (500, false), (503, false)] {
        block_on_local(async {
            let address = server_with_health(StatusCode::from_u16(status).unwrap()).await;
            let worker = WorkerConfig {
                url: format!("http://{address}"),
                health_path: Some("/health".to_owned()),
                ..WorkerConfig::default()
            };
            let mut config = Config { workers: vec![worker.clone()], ..Config::default() };
            config.health = HealthConfig {
                interval: Duration::from_millis(10),
                unhealthy_after: 2,
                healthy_after: 1,
                ..HealthConfig::default()
            };
            let clients = WorkerClients::new(&config, &Connectors::default()).unwrap();
            let (notices, mut told) = mpsc::channel(64);
            let clock = Clock::start();
            let texts = ModelTexts::new(clock, false);
            let signs = Rc::new(SignsOfLife::new(clock));
            // Requests are answered all the time.
            signs.note(WorkerIndex(0), NanosSinceStart(u64::MAX / 2));
            let config = Arc::new(config);
            let probing = ProbeFactory { config, clients, texts, notices, signs };
            let probe = probing.one(WorkerIndex(0), &worker).unwrap();
            tokio::task::spawn_local(probe.run());
            let down = async {
                loop {
                    let notice = told.recv().await.unwrap();
                    if matches!(notice, ProbeNotice::State { state: WorkerState::Down, .. }) {
                        return;
                    }
                }
            };
            let patience = Duration::from_secs(if goes_down { 30 } else { 1 });
            assert_eq!(timeout(patience, down).await.is_ok(), goes_down, "{status}");
        });
    }
}
