//! `forebay demo`: four simulated engines, the router and a load of conversations in one process;
//! first with KV-aware routing, then round robin, with a live view and a table. In a third act an
//! engine is killed under load.
//!
//! Threads: the caller's thread runs the load and the view (`tokio`, one thread); engines and
//! router have their own. All ports are chosen by the system, everything is on loopback, and no
//! files remain. All conversations together are too large for the cache of a single engine and
//! small enough for the four.

mod act;
mod client;
mod config;
mod conversations;
mod error;
mod kill;
mod load;
mod meter;
mod policy;
mod router;
mod screen;
mod view;

pub use client::ChatClient;
pub use config::DemoConfig;
pub use conversations::{Conversations, DemoConversation, ReplyForm, Sizes};
pub use error::DemoError;
pub use meter::{DemoOutcome, Figures, Meter};
pub use policy::DemoPolicy;

use act::{Act, DemoStage, warm_up_s};
use forebay_sim_engine::{EngineText, Tokenizer};
use kill::KillFigures;
use screen::Screen;
use serde_json::json;
use std::io::Write;
use view::Live;

/// Runs the demo on the calling thread; output goes to `out`.
pub fn run(config: &DemoConfig, out: &mut impl Write) -> Result<(), DemoError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = format!("forebay-demo-{:016x}", fastrand::u64(..));
    let model_dir = std::env::temp_dir().join(folder);
    let text = EngineText::load(None)?;
    Tokenizer::write_built_in(&model_dir)?;
    let mut stage = DemoStage { text, model_dir: model_dir.clone(), admin: None };
    let shown = runtime.block_on(acts(config, &mut stage, out));
    // Best effort: the folder is temporary.
    let _left_behind = std::fs::remove_dir_all(&model_dir);
    let ActResults { kv, round_robin, killed } = shown?;
    if let Some(path) = &config.json {
        let policies = json!({ "kv": kv.to_json(), "round_robin": round_robin.to_json() });
        let figures = json!({ "policies": policies, "killed_engine": killed.to_json() });
        std::fs::write(path, format!("{figures}\n"))?;
    }
    Ok(())
}

struct ActResults {
    kv: Figures,
    round_robin: Figures,
    killed: KillFigures,
}

async fn acts(
    config: &DemoConfig,
    stage: &mut DemoStage,
    out: &mut impl Write,
) -> Result<ActResults, DemoError> {
    let kv = one_policy(config, DemoPolicy::Kv, stage, out).await?;
    let round_robin = one_policy(config, DemoPolicy::RoundRobin, stage, out).await?;
    writeln!(out, "{}", view::table(&kv, &round_robin))?;
    writeln!(out, "{}", view::bars(&kv, &round_robin))?;
    writeln!(out, "{}\n", view::conclusion(&kv, &round_robin))?;
    let killed = kill::run(config, stage, out).await?;
    writeln!(out, "{}", killed.table())?;
    writeln!(out, "{}", killed.conclusion())?;
    Ok(ActResults { kv, round_robin, killed })
}

async fn one_policy(
    config: &DemoConfig,
    policy: DemoPolicy,
    stage: &mut DemoStage,
    out: &mut impl Write,
) -> Result<Figures, DemoError> {
    let mut act = Act::start(policy, stage, &[ReplyForm::Streamed], out).await?;
    let figures = watch(config, policy, &mut act, out).await;
    act.stop();
    figures
}

/// Collects outcomes and shows them until the time is over.
async fn watch(
    config: &DemoConfig,
    policy: DemoPolicy,
    act: &mut Act,
    out: &mut impl Write,
) -> Result<Figures, DemoError> {
    let total_s = config.duration.as_secs_f64();
    let warm_up_s = warm_up_s(total_s);
    let mut screen = Screen::new(config.terminal);
    let end = tokio::time::sleep(config.duration);
    tokio::pin!(end);
    let mut meter = Meter::default();
    loop {
        let last = tokio::select! {
            Some((_, outcome)) = act.outcomes.recv() => {
                if act.elapsed_s() >= warm_up_s {
                    meter.add(outcome);
                }
                continue;
            }
            () = screen.tick() => false,
            () = &mut end => true,
        };
        let elapsed_s = act.elapsed_s();
        let figures = meter.figures(elapsed_s - warm_up_s);
        let live = Live {
            title: policy.name(),
            elapsed_s,
            total_s,
            numbers: view::numbers(&figures),
            rank_loads: act.rank_loads(),
        };
        screen.show(&live, last, out)?;
        if last {
            return Ok(figures);
        }
    }
}
