//! Frames from snapshots and keys.

use crate::{App, PressResult, Snapshot, TopKey, text};
use serde_json::{Value, json};

fn snapshot(ranks: u64, uptime_ms: u64) -> Value {
    let column = |read: &dyn Fn(u64) -> Value| -> Value { (0..ranks).map(read).collect() };
    let worker = |index: u64| {
        json!({"index": index, "name": format!("gpu{index}"), "state": "up",
        "url": "http://x", "engine": "vllm", "models": ["m"]})
    };
    json!({
        "uptime_ms": uptime_ms, "generation": 1,
        "whole": {"version": "1.2.3", "policy": "kv",
            "workers": (0..ranks).map(worker).collect::<Value>(),
            "ranks": {"worker": column(&|i| json!(i)), "dp_rank": column(&|_| json!(0)),
                "role": column(&|_| json!("both")), "kv_blocks": column(&|_| json!(100)),
                "pool": column(&|_| json!(0))}},
        "concerns": if ranks == 3 { json!(["1 of 3 workers not up"]) } else { json!([]) },
        "requests_total": {"200": uptime_ms / 100},
        "ranks": {"in_flight": column(&|i| json!(i)), "kv_rank_blocks": column(&|_| json!(25)),
            "rank_places_max": column(&|_| json!(400)), "feed": column(&|_| json!("live"))},
        "pools": [{"pool": 0, "open": true, "open_ms": 5000, "queue_depth": 3}],
        "events": [{"id": 1, "age_ms": 500, "kind": "up", "text": "gpu0 is up"}],
    })
}

fn app(values: &[Value]) -> App {
    let mut app = App::new("http://r:9090", false);
    for value in values {
        app.update(&Snapshot::read(value.to_string().as_bytes()).unwrap());
    }
    app
}

/// The names of the workers, as they stand in the frame.
fn names(app: &App) -> Vec<String> {
    let frame = text(app, 120);
    let names = frame.lines().skip(3).map_while(|line| line.get(1..)?.split(' ').next());
    names.take_while(|name| name.starts_with("gpu")).map(str::to_owned).collect()
}

fn press(app: &mut App, keys: &str) {
    keys.chars().for_each(|char| assert_eq!(app.press(TopKey::Char(char)), PressResult::Continue));
}

#[test]
fn a_frame_says_what_the_snapshots_say() {
    let app = app(&[snapshot(3, 10_000), snapshot(3, 11_000)]);
    let frame = text(&app, 150);
    for wanted in [
        "forebay 1.2.3 kv  DEGRADED: 1 of 3 workers not up",
        "10.0 answered/s",
        "3 queued",
        "3 ranks",
        "25%",
        "5 s",
        "400",
        "gpu0 is up",
    ] {
        assert!(frame.contains(wanted), "{wanted}\n{frame}");
    }
    assert!(app.has_rates());
}

/// M2: a worker that was never reached has no rank, and `--once` cuts no concern.
#[test]
fn a_worker_without_ranks_has_a_row_and_the_condition_is_whole() {
    let at = |uptime_ms: u64, refused: u64| {
        let mut snapshot = snapshot(3, uptime_ms);
        let lost = json!({"index": 9, "name": "lost", "state": "unknown", "url": "http://x",
            "engine": "vllm", "models": []});
        snapshot["whole"]["workers"].as_array_mut().unwrap().push(lost);
        snapshot["concerns"] = json!(["a long concern ".repeat(20)]);
        snapshot["requests_total"] = json!({"200": uptime_ms / 100, "429": refused});
        snapshot["rejected_total"] = json!({ "rejected-window": refused });
        snapshot
    };
    let frame = text(&app(&[at(10_000, 0), at(11_000, 30)]), 130);
    let row = frame.lines().find(|line| line.contains("lost")).expect(&frame);
    assert!(row.contains(" - ") && row.contains("not reached"), "{row}");
    assert!(frame.contains("3 ranks"), "{frame}");
    let head = frame.lines().next().unwrap();
    let refused = "; 75% of requests refused, rejected-window  up";
    assert!(head.contains(refused), "{head}");
    let wanted = "DEGRADED: a long concern";
    assert!(head.contains(wanted) && head.ends_with("http://r:9090"), "{head}");
}

/// N7: the word is that of the router, whatever the refusals.
#[test]
fn the_word_is_that_of_the_router() {
    let at = |uptime_ms: u64, state: &str| {
        let mut snapshot = snapshot(2, uptime_ms);
        snapshot["state"] = json!(state);
        snapshot["concerns"] = json!([]);
        snapshot["requests_total"] = json!({ "404": uptime_ms / 100 });
        snapshot["rejected_total"] = json!({ "unknown-model": uptime_ms / 100 });
        snapshot
    };
    for (state, word) in [("ready", "ready"), ("degraded", "DEGRADED"), ("not ready", "NOT READY")]
    {
        let frame = text(&app(&[at(10_000, state), at(11_000, state)]), 200);
        let wanted = format!("  {word}: 100% of requests refused, unknown-model  up");
        assert!(frame.contains(&wanted), "{frame}");
    }
}

/// M2: refusals by the window of an operator are no fault of the router. N7: refusals changed the
/// word, and `top` had another word than `/readyz`.
#[test]
fn refusals_do_not_change_the_word() {
    let at = |uptime_ms: u64, [ordered, full]: [u64; 2], is_open: bool| {
        let mut snapshot = snapshot(2, uptime_ms);
        snapshot["requests_total"] = json!({"200": uptime_ms / 100, "429": ordered + full});
        snapshot["rejected_total"] =
            json!({ "rejected-by-operator": ordered, "rejected-window": full });
        let order = "an operator opened the rejection window of 1 of 2 pools: m";
        snapshot["orders"] = if is_open { json!([order]) } else { json!([]) };
        snapshot
    };
    let head = |values: &[Value]| text(&app(values), 200).lines().next().unwrap().to_owned();
    let opened = [at(10_000, [0, 0], false), at(11_000, [30, 0], true)];
    let refusing = "REFUSING: an operator opened the rejection window of 1 of 2 pools: m; \
                    75% of requests refused, rejected-by-operator  up";
    assert!(head(&opened).contains(refusing), "{}", head(&opened));
    let closed = [at(10_000, [0, 0], true), at(11_000, [40, 0], false)];
    let wanted = "  ready: 80% of requests refused, rejected-by-operator  up";
    assert!(head(&closed).contains(wanted), "{}", head(&closed));
    let mut both = opened;
    both[1]["concerns"] = json!(["a peer is lost"]);
    assert!(head(&both).contains("DEGRADED: a peer is lost; an operator"), "{}", head(&both));
    // The queue of the other pool is full meanwhile.
    let full = [at(10_000, [0, 0], true), at(11_000, [30, 60], true)];
    let wanted = "pools: m; 90% of requests refused, rejected-window  up";
    assert!(head(&full).contains(wanted), "{}", head(&full));
    let mut history = at(10_000, [30, 0], true);
    history["history"] = json!([{"uptime_ms": 9_000, "requests_total": {"200": 90},
        "rejected_total": {}}]);
    assert!(head(&[history.clone()]).contains("REFUSING"), "{}", head(&[history]));
}

/// M1: each rank that takes no requests has its reason in the frame, whole with `--once`.
#[test]
fn each_rank_that_is_not_up_has_its_reason() {
    let mut snapshot = snapshot(4, 10_000);
    let long = format!("/health: status 503{}", " and more".repeat(20));
    let workers = &mut snapshot["whole"]["workers"];
    workers[1]["state"] = json!("down");
    workers[1]["error"] = json!(long);
    workers[1]["help"] = json!("read the log of the engine");
    workers[2]["state"] = json!("unknown");
    workers[2]["answers"] = json!(true);
    workers[2]["error"] = json!("it refuses the question (401)");
    workers[2]["help"] = json!("set `api_key_file`");
    workers[3]["waits_for"] = json!("its registry");
    snapshot["ranks"]["breaker_open"] = json!([1, 0, 0, 0]);
    snapshot["ranks"]["in_flight"] = json!([3, 0, 0, 3]);
    let paused = "paused: requests failed with status 500";
    snapshot["ranks"]["fault"] = json!([paused, null, null, null]);
    let app = app(&[snapshot]);
    for width in [20, 80, 200] {
        let frame = text(&app, width);
        for (name, why) in [
            ("gpu0", paused.to_owned()),
            ("gpu1", format!("{long}; read the log of the engine")),
            ("gpu2", "it refuses the question (401); set `api_key_file`".to_owned()),
            ("gpu3", "its registry".to_owned()),
        ] {
            let row = frame.lines().find(|line| line.get(1..5) == Some(name)).expect(&frame);
            assert!(row.ends_with(&why), "{row}");
        }
        assert!(frame.lines().nth(2).unwrap().ends_with("why"), "{frame}");
    }
    let frame = text(&app, 100);
    assert!(frame.contains("x down         /health: status 503"), "no load: {frame}");
    assert!(frame.contains("! not usable") && !frame.contains("not reached"), "{frame}");
}

/// A rank without a stream in the last minute has no mean, and not a mean of 0.
#[test]
fn a_rank_has_its_mean_time_to_the_first_token() {
    let mut snapshot = snapshot(2, 10_000);
    snapshot["ranks"]["ttft_1m_streams"] = json!([4, null]);
    snapshot["ranks"]["ttft_1m_mean_seconds"] = json!([0.25, null]);
    let mut app = app(&[snapshot]);
    let frame = text(&app, 120);
    let row = |name: &str| -> Vec<&str> {
        let line = frame.lines().find(|line| line.get(1..5) == Some(name)).expect(&frame);
        line.split_whitespace().collect()
    };
    assert!(frame.lines().nth(2).unwrap().contains("ttft avg"), "{frame}");
    assert!(row("gpu0").join(" ").contains("250 ms"), "{frame}");
    assert!(!row("gpu1").contains(&"ms"), "{frame}");
    press(&mut app, &"s".repeat(11));
    assert!(text(&app, 120).contains("ttft avgv"), "sorted by it");
    press(&mut app, "r");
    assert_eq!(names(&app), ["gpu1", "gpu0"], "the longest is last, in reverse");
}

#[test]
fn rows_are_sorted_reversed_and_filtered_by_keys() {
    let mut app = app(&[snapshot(300, 1_000)]);
    let all = names(&app);
    assert_eq!((all.len(), &*all[2], &*all[10]), (300, "gpu2", "gpu10"));
    press(&mut app, "ssss");
    assert_eq!(names(&app)[0], "gpu299", "the most in flight first");
    press(&mut app, "r");
    assert_eq!(names(&app)[0], "gpu0");
    press(&mut app, "/GPU29");
    assert_eq!(app.press(TopKey::Enter), PressResult::Continue);
    assert_eq!((names(&app).len(), &*names(&app)[0]), (11, "gpu29"));
    app.press(TopKey::Escape);
    assert_eq!(names(&app).len(), 300);
    app.press(TopKey::End);
    app.press(TopKey::Enter);
    assert!(text(&app, 100).contains("gpu299 rank 0: up"));
    assert_eq!(app.press(TopKey::Char('q')), PressResult::Quit);
}

/// The order changes, a filter hides the rank, and the rank leaves the fleet.
#[test]
fn the_detail_stays_with_its_rank() {
    let load = |uptime_ms: u64, in_flight: [u64; 2]| {
        let mut snapshot = snapshot(2, uptime_ms);
        snapshot["ranks"]["in_flight"] = json!(in_flight);
        snapshot
    };
    let update = |app: &mut App, value: &Value| {
        app.update(&Snapshot::read(value.to_string().as_bytes()).unwrap());
    };
    let mut app = app(&[load(1_000, [0, 9])]);
    press(&mut app, "ssss/up");
    app.press(TopKey::Enter);
    assert_eq!(names(&app), ["gpu1", "gpu0"]);
    app.press(TopKey::Enter);
    assert!(text(&app, 100).contains("gpu1 rank 0: up"));
    update(&mut app, &load(2_000, [9, 0]));
    assert!(text(&app, 100).contains("gpu1 rank 0: up"), "{}", text(&app, 100));
    let mut down = load(3_000, [9, 0]);
    down["whole"]["workers"][1]["state"] = json!("down");
    update(&mut app, &down);
    assert!(text(&app, 100).contains("gpu1 rank 0: x down"), "{}", text(&app, 100));
    update(&mut app, &snapshot(1, 4_000));
    let gone = text(&app, 100);
    assert!(gone.contains("no longer has this rank"), "{gone}");
    assert!(!gone.contains("gpu0 rank 0"), "{gone}");
}

/// M1: without a worker, the fault of their source is the reason, in the head and in the list.
#[test]
fn a_router_without_workers_has_the_reason() {
    let mut empty = snapshot(0, 1_000);
    empty["reasons"] = json!(["none of 0 workers is usable"]);
    empty["concerns"] = json!(["`discovery.file` w.toml fails: w.toml:2:1: unknown key"]);
    let frame = text(&app(&[empty.clone()]), 60);
    let fault = "`discovery.file` w.toml fails: w.toml:2:1: unknown key";
    assert!(frame.contains(&format!("NOT READY: none of 0 workers is usable; {fault}")), "{frame}");
    assert!(frame.contains(&format!("\nNo workers: {fault}\n")), "{frame}");
    assert!(!frame.contains("No rank fits"), "{frame}");
    empty["concerns"] = json!([]);
    let frame = text(&app(&[empty]), 60);
    assert!(frame.contains("\nNo workers: none of 0 workers is usable\n"), "{frame}");
}

/// A filter that fits nothing opens no detail, and keeps the selection.
#[test]
fn keys_without_a_row_keep_the_selection() {
    let mut app = app(&[snapshot(3, 1_000)]);
    app.press(TopKey::End);
    press(&mut app, "/nothing");
    for key in [TopKey::Enter, TopKey::Down, TopKey::Enter] {
        app.press(key);
    }
    assert!(text(&app, 100).contains("No rank fits the filter."));
    app.press(TopKey::Escape);
    assert!(text(&app, 100).contains(">gpu2"), "{}", text(&app, 100));
}

#[test]
fn a_frozen_frame_stays_and_another_process_starts_anew() {
    let mut app = app(&[snapshot(2, 5_000)]);
    press(&mut app, "f");
    app.update(&Snapshot::read(snapshot(3, 6_000).to_string().as_bytes()).unwrap());
    assert_eq!(names(&app).len(), 2);
    press(&mut app, "f");
    assert_eq!(names(&app).len(), 3);
    app.stream_lost("connection refused");
    assert!(text(&app, 150).contains("LOST (connection refused)"));
    app.update(&Snapshot::read(snapshot(1, 100).to_string().as_bytes()).unwrap());
    assert_eq!(names(&app).len(), 1);
    assert!(!app.has_rates(), "the other process counts from 0");
}

/// A router that runs longer than the last snapshot was old is another process all the same.
#[test]
fn another_process_is_known_by_its_id() {
    let of = |router_id: &str, uptime_ms: u64, text: &str| {
        let mut snapshot = snapshot(1, uptime_ms);
        snapshot["router_id"] = json!(router_id);
        snapshot["events"][0]["text"] = json!(text);
        snapshot
    };
    let mut app = app(&[of("forebay-1", 4_000, "a is up"), of("forebay-1", 5_000, "a is up")]);
    assert!(app.has_rates());
    let restarted = of("forebay-2", 8_000, "b is down").to_string();
    app.update(&Snapshot::read(restarted.as_bytes()).unwrap());
    assert!(!app.has_rates(), "the other process counts from 0");
    assert!(text(&app, 100).contains(" 0 s ago  b is down"), "{}", text(&app, 100));
}

#[test]
fn names_cannot_move_the_cursor_and_small_terminals_are_drawn() {
    let mut evil = snapshot(1, 1_000);
    evil["whole"]["workers"][0]["name"] = json!("gpu\u{1b}[2J\u{202e}");
    evil["events"][0]["text"] = json!("\u{9b}31m");
    let mut app = app(&[evil]);
    app.press(TopKey::Enter);
    for width in [0, 1, 7, 40, 300] {
        let frame = text(&app, width);
        assert!(frame.chars().all(|char| char == '\n' || !char.is_control()), "{frame:?}");
        assert!(!frame.contains('\u{202e}'));
    }
    app.press(TopKey::Enter);
    assert!(text(&app, 40).contains(">gpu?[2J?"));
}

#[test]
fn the_column_of_the_order_has_a_sign_behind_its_name() {
    let mut app = app(&[snapshot(1, 1_000)]);
    let head = |app: &App| text(app, 150).lines().nth(2).map(str::to_owned).unwrap();
    assert!(
        head(&app).starts_with(" workerv     rank "),
        "no wider than the names\n{}",
        head(&app)
    );
    press(&mut app, "ssss");
    assert!(head(&app).contains(" flightv  limit "), "{}", head(&app));
    press(&mut app, "r");
    assert!(head(&app).contains(" flight^  limit "), "{}", head(&app));
}

#[test]
fn rates_of_ranks_come_back_with_the_second_snapshot_of_a_new_fleet() {
    let ended = |generation: u64, uptime_ms: u64, ended: u64| {
        let mut snapshot = snapshot(1, uptime_ms);
        snapshot["generation"] = json!(generation);
        snapshot["ranks"]["rank_ended_total"] = json!([ended]);
        snapshot
    };
    let mut app = app(&[ended(1, 1_000, 700), ended(1, 2_000, 707), ended(2, 3_000, 0)]);
    assert!(!text(&app, 150).contains("    7.0  "));
    app.update(&Snapshot::read(ended(2, 4_000, 7).to_string().as_bytes()).unwrap());
    assert!(text(&app, 150).contains("    7.0  "), "{}", text(&app, 150));
}

#[test]
fn the_history_gives_rates_to_the_first_frame() {
    let past = |uptime_ms: u64| {
        json!({"uptime_ms": uptime_ms, "requests_total": {"200": uptime_ms / 100},
            "pools": [{"queue_depth": 1}], "ranks": {"in_flight": [7]}})
    };
    let mut first = snapshot(1, 10_000);
    first["history"] = json!([past(8_000), past(9_000), past(11_000)]);
    let app = app(&[first]);
    assert!(text(&app, 150).contains("10.0 answered/s"), "{}", text(&app, 150));
    assert!(!app.has_rates(), "ranks have no history");
}

/// M2: a quota is the tenant's state.
#[test]
fn a_tenant_over_its_quota_leaves_the_router_ready() {
    let at = |uptime_ms: u64, refused: u64| {
        let mut snapshot = snapshot(2, uptime_ms);
        snapshot["rejected_total"] = json!({ "rejected-tokens-per-minute": refused });
        let noisy = json!({"answered": 9, "refused": refused, "failed": 0, "left": 0});
        snapshot["tenants"] = json!({ "noisy": noisy });
        snapshot
    };
    let frame = text(&app(&[at(1_000, 0), at(2_000, 5)]), 150);
    let wanted = "kv  ready: 50% of requests refused, rejected-tokens-per-minute  ";
    assert!(frame.starts_with(&format!("forebay 1.2.3 {wanted}")), "{frame}");
    assert!(frame.contains("noisy 0/s 5.0 refused/s"), "{frame}");
}

/// M2: a rank that fails every request is not `up`, and a paused rank stays `paused`.
#[test]
fn a_failing_rank_has_a_state_of_its_own() {
    let mut failing = snapshot(2, 1_000);
    failing["ranks"]["rank_failing"] = json!([1, 1]);
    failing["ranks"]["breaker_open"] = json!([0, 1]);
    let frame = text(&app(&[failing]), 150);
    let row = |name: &str| frame.lines().find(|line| line.contains(name)).unwrap_or_default();
    assert!(row("gpu0 ").contains("! fails"), "{frame}");
    assert!(row("gpu1 ").contains("! paused"), "{frame}");
}

/// M2: callers with wrong keys are visible, and no fault of the router.
#[test]
fn wrong_keys_leave_the_router_ready() {
    let at = |uptime_ms: u64, wrong: u64| {
        let mut snapshot = snapshot(2, uptime_ms);
        snapshot["rejected_total"] = json!({ "unauthorized": wrong });
        snapshot["tenants"] = json!({ "*": { "answered": 9, "invalid": wrong } });
        snapshot
    };
    let frame = text(&app(&[at(1_000, 0), at(2_000, 5)]), 150);
    let wanted = "forebay 1.2.3 kv  ready: 50% of requests refused, unauthorized  ";
    assert!(frame.starts_with(wanted), "{frame}");
    assert!(frame.contains("tenants  * 0/s 5.0 invalid/s"), "{frame}");
}

#[test]
fn tenants_stand_in_a_line_of_their_own_the_refused_first() {
    let at = |uptime_ms: u64, refused: u64| {
        let mut snapshot = snapshot(2, uptime_ms);
        let calm = json!({"answered": uptime_ms / 500, "refused": 0, "failed": 0, "left": 0});
        let mut noisy = json!({"answered": 0, "refused": refused, "failed": 0, "left": 0});
        noisy["requests_per_minute"] = 60.into();
        snapshot["tenants"] = json!({"calm": calm, "noisy\u{1b}": noisy});
        snapshot
    };
    let app = app(&[at(1_000, 0), at(2_000, 5)]);
    let frame = text(&app, 150);
    let third = frame.lines().nth(2).unwrap();
    assert_eq!(
        third, "tenants  noisy? 0/s 5.0 refused/s (limit 60 requests/min)  calm 2.0/s",
        "{frame}"
    );
    assert!(frame.lines().nth(4).unwrap().starts_with(">gpu0"), "{frame}");
}

/// A reload that adds the first tenant gives the requests of before to `*`.
#[test]
fn the_first_tenant_brings_no_requests_of_before() {
    let at = |uptime_ms: u64, tenants: Option<Value>| {
        let mut snapshot = snapshot(2, uptime_ms);
        if let Some(tenants) = tenants {
            snapshot["tenants"] = tenants;
        }
        snapshot
    };
    let any = |answered: u64| json!({ "answered": answered });
    let mut app =
        app(&[at(1_000, None), at(2_000, None), at(3_000, Some(json!({ "*": any(5_000) })))]);
    let line = |app: &App| text(app, 150).lines().nth(2).unwrap().to_owned();
    assert_eq!(line(&app), "tenants  * 0/s");
    // A tenant without a request is left out of the list: its first request counts.
    let gold = at(4_000, Some(json!({ "*": any(5_002), "gold": any(3) })));
    app.update(&Snapshot::read(gold.to_string().as_bytes()).unwrap());
    assert_eq!(line(&app), "tenants  gold 3.0/s  * 2.0/s");
}

/// `--once` has no terminal to fit: a line that is cut has lost its reason.
#[test]
fn only_the_columns_of_ranks_follow_the_width() {
    let long = format!("gpu0 is down: {}the end", "its checks fail; ".repeat(12));
    let mut with_events = snapshot(2, 2_000);
    with_events["events"] = json!([
        {"id": 1, "age_ms": 1_500, "kind": "up", "text": "gpu0 is up"},
        {"id": 2, "age_ms": 500, "kind": "down", "text": long},
    ]);
    let app = app(&[snapshot(2, 1_000), with_events]);
    let frame = text(&app, 40);
    let lines: Vec<&str> = frame.lines().collect();
    let events = lines.iter().position(|line| *line == "events").expect(&frame);
    assert!(lines[events + 1].ends_with("the end"), "the newest first: {frame}");
    assert!(lines[events + 2].ends_with("ago  gpu0 is up"), "{frame}");
    assert!(lines[1].ends_with("2 ranks"), "{frame}");
}

/// Answers that are no stream have no first token, and are answers all the same.
#[test]
fn a_router_without_streams_has_no_first_token() {
    let figures = |app: &App| text(app, 150).lines().nth(1).unwrap().to_owned();
    let silent = |uptime_ms: u64| {
        let mut snapshot = snapshot(1, uptime_ms);
        snapshot["requests_total"] = json!({"200": 7});
        snapshot
    };
    let stage = |count: u64| {
        let first = json!({"bounds": [1.0, 2.0], "below": [count, count], "count": count});
        json!({"bounds": [], "stages": {"first_token": first}})
    };
    let unary = app(&[snapshot(1, 1_000), snapshot(1, 2_000)]);
    let wanted = "10.0 answered/s  TTFT p50 - p99 - (no stream ended)  0 in flight";
    assert!(figures(&unary).starts_with(wanted), "{}", figures(&unary));
    let none = app(&[silent(1_000), silent(2_000)]);
    assert!(figures(&none).contains("TTFT p50 - p99 -  0 in flight"), "{}", figures(&none));
    let mut streams = [snapshot(1, 1_000), snapshot(1, 2_000)];
    streams[0]["stage_seconds"] = stage(0);
    streams[1]["stage_seconds"] = stage(4);
    let streams = figures(&app(&streams));
    assert!(streams.contains("TTFT p50 500 ms p99 990 ms  0 in flight"), "{streams}");
}
