//! Setup of each act of the demo: engines with empty caches, a router in front of them, and a load.

use super::client::ChatClient;
use super::conversations::{Conversations, ReplyForm, Sizes};
use super::error::DemoError;
use super::load::DemoUsers;
use super::meter::DemoOutcome;
use super::policy::DemoPolicy;
use super::router::DemoRouter;
use forebay_base::Clock;
use forebay_sim_engine::{Engine, EngineConfig, EngineHandle, EngineText};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

/// State shared by all acts.
#[derive(Debug)]
pub(super) struct DemoStage {
    pub(super) text: EngineText,
    pub(super) model_dir: PathBuf,
    /// Address of the first router's page; later routers use the same port.
    pub(super) admin: Option<SocketAddr>,
}

/// The running engines, router and load.
#[derive(Debug)]
pub(super) struct Act {
    /// `None` for a killed engine.
    pub(super) engines: Vec<Option<EngineHandle>>,
    pub(super) router: DemoRouter,
    pub(super) crowd: DemoUsers,
    pub(super) outcomes: mpsc::UnboundedReceiver<(ReplyForm, DemoOutcome)>,
    /// Starts with the load.
    pub(super) clock: Clock,
}

impl Act {
    /// Starts everything; prints the page's address if it has changed.
    pub(super) async fn start(
        policy: DemoPolicy,
        stage: &mut DemoStage,
        forms: &[ReplyForm],
        out: &mut impl Write,
    ) -> Result<Self, DemoError> {
        let start = |_| Engine::start_with(engine_config(), stage.text.clone());
        let engines = (0..ENGINES).map(start).collect::<Result<Vec<_>, _>>()?;
        let router = DemoRouter::start(policy, &engines, &stage.model_dir, stage.admin).await?;
        if stage.admin.replace(router.admin()) != Some(router.admin()) {
            writeln!(out, "Live page, while the demo runs: http://{}/\n", router.admin())?;
        }
        let conversations = Arc::new(Conversations::new(stage.text.tokenizer().clone(), SIZES));
        let clock = Clock::start();
        let client = ChatClient::new(clock)?;
        let (sink, outcomes) = mpsc::unbounded_channel();
        let url: Arc<str> = router.url().into();
        let crowd = DemoUsers::start(&conversations, &client, &url, &sink, forms);
        let engines = engines.into_iter().map(Some).collect();
        Ok(Self { engines, router, crowd, outcomes, clock })
    }

    /// Seconds since the load began.
    pub(super) fn elapsed_s(&self) -> f64 {
        self.clock.now().0 as f64 / 1e9
    }

    /// Requests running and waiting in each engine; `None` for a killed engine.
    pub(super) fn rank_loads(&self) -> Vec<Option<usize>> {
        self.engines.iter().map(|engine| engine.as_ref().map(load_of)).collect()
    }

    /// Ends the load, then the router, then the engines.
    pub(super) fn stop(self) {
        drop(self.crowd);
        self.router.stop();
        self.engines.into_iter().flatten().for_each(EngineHandle::stop);
    }
}

/// Part of an act with cold caches, which is not measured.
pub(super) fn warm_up_s(total_s: f64) -> f64 {
    (total_s * WARM_UP_SHARE).min(WARM_UP_S_MAX)
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
/// 40 conversations that grow to 1,340 tokens each, with 6 system prompts: some 30,000 tokens at a
/// time, of which an engine caches 14,336 and four engines 57,344.
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
