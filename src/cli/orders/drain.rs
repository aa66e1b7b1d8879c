//! `forebay drain` and `forebay undrain`: take a worker out, and bring it back.

use super::answer_text::{count, is_set, json, line, word};
use super::workers::why;
use crate::cli::process::{finish, run_local};
use crate::cli::router_client::{RouterArgs, RouterClient};
use clap::Args;
use forebay_config::{format_duration, parse_duration};
use serde_json::Value;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Pause between two looks at a worker.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Flags of `forebay drain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay drain gpu1 --wait && ssh gpu1 systemctl stop vllm\n  \
    forebay drain 10.0.0.7:8000 --move-streams --wait=30s\n\n\
    The worker gets no new request, and finishes what it has. The order holds until `undrain`.\n\
    Exit code 1 if the worker is not idle when the wait is over: it stays drained.")]
pub(crate) struct DrainArgs {
    /// Move streams to other workers at once; needs `retry.mid_stream`
    #[arg(long)]
    move_streams: bool,
    #[command(flatten)]
    order: OrderArgs,
}

/// Flags of `forebay undrain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay undrain gpu1 --wait\n\n\
    The worker takes requests again as soon as its health checks pass.\n\
    Exit code 1 if the worker is not up when the wait is over: the order holds.")]
pub(crate) struct UndrainArgs {
    #[command(flatten)]
    order: OrderArgs,
}

/// Flags of both orders.
#[derive(Debug, Args)]
struct OrderArgs {
    /// Name of the worker, as `forebay workers` shows it
    #[arg(value_name = "NAME")]
    worker: String,
    /// Wait until the order is carried out: `--wait` up to 10m, `--wait=30s` as long as that
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, num_args = 0..=1,
          require_equals = true, default_missing_value = "10m")]
    wait: Option<Duration>,
    /// Print the worker as the admin API shows it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    router: RouterArgs,
}

/// An order, and when it is carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RotationOrder {
    Drain { move_streams: bool },
    Undrain,
}

pub(crate) fn drain(args: &DrainArgs) -> ExitCode {
    give(&args.order, RotationOrder::Drain { move_streams: args.move_streams })
}

pub(crate) fn undrain(args: &UndrainArgs) -> ExitCode {
    give(&args.order, RotationOrder::Undrain)
}

fn give(args: &OrderArgs, order: RotationOrder) -> ExitCode {
    finish(run_local(given(args, order, &mut io::stdout().lock())).and_then(|done| done))
}

async fn given(args: &OrderArgs, order: RotationOrder, out: &mut impl Write) -> Result<(), String> {
    let client = args.router.client()?;
    let body = serde_json::json!({ "move_streams": true });
    let path = ["workers", &args.worker, order.word()];
    let body = (order == RotationOrder::Drain { move_streams: true }).then_some(&body);
    let mut worker = client.post(&path, body, "name").await?;
    if let RotationOrder::Drain { .. } = order
        && !is_set(&worker, "draining")
    {
        return Err(format!(
            "{}: the answer does not show the order; is this the `admin` address of a router?",
            client.address()
        ));
    }
    if let Some(wait) = args.wait {
        if !args.json && !order.is_done(&worker) {
            line(&order.said(&worker), out)?;
        }
        if !order.is_done(&worker) {
            worker = waited(&client, args, order, wait).await?;
        }
    }
    match args.json {
        true => json(&worker, out),
        false => line(&order.said(&worker), out),
    }
}

/// The worker once the order is carried out.
async fn waited(
    client: &RouterClient,
    args: &OrderArgs,
    order: RotationOrder,
    wait: Duration,
) -> Result<Value, String> {
    let mut last = Value::Null;
    let looking = async {
        loop {
            last = client.get(&["workers", &args.worker], "name").await?;
            if order.is_done(&last) {
                return Ok::<(), String>(());
            }
            sleep(LOOK_AGAIN).await;
        }
    };
    if let Ok(looked) = timeout(wait, looking).await {
        return looked.map(|()| last);
    }
    let wait = format_duration(wait);
    Err(match last {
        Value::Null => format!("after {wait}: no answer; the order holds"),
        last => format!("after {wait}: {}; the order holds", order.said(&last)),
    })
}

impl RotationOrder {
    const fn word(self) -> &'static str {
        match self {
            Self::Drain { .. } => "drain",
            Self::Undrain => "undrain",
        }
    }

    fn is_done(self, worker: &Value) -> bool {
        match self {
            Self::Drain { .. } => worker.get("in_flight").and_then(Value::as_u64) == Some(0),
            Self::Undrain => word(worker, "state") == "up",
        }
    }

    /// The worker as it is, in a sentence.
    fn said(self, worker: &Value) -> String {
        let name = word(worker, "name");
        match (self, count(worker, "in_flight")) {
            (Self::Drain { .. }, 0) => format!("{name} is drained and idle: its engine can stop"),
            (Self::Drain { .. }, 1) => format!("{name} drains: 1 request in flight"),
            (Self::Drain { .. }, count) => format!("{name} drains: {count} requests in flight"),
            (Self::Undrain, _) if is_set(worker, "draining") => format!("{name} still drains"),
            (Self::Undrain, _) if self.is_done(worker) => format!("{name} takes requests"),
            (Self::Undrain, _) => {
                let why = why(worker);
                let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
                format!("{name} is to take requests, and is {}{why}", word(worker, "state"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_order_is_done_when_the_worker_shows_it() {
        let worker = |state: &str, draining: bool, in_flight: u64| {
            let mut worker = json!({ "draining": draining, "in_flight": in_flight });
            worker["name"] = "w".into();
            worker["state"] = state.into();
            worker
        };
        let drain = RotationOrder::Drain { move_streams: false };
        assert!(!drain.is_done(&worker("up", true, 2)));
        assert_eq!(drain.said(&worker("up", true, 2)), "w drains: 2 requests in flight");
        assert!(drain.said(&worker("down", true, 0)).ends_with("its engine can stop"));
        let undrain = RotationOrder::Undrain;
        assert_eq!(undrain.said(&worker("up", false, 2)), "w takes requests");
        assert!(!undrain.is_done(&worker("down", false, 0)));
        let down = json!({"name": "w", "state": "down", "error": "refused"});
        assert_eq!(undrain.said(&down), "w is to take requests, and is down (refused)");
    }
}
