//! The rejection windows: `GET` and `POST /admin/window`. Called by the control plane's loop. A
//! window opened here reaches the other replicas like any other window.

use forebay_base::{NanosSinceStart, PoolIndex, RankIndex};
use forebay_board::{WindowCause, WindowOrigin, Windows};
use forebay_config::{QueueMode, format_duration, parse_duration};
use forebay_fleet::worker::pools;
use forebay_fleet::worker::{FleetSnapshot, Pool, WorkerState};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tracing::{info, warn};

/// Longest window by hand: a window that an operator forgets must end.
const OPEN_MAX: Duration = Duration::from_secs(60 * 60);
/// Longest model name that an answer repeats, in characters.
const QUOTED_CHARS_MAX: usize = 128;

/// Labels of the openers of windows, with their origins.
pub(crate) const OPENERS: [(&str, &[WindowOrigin]); 3] = [
    ("here", &[WindowOrigin::Here]),
    ("hand", &WindowOrigin::BY_HAND),
    ("elsewhere", &[WindowOrigin::Elsewhere]),
];

pub(crate) const HOW_TO_ASK: &str = "\
the body is a JSON object: {\"open\": \"5s\"} refuses all requests for that long, up to \"1h\"; {\"close\": true} serves them again; \
\"model\": NAME limits it to the workers that serve that model";

/// A request to open or close windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRequest {
    /// Name of a model; absent: all models.
    model: Option<String>,
    /// Duration of the window; absent: close it.
    open: Option<Duration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    model: Option<String>,
    open: Option<String>,
    close: Option<bool>,
}

/// No worker serves that model; contains the message.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownModel(pub(crate) String);

impl WindowRequest {
    /// Parses a request body.
    ///
    /// # Errors
    /// Describes the fault in the body.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, String> {
        let body: Body =
            serde_json::from_slice(body).map_err(|error| format!("{error}; {HOW_TO_ASK}"))?;
        let open = match (body.open, body.close) {
            (Some(text), None) => Some(open_for(&text)?),
            (None, Some(true)) => None,
            _ => return Err(format!("give `open` or `\"close\": true`; {HOW_TO_ASK}")),
        };
        Ok(Self { model: body.model, open })
    }

    /// Logs the order with its caller. The log of windows has no line of its own for an order.
    pub(crate) fn log(&self, by: &str) {
        let model = self.model.as_deref().unwrap_or("all");
        match self.open {
            Some(time) => warn!(
                model,
                open_for = format_duration(time),
                by,
                "rejection window opened by hand: requests get 429; `forebay window close` ends it"
            ),
            None => info!(model, by, "rejection windows closed by hand"),
        }
    }

    /// Opens or closes windows of this router and of its operators. Windows of other replicas stay:
    /// their next message would open them again.
    ///
    /// # Errors
    /// No worker serves the model.
    pub fn apply(
        &self,
        fleet: &FleetSnapshot,
        windows: &Windows,
        now: NanosSinceStart,
    ) -> Result<(), UnknownModel> {
        let of_model = self.model.as_deref().map(|name| pools_of(fleet, name)).transpose()?;
        let chosen = |pool: &PoolIndex| of_model.is_none_or(|wanted| wanted.contains(&Some(*pool)));
        for pool in fleet.used_pools().map(|(pool, _)| pool).filter(chosen) {
            match self.open {
                Some(time) => {
                    windows.set_end(pool, WindowOrigin::Hand, now, now.plus(time));
                }
                None => {
                    windows.close(pool, WindowOrigin::Here, now);
                    windows.close(pool, WindowOrigin::Hand, now);
                }
            }
        }
        Ok(())
    }
}

fn open_for(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| format!("`open`: {error}"))?;
    if time.is_zero() || time > OPEN_MAX {
        return Err("`open` is to be more than 0s and at most 1h".to_owned());
    }
    Ok(time)
}

/// The model's pool, and the pool of its prefill ranks.
fn pools_of(fleet: &FleetSnapshot, name: &str) -> Result<[Option<PoolIndex>; 2], UnknownModel> {
    let model = fleet.model_for(name);
    let pools = model.map(|(_, model)| [Some(model.pool), model.prefill_pool]).unwrap_or_default();
    let is_used = |pool: &Option<PoolIndex>| {
        pool.and_then(|pool| fleet.pool(pool)).is_some_and(|pool| !pool.ranks.is_empty())
    };
    if pools.iter().any(is_used) {
        return Ok(pools);
    }
    let quoted: String = name.chars().take(QUOTED_CHARS_MAX).collect();
    Err(UnknownModel(format!("no worker serves the model {quoted:?}; GET /workers lists them")))
}

/// Every pool with its window. `holders`: names of the other routers that hold the window of a pool
/// open. Only there can it be closed.
#[must_use]
pub fn list(
    fleet: &FleetSnapshot,
    windows: &Windows,
    holders: impl Fn(PoolIndex) -> Vec<String>,
    now: NanosSinceStart,
) -> Value {
    let with_holders = |pool: (PoolIndex, &Pool)| {
        let mut shown = shown(pool, fleet, windows, now);
        if let Some(shown) = shown.as_object_mut() {
            shown.insert("held_by".to_owned(), holders(pool.0).into());
        }
        shown
    };
    let pools = fleet.used_pools().map(with_holders);
    json!({ "pools": pools.collect::<Vec<_>>() })
}

/// A pool with its window.
pub(crate) fn shown(
    pool: (PoolIndex, &Pool),
    fleet: &FleetSnapshot,
    windows: &Windows,
    now: NanosSinceStart,
) -> Value {
    let (pool, ranks) = pool;
    let until = windows.open_until(pool, now);
    let by: Vec<&str> = open_by(windows, pool, now).collect();
    let models: Vec<&str> = pools::models(fleet, pool).map(|(_, model)| &*model.name).collect();
    json!({
        "pool": pool.0,
        "leg": if pools::is_prefill(pool) { "prefill" } else { "answer" },
        "models": models,
        "ranks": ranks.ranks.len(),
        "open": until.is_some(),
        "open_ms": until.map_or(0, |until| milliseconds(until, now)),
        "by": by,
        "cause": until.map(|_| window_cause(fleet, windows, pool, now)),
        "openings": windows.openings(pool),
    })
}

/// Labels of the openers of a pool's open windows.
fn open_by(
    windows: &Windows,
    pool: PoolIndex,
    now: NanosSinceStart,
) -> impl Iterator<Item = &'static str> {
    let open = OPENERS.iter();
    let open = open.filter(move |(_, origins)| is_open_by(windows, pool, origins, now));
    open.map(|(label, _)| *label)
}

/// Whether a window of any of these origins is open.
pub(crate) fn is_open_by(
    windows: &Windows,
    pool: PoolIndex,
    origins: &[WindowOrigin],
    now: NanosSinceStart,
) -> bool {
    origins.iter().any(|by| windows.open_by_until(pool, *by, now).is_some())
}

/// The openers of a pool's open windows, as in `hand, elsewhere`.
#[must_use]
pub(crate) fn openers(windows: &Windows, pool: PoolIndex, now: NanosSinceStart) -> String {
    open_by(windows, pool, now).collect::<Vec<_>>().join(", ")
}

/// Label of the opener of a window.
#[must_use]
pub fn opener(by: WindowOrigin) -> &'static str {
    let labels = OPENERS.into_iter().find(|(_, origins)| origins.contains(&by));
    labels.map_or("", |(label, _)| label)
}

/// Why the pool's windows are open, with the limit and its value. Orders come first, then the limit
/// of this router.
#[must_use]
pub(crate) fn window_cause(
    fleet: &FleetSnapshot,
    windows: &Windows,
    pool: PoolIndex,
    now: NanosSinceStart,
) -> String {
    let is_open = |by: &WindowOrigin| windows.open_by_until(pool, *by, now).is_some();
    let [hand, hand_elsewhere] = WindowOrigin::BY_HAND;
    let order = [hand, hand_elsewhere, WindowOrigin::Here, WindowOrigin::Elsewhere];
    let by = order.into_iter().find(is_open).unwrap_or(WindowOrigin::Here);
    cause_by(fleet, windows, pool, by)
}

/// Why this opener opened a window of the pool, with the limit and its value.
#[must_use]
pub fn cause_by(
    fleet: &FleetSnapshot,
    windows: &Windows,
    pool: PoolIndex,
    by: WindowOrigin,
) -> String {
    match by {
        WindowOrigin::Hand => return "an operator opened the window".to_owned(),
        WindowOrigin::HandElsewhere => {
            return "an operator opened the window at another router of the group".to_owned();
        }
        WindowOrigin::Elsewhere => {
            return "another router of the group has no room".to_owned();
        }
        WindowOrigin::Here => {}
    }
    let queue = &fleet.config.flow.queue;
    let whose = match queue.mode {
        QueueMode::Endpoint => "the queue of each rank",
        QueueMode::Off | QueueMode::Pool => "the queue of the model",
    };
    match windows.cause(pool) {
        None => "this router has no room".to_owned(),
        Some(WindowCause::Places) => {
            let is_up = |rank: &&RankIndex| {
                fleet.rank(**rank).is_some_and(|(_, worker)| worker.state == WorkerState::Up)
            };
            let ranks = fleet.pool(pool).map_or(0, |pool| pool.ranks.iter().filter(is_up).count());
            format!("the limits of all ranks that are up ({ranks}) are reached, and no queue is on")
        }
        Some(WindowCause::Depth) => {
            format!("{whose} is full: `queue.depth_max` = {}", queue.depth_max)
        }
        Some(WindowCause::Bytes) => {
            format!("{whose} is full: `queue.bytes_max` = {}", queue.bytes_max)
        }
    }
}

/// The pool in words: its first model, and `(prefill)` for prefill ranks.
#[must_use]
pub fn pool_name(fleet: &FleetSnapshot, pool: PoolIndex) -> String {
    let model = pools::models(fleet, pool).next().map_or("", |(_, model)| &*model.name);
    if pools::is_prefill(pool) { format!("{model} (prefill)") } else { model.to_owned() }
}

/// Rounded up: an open window has at least 1 ms left.
fn milliseconds(until: NanosSinceStart, now: NanosSinceStart) -> u64 {
    until.since(now).div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fleet::worker::Role;
    use forebay_fleet::worker::test_support::two_pools;

    const NOW: NanosSinceStart = NanosSinceStart(1_000);

    fn asked(body: &str) -> Result<WindowRequest, String> {
        WindowRequest::from_body(body.as_bytes())
    }

    fn open_ms(fleet: &FleetSnapshot, windows: &Windows, now: NanosSinceStart) -> Vec<u64> {
        let list = list(fleet, windows, |_| Vec::new(), now);
        let pools = list["pools"].as_array().unwrap();
        pools.iter().map(|pool| pool["open_ms"].as_u64().unwrap()).collect()
    }

    #[test]
    fn bodies_are_read_strictly() {
        let open = |model: Option<&str>, s| WindowRequest {
            model: model.map(str::to_owned),
            open: Some(Duration::from_secs(s)),
        };
        assert_eq!(asked(r#"{"open":"5s"}"#), Ok(open(None, 5)));
        assert_eq!(asked(r#"{"model":"a","open":"1h"}"#), Ok(open(Some("a"), 3_600)));
        assert_eq!(asked(r#"{"close":true}"#), Ok(WindowRequest { model: None, open: None }));
        for (body, wanted) in [
            ("", "EOF"),
            ("[]", "{\"open\": \"5s\"}"),
            ("{}", "give `open`"),
            (r#"{"open":"5s","close":true}"#, "give `open`"),
            (r#"{"close":false}"#, "give `open`"),
            (r#"{"open":5}"#, "expected a string"),
            (r#"{"open":"soon"}"#, "`open`"),
            (r#"{"open":"0s"}"#, "more than 0s"),
            (r#"{"open":"61m"}"#, "at most 1h"),
            (r#"{"open":"5s","modle":"a"}"#, "unknown field `modle`"),
        ] {
            let said = asked(body).unwrap_err();
            assert!(said.contains(wanted), "{body}: {said}");
        }
    }

    #[test]
    fn opens_and_closes_one_pool_or_all() {
        let fleet = two_pools();
        let windows = Windows::new();
        let apply = |body: &str| asked(body).unwrap().apply(&fleet, &windows, NOW);
        apply(r#"{"model":"adapter","open":"2s"}"#).unwrap();
        assert_eq!(open_ms(&fleet, &windows, NOW), [2_000, 0]);
        assert_eq!(open_ms(&fleet, &windows, NOW.plus(Duration::from_secs(2))), [0, 0]);
        apply(r#"{"open":"1s"}"#).unwrap();
        assert_eq!(open_ms(&fleet, &windows, NOW), [1_000, 1_000], "the last order counts");
        windows.open(PoolIndex(2), WindowOrigin::Elsewhere, NOW, NOW.plus(OPEN_MAX));
        let second = list(&fleet, &windows, |_| Vec::new(), NOW)["pools"][1].clone();
        assert_eq!(second["by"], json!(["hand", "elsewhere"]));
        assert_eq!((&second["models"], &second["openings"]), (&json!(["other"]), &json!(2)));
        apply(r#"{"model":"other","close":true}"#).unwrap();
        assert_eq!(open_ms(&fleet, &windows, NOW)[0], 1_000);
        let held = |pool: PoolIndex| if pool.0 == 2 { vec!["b".to_owned()] } else { Vec::new() };
        let held = list(&fleet, &windows, held, NOW)["pools"].clone();
        assert_eq!((&held[1]["open"], &held[1]["by"]), (&json!(true), &json!(["elsewhere"])));
        assert_eq!((&held[1]["held_by"], &held[0]["held_by"]), (&json!(["b"]), &json!([])));
        windows.close(PoolIndex(2), WindowOrigin::Elsewhere, NOW);
        apply(r#"{"close":true}"#).unwrap();
        assert_eq!(open_ms(&fleet, &windows, NOW), [0, 0]);
    }

    #[test]
    fn a_models_prefill_ranks_are_closed_with_it() {
        let mut fleet = two_pools();
        let windows = Windows::new();
        fleet.ranks[1].role = Role::Prefill;
        pools::assign(&mut fleet);
        asked(r#"{"model":"base","open":"2s"}"#).unwrap().apply(&fleet, &windows, NOW).unwrap();
        let list = list(&fleet, &windows, |_| Vec::new(), NOW);
        let shown =
            |pool: &Value| (pool["leg"].clone(), pool["models"][0].clone(), pool["open"].clone());
        let shown: Vec<_> = list["pools"].as_array().unwrap().iter().map(shown).collect();
        let wanted =
            [("answer", "base", true), ("answer", "other", false), ("prefill", "base", true)];
        assert_eq!(shown, wanted.map(|(leg, model, open)| (json!(leg), json!(model), json!(open))));
    }

    /// M3: the log, the events and `/admin/window` have the limit that a window stands for.
    #[test]
    fn each_cause_of_a_window_names_its_limit() {
        let mut fleet = two_pools();
        let mut config = (*fleet.config).clone();
        config.flow.queue.depth_max = 77;
        config.flow.queue.bytes_max = 8_888;
        fleet.config = config.into();
        let pool = PoolIndex(0);
        let windows = Windows::new();
        let cause = || window_cause(&fleet, &windows, pool, NOW);
        for (at, wanted) in [
            (WindowCause::Places, "all ranks that are up (2) are reached"),
            (WindowCause::Depth, "`queue.depth_max` = 77"),
            (WindowCause::Bytes, "`queue.bytes_max` = 8888"),
        ] {
            windows.open_at(pool, at, NOW, NOW.plus(OPEN_MAX));
            assert!(cause().contains(wanted), "{}", cause());
            assert!(list(&fleet, &windows, |_| Vec::new(), NOW)["pools"][0]["cause"] == cause());
        }
        windows.open_at(pool, WindowCause::Places, NOW, NOW.plus(OPEN_MAX));
        let mut half = two_pools();
        let rank = half.pool(pool).unwrap().ranks[0];
        let worker = half.ranks[rank.index()].worker.index();
        half.workers[worker].state = WorkerState::Down;
        let cause_of_half = window_cause(&half, &windows, pool, NOW);
        assert!(cause_of_half.contains("(0)"), "both ranks are of the worker: {cause_of_half}");
        windows.open_at(pool, WindowCause::Bytes, NOW, NOW.plus(OPEN_MAX));
        windows.open(pool, WindowOrigin::Elsewhere, NOW, NOW.plus(OPEN_MAX));
        assert!(cause().contains("bytes_max"), "the own limit first: {}", cause());
        windows.close(pool, WindowOrigin::Here, NOW);
        assert!(cause().contains("another router"), "{}", cause());
        windows.open(pool, WindowOrigin::HandElsewhere, NOW, NOW.plus(OPEN_MAX));
        assert!(cause().contains("operator opened the window at another"), "{}", cause());
        assert_eq!(openers(&windows, pool, NOW), "hand, elsewhere");
        windows.close(pool, WindowOrigin::HandElsewhere, NOW);
        windows.open(pool, WindowOrigin::Hand, NOW, NOW.plus(OPEN_MAX));
        assert!(cause().contains("operator"), "{}", cause());
        windows.close(pool, WindowOrigin::Hand, NOW);
        windows.close(pool, WindowOrigin::Elsewhere, NOW);
        assert!(list(&fleet, &windows, |_| Vec::new(), NOW)["pools"][0]["cause"].is_null());
    }

    #[test]
    fn a_model_that_nobody_serves_is_named() {
        let fleet = two_pools();
        let windows = Windows::new();
        let long = "x".repeat(5_000);
        for name in ["gone", "nobody", &long] {
            let wanted = WindowRequest { model: Some(name.to_owned()), open: Some(OPEN_MAX) };
            let UnknownModel(text) = wanted.apply(&fleet, &windows, NOW).unwrap_err();
            assert!(text.contains(&name[..4]) && text.len() < 300, "{text}");
        }
        assert!(!windows.may_be_open(NOW));
    }
}
