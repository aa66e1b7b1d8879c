//! `forebay demo`: four simulated engines, the router and a load of conversations in one process;
//! first with KV-aware routing, then round robin; a live view and a table at the end.
//!
//! Threads: the caller's runs the load and the view (`tokio`, one thread); engines and router bring
//! their own. All ports are chosen by the system, everything is on loopback, and nothing stays
//! behind. The sizes make all conversations together too large for the cache of one engine and
//! small enough for the four.

mod client;
mod conversations;
mod error;
mod load;
mod meter;
mod policy;
mod router;
mod view;

pub use client::ChatClient;
pub use conversations::{Conversations, DemoConversation, Sizes};
pub use error::DemoError;
pub use meter::{DemoOutcome, Figures, Meter};
pub use policy::DemoPolicy;

use forebay_base::Clock;
use forebay_sim_engine::{Engine, EngineConfig, EngineHandle, EngineText, Tokenizer};
use router::DemoRouter;
use serde_json::json;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use view::Live;

/// What `forebay demo` is asked to do.
#[derive(Clone, Debug)]
pub struct DemoConfig {
    /// How long each policy is under load.
    pub duration: Duration,
    /// Where to write the figures as JSON.
    pub json: Option<PathBuf>,
    /// Redraw in place instead of writing lines.
    pub terminal: bool,
}

/// Runs the demo on the calling thread; what people read goes to `out`.
pub fn run(config: &DemoConfig, out: &mut impl Write) -> Result<(), DemoError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = format!("forebay-demo-{:016x}", fastrand::u64(..));
    let model_dir = std::env::temp_dir().join(folder);
    let stage = DemoStage { text: EngineText::load(None)?, model_dir: model_dir.clone() };
    Tokenizer::write_built_in(&model_dir)?;
    let both = runtime.block_on(async {
        let kv = one_policy(config, DemoPolicy::Kv, &stage, out).await?;
        let round_robin = one_policy(config, DemoPolicy::RoundRobin, &stage, out).await?;
        Ok::<_, DemoError>((kv, round_robin))
    });
    // Best effort: it is a folder for temporary files.
    let _left_behind = std::fs::remove_dir_all(&model_dir);
    let (kv, round_robin) = both?;
    writeln!(out, "{}", view::table(&kv, &round_robin))?;
    writeln!(out, "{}", view::conclusion(&kv, &round_robin))?;
    if let Some(path) = &config.json {
        let policies = json!({ "kv": kv.to_json(), "round_robin": round_robin.to_json() });
        std::fs::write(path, format!("{}\n", json!({ "policies": policies })))?;
    }
    Ok(())
}

/// What both runs share.
struct DemoStage {
    text: EngineText,
    model_dir: PathBuf,
}

async fn one_policy(
    config: &DemoConfig,
    policy: DemoPolicy,
    stage: &DemoStage,
    out: &mut impl Write,
) -> Result<Figures, DemoError> {
    let start = |_| Engine::start_with(engine_config(), stage.text.clone());
    let engines = (0..ENGINES).map(start).collect::<Result<Vec<_>, _>>()?;
    let router = DemoRouter::start(policy, &engines, &stage.model_dir).await?;
    let conversations = Arc::new(Conversations::new(stage.text.tokenizer().clone(), SIZES));
    let clock = Clock::start();
    let client = ChatClient::new(clock)?;
    let (sink, outcomes) = mpsc::unbounded_channel();
    let url: Arc<str> = router.url().into();
    let people = load::start(&conversations, &client, &url, &sink);
    let figures = watch(config, policy, clock, &engines, outcomes, out).await?;
    drop(people);
    router.stop();
    engines.into_iter().for_each(EngineHandle::stop);
    Ok(figures)
}

/// Collects outcomes and shows them until the time is over.
async fn watch(
    config: &DemoConfig,
    policy: DemoPolicy,
    clock: Clock,
    engines: &[EngineHandle],
    mut outcomes: mpsc::UnboundedReceiver<DemoOutcome>,
    out: &mut impl Write,
) -> Result<Figures, DemoError> {
    let total_s = config.duration.as_secs_f64();
    let warm_up_s = (total_s * WARM_UP_SHARE).min(WARM_UP_S_MAX);
    let period = if config.terminal { FRAME_PERIOD } else { LINE_PERIOD };
    let mut ticks = tokio::time::interval(period);
    let end = tokio::time::sleep(config.duration);
    tokio::pin!(end);
    let elapsed_s = || clock.now().0 as f64 / 1e9;
    let mut meter = Meter::default();
    let mut drawn = String::new();
    loop {
        let last = tokio::select! {
            Some(outcome) = outcomes.recv() => {
                if elapsed_s() >= warm_up_s {
                    meter.add(outcome);
                }
                continue;
            }
            _ = ticks.tick() => false,
            () = &mut end => true,
        };
        let elapsed_s = elapsed_s();
        let figures = meter.figures(elapsed_s - warm_up_s);
        let live = Live {
            policy: policy.name(),
            elapsed_s,
            total_s,
            warming_up: figures.requests + figures.errors == 0,
            figures,
            rank_loads: engines.iter().map(load_of).collect(),
        };
        if config.terminal {
            let frame = view::frame(&live);
            write!(out, "{}{frame}", view::erase(&drawn))?;
            drawn = frame;
        } else if !last {
            writeln!(out, "{}", view::line(&live))?;
        }
        out.flush()?;
        if last {
            return Ok(figures);
        }
    }
}

fn load_of(engine: &EngineHandle) -> usize {
    engine.stats().iter().map(|rank| rank.requests.running + rank.requests.waiting).sum()
}

fn engine_config() -> EngineConfig {
    EngineConfig {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        kv_events: Some("tcp://127.0.0.1:0".into()),
        replay: Some("tcp://127.0.0.1:0".into()),
        kv_blocks: 896,
        block_size: 16,
        concurrency: 64,
        prefill_tokens_per_s: 6_500.0,
        itl_ms: 8.0,
        ..EngineConfig::default()
    }
}

const ENGINES: usize = 4;
/// 40 conversations that grow to 1,340 tokens each, 6 system prompts among them: some 30,000 tokens
/// at a time, of which one engine keeps 14,336 and four keep 57,344.
const SIZES: Sizes = Sizes {
    slots: 40,
    system_prompts: 6,
    system_tokens: 200,
    question_tokens: 130,
    answer_tokens: 12,
    turns: 8,
    think_ms: 400.0,
};
const WARM_UP_SHARE: f64 = 0.25;
const WARM_UP_S_MAX: f64 = 2.5;
const FRAME_PERIOD: Duration = Duration::from_millis(200);
const LINE_PERIOD: Duration = Duration::from_secs(1);
