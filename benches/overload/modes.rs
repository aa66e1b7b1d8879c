//! A queue in the router against the engine's own, on the same traffic: who waits where, and what
//! comes of it.

use crate::burst::unix_ns;
use crate::client::Pool;
use crate::load::{Done, closed_loop, open_loop};
use crate::modes_table::{Cell, write_head, write_row};
use crate::options::{ModesOptions, Options};
use crate::places::{Window, place_use, read_log};
use crate::processes::{Running, Starter, folder_of};
use crate::workload::{TENANT_HEADER, conversations};
use forebay::base::Clock;
use std::io::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Nothing counts before: caches fill.
const WARM: Duration = Duration::from_secs(3);
const CALIBRATION: Duration = Duration::from_secs(8);
const ITL_MS: &str = "20";
const PREFILL_TOKENS_PER_S: &str = "10000";
const BLOCK_TOKENS: u64 = 16;
const KV_BLOCKS_MIN: u64 = 600;
/// What the router may wait for a place, whatever the target.
const WAIT_MAX: &str = "10s";

/// What one measurement runs with.
#[derive(Clone, Copy, Debug)]
struct Setting<'a> {
    mode: &'a str,
    tokens: u32,
    routers: u8,
    times: f64,
    /// Requests per second that the engines can do.
    capacity_per_s: f64,
}

struct Fleet {
    engines: Vec<Running>,
    routers: Vec<Running>,
    logs: Vec<PathBuf>,
    pools: Vec<Rc<Pool>>,
}

pub(crate) async fn run(options: &Options, modes: &ModesOptions) -> io::Result<bool> {
    let mut starter = Starter::new(options.program(), options.port, folder_of("queue_modes"))?;
    let mut out = io::stdout();
    write_head(&mut out, modes)?;
    for &tokens in &modes.tokens {
        let capacity_per_s = calibrate(&mut starter, options, modes, tokens).await?;
        writeln!(
            out,
            "answers of {tokens} tokens: the engines can do {capacity_per_s:.1} requests/s"
        )?;
        for &routers in &modes.routers {
            for &times in &modes.times {
                for mode in &modes.modes {
                    let setting = Setting { mode, tokens, routers, times, capacity_per_s };
                    let cell = measure(&mut starter, options, modes, setting).await?;
                    write_row(&mut out, &cell)?;
                    out.flush()?;
                }
            }
        }
    }
    Ok(true)
}

/// What the engines can do on this traffic: every place taken, nobody waits, caches as they come to
/// be.
async fn calibrate(
    starter: &mut Starter,
    options: &Options,
    modes: &ModesOptions,
    tokens: u32,
) -> io::Result<f64> {
    let setting = Setting { mode: "engine", tokens, routers: 1, times: 0.0, capacity_per_s: 0.0 };
    let fleet = start(starter, options, modes, setting)?;
    let next = conversations(modes, tokens, Duration::from_secs(600));
    closed_loop(&fleet.pools, &next, modes.engines * modes.places, WARM).await;
    let begun_ns = unix_ns();
    closed_loop(&fleet.pools, &next, modes.engines * modes.places, CALIBRATION).await;
    let window = Window { from_ns: begun_ns, until_ns: begun_ns + nanos(CALIBRATION) };
    let seen = fleet.seen()?;
    Ok(place_use(&seen, modes.places, window).finished as f64 / CALIBRATION.as_secs_f64())
}

async fn measure(
    starter: &mut Starter,
    options: &Options,
    modes: &ModesOptions,
    setting: Setting<'_>,
) -> io::Result<Cell> {
    let fleet = start(starter, options, modes, setting)?;
    let target = Duration::from_millis(modes.target_ms);
    let next = conversations(modes, setting.tokens, target / 2);
    let time = WARM + Duration::from_secs(modes.seconds);
    let clock_ns = fleet.pools.first().map_or(0, |pool| pool.now_ns());
    let done = open_loop(&fleet.pools, &next, setting.capacity_per_s * setting.times, time).await;
    let counted: Vec<Done> =
        done.into_iter().filter(|done| done.outcome.due_ns >= clock_ns + nanos(WARM)).collect();
    let prompts = fleet.engines.iter().map(|engine| engine.metric("vllm:prompt_tokens_total"));
    let computed: f64 = prompts.sum::<io::Result<f64>>()?;
    let answered = fleet.engines.iter().map(|engine| engine.metric("vllm:request_success_total"));
    let answered: f64 = answered.sum::<io::Result<f64>>()?;
    let prompt_tokens = counted.iter().map(|done| done.outcome.prompt_tokens).max().unwrap_or(0);
    Ok(Cell {
        mode: setting.mode.to_owned(),
        tokens: setting.tokens,
        routers: setting.routers,
        times: setting.times,
        capacity_per_s: setting.capacity_per_s,
        seconds: modes.seconds as f64,
        target_ns: nanos(target),
        // All prompts are of one length, so what was begun and not answered is the difference.
        begun_for_nobody: (computed - answered * prompt_tokens as f64).max(0.0) / computed.max(1.0),
        done: counted,
    })
}

fn start(
    starter: &mut Starter,
    options: &Options,
    modes: &ModesOptions,
    setting: Setting<'_>,
) -> io::Result<Fleet> {
    let mut engines = Vec::new();
    let mut logs = Vec::new();
    for number in 0..modes.engines {
        let log = starter.folder.join(format!("engine-{number}.times"));
        let mut flags = engine_flags(modes, starter.port()?);
        flags.extend(["--log-times".to_owned(), log.display().to_string()]);
        if setting.mode == "engine-bounded" {
            let queued = depth(modes, setting).div_ceil(modes.engines);
            flags.extend(["--queued-max".to_owned(), queued.to_string()]);
        }
        engines.push(starter.engine(&flags)?);
        logs.push(log);
    }
    let config = starter.folder.join("router.toml");
    std::fs::write(&config, router_config(modes, setting))?;
    let mut flags = vec!["-c".to_owned(), config.display().to_string()];
    flags.extend(["--model-dir".to_owned(), model_dir()]);
    flags.extend_from_slice(&options.router_flags);
    let mut routers = Vec::new();
    for _ in 0..setting.routers {
        routers.push(starter.router(&engines, &flags)?);
    }
    let clock = Clock::start();
    let pools = routers.iter().map(|router| Rc::new(Pool::new(router.address, clock))).collect();
    Ok(Fleet { engines, routers, logs, pools })
}

impl Fleet {
    fn seen(&self) -> io::Result<Vec<Vec<crate::places::Seen>>> {
        debug_assert!(!self.routers.is_empty());
        self.logs.iter().map(|log| read_log(log)).collect()
    }
}

/// An engine holds half of the beginnings, and at least what runs in it.
fn engine_flags(modes: &ModesOptions, kv_port: u16) -> Vec<String> {
    let blocks = (modes.beginnings * modes.prompt_tokens / BLOCK_TOKENS / 2).max(KV_BLOCKS_MIN);
    let flags = [
        ("--model-dir", model_dir()),
        ("--model", "sim".to_owned()),
        ("--concurrency", modes.places.to_string()),
        ("--itl-ms", ITL_MS.to_owned()),
        ("--prefill-tokens-per-s", PREFILL_TOKENS_PER_S.to_owned()),
        ("--block-size", BLOCK_TOKENS.to_string()),
        ("--kv-blocks", blocks.to_string()),
        ("--kv-events", format!("tcp://127.0.0.1:{kv_port}")),
    ];
    flags.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

/// The queue is as long as the target allows: who would have to wait longer is told so at once.
fn router_config(modes: &ModesOptions, setting: Setting<'_>) -> String {
    let (mode, limit) = match setting.mode {
        "engine" | "engine-bounded" => ("off", 0),
        "pool-fifo" => ("pool", modes.router_places.unwrap_or(modes.places)),
        mode => (mode, modes.router_places.unwrap_or(modes.places)),
    };
    let all = depth(modes, setting).div_ceil(usize::from(setting.routers));
    let each = if mode == "endpoint" { all.div_ceil(modes.engines) } else { all };
    if mode == "off" {
        return format!("rank_concurrency_max = {limit}\n[queue]\nmode = \"off\"\n");
    }
    let strict = if setting.mode == "pool-fifo" { "overtaken_max = 0\n" } else { "" };
    format!(
        "rank_concurrency_max = {limit}\n[queue]\n{strict}mode = \"{mode}\"\ndepth_max = {each}\nwait_max = \"{WAIT_MAX}\"\n\
         tenant_header = \"{TENANT_HEADER}\"\n\
         [[tenant]]\nname = \"heavy\"\n[[tenant]]\nname = \"light\"\n"
    )
}

/// Requests that get their place within the target if they wait.
fn depth(modes: &ModesOptions, setting: Setting<'_>) -> usize {
    let fits = setting.capacity_per_s * modes.target_ms as f64 / 1_000.0;
    crate::load::whole(fits).try_into().unwrap_or(usize::MAX).max(1)
}

fn model_dir() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer").to_owned()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
