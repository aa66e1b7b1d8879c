//! `forebay window`: shows, opens and closes rejection windows.

use super::answer_text::{count, is_set, json, list, table, unwritten, word, words};
use crate::cli::process::{finish, run_local};
use crate::cli::router_client::RouterArgs;
use clap::error::ErrorKind;
use clap::{Args, Command, ValueEnum};
use forebay_config::{format_duration, parse_duration};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Flags of `forebay window`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay window\n  \
    forebay window open 30s --model Qwen/Qwen3-8B\n  \
    forebay window close\n\n\
    While a window is open, requests of its pool get 429. No queue closes a window by hand; its\n\
    time ends it. `close` closes windows of queues too. Close a window of a replica there.")]
pub(crate) struct WindowArgs {
    /// What to do; without it the windows are shown
    action: Option<WindowAction>,
    /// Time that the window is open, up to 1h
    #[arg(value_name = "DURATION", value_parser = open_time,
          required_if_eq("action", "open"))]
    time: Option<Duration>,
    /// Limit the order to the pool of this model [default: all pools]
    #[arg(long, value_name = "NAME", requires = "action")]
    model: Option<String>,
    /// Print the answer of the admin API
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    router: RouterArgs,
}

/// Longest time of a window by hand, as the admin API has it.
const WINDOW_TIME_MAX: Duration = Duration::from_secs(3_600);

/// What happens to the windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WindowAction {
    Open,
    Close,
}

pub(crate) fn run(args: &WindowArgs) -> ExitCode {
    match order(args) {
        Ok(order) => {
            let reported = run_local(report(args, order, &mut io::stdout().lock()));
            finish(reported.and_then(|done| done))
        }
        Err(what) => {
            let mut command = WindowArgs::augment_args(Command::new("forebay window"));
            let wrong = command.error(ErrorKind::ArgumentConflict, what);
            // A closed standard error leaves the exit code.
            let _ = wrong.print();
            ExitCode::from(u8::try_from(wrong.exit_code()).unwrap_or(u8::MAX))
        }
    }
}

/// Time of a window: more than nothing, up to [`WINDOW_TIME_MAX`].
fn open_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time.is_zero() || time > WINDOW_TIME_MAX {
        return Err("a window is open for more than 0s and at most 1h".to_owned());
    }
    Ok(time)
}

async fn report(
    args: &WindowArgs,
    order: Option<Value>,
    out: &mut impl Write,
) -> Result<(), String> {
    let path = ["admin", "window"];
    let client = args.router.client()?;
    let answer = match order {
        Some(order) => client.post(&path, Some(&order), "pools").await?,
        None => client.get(&path, "pools").await?,
    };
    if args.json {
        return json(&answer, out);
    }
    let heading = ["POOL", "MODELS", "RANKS", "WINDOW", "FOR", "BY", "OPENINGS"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(list(&answer, "pools").iter().map(row));
    table(&rows, out).map_err(|error| unwritten(&error))?;
    for held in list(&answer, "pools").iter().filter_map(held) {
        writeln!(out, "{held}").map_err(|error| unwritten(&error))?;
    }
    Ok(())
}

/// Routers that hold the window of a pool open; `None` if there are none.
fn held(pool: &Value) -> Option<String> {
    let routers = words(pool, "held_by");
    let number = count(pool, "pool");
    (!list(pool, "held_by").is_empty()).then(|| {
        format!("pool {number} is held by {routers}: `forebay window close` works only there")
    })
}

/// Body of the call; `None`: only show.
fn order(args: &WindowArgs) -> Result<Option<Value>, &'static str> {
    let mut body = match (args.action, args.time) {
        (None, _) => return Ok(None),
        (Some(WindowAction::Open), time) => {
            json!({ "open": format_duration(time.unwrap_or_default()) })
        }
        (Some(WindowAction::Close), None) => json!({ "close": true }),
        (Some(WindowAction::Close), Some(_)) => {
            return Err("`close` takes no duration: it closes all windows at once");
        }
    };
    if let (Some(model), Some(body)) = (&args.model, body.as_object_mut()) {
        body.insert("model".to_owned(), model.as_str().into());
    }
    Ok(Some(body))
}

/// A rest in whole seconds, rounded up, in the two largest units.
fn time_left(left: Duration) -> String {
    let seconds = left.as_millis().div_ceil(1_000);
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, 0) => format!("{minutes}m"),
        (minutes, seconds) => format!("{minutes}m {seconds}s"),
    }
}

fn row(pool: &Value) -> Vec<String> {
    let is_open = is_set(pool, "open");
    let left = || time_left(Duration::from_millis(count(pool, "open_ms")));
    vec![
        format!("{} ({})", count(pool, "pool"), word(pool, "leg")),
        words(pool, "models"),
        count(pool, "ranks").to_string(),
        (if is_open { "open" } else { "closed" }).to_owned(),
        if is_open { left() } else { "-".to_owned() },
        words(pool, "by"),
        count(pool, "openings").to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_another_router_names_that_router() {
        let shown = json!({ "pool": 2, "held_by": ["router-a", "router-b"] });
        let wanted =
            "pool 2 is held by router-a, router-b: `forebay window close` works only there";
        assert_eq!(held(&shown).as_deref(), Some(wanted));
        assert_eq!(held(&json!({ "pool": 2, "held_by": [] })), None);
        assert_eq!(held(&json!({ "pool": 2 })), None, "an older router");
    }

    #[test]
    fn the_rest_of_a_window_has_units_and_no_milliseconds() {
        let shown = [1, 999, 1_000, 29_993, 60_000, 3_599_001, 3_600_000];
        let shown = shown.map(|ms| time_left(Duration::from_millis(ms)));
        assert_eq!(shown, ["1s", "1s", "1s", "30s", "1m", "60m", "60m"]);
        assert_eq!(time_left(Duration::from_millis(61_500)), "1m 2s");
    }
}
