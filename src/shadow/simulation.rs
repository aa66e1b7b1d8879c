//! The thread of the simulated fleets. Prompts come over a bounded channel, figures go back.

use crate::limits::PROMPTS_MAX;
use forebay_base::{Clock, NanosSinceStart};
use forebay_simulate::{LiveFigures, LiveFleet, LivePrompt, Rule, SimPlan};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::watch;

/// Between two reports of figures, and without prompts between two steps.
const STEP: Duration = Duration::from_millis(200);

/// A prompt on its way to the simulation.
#[derive(Debug)]
pub(crate) struct ArrivedPrompt {
    pub(crate) at: NanosSinceStart,
    pub(crate) keys: Vec<u64>,
    pub(crate) units: u32,
    pub(crate) answer_units: u32,
}

/// Figures of the simulated fleets.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetFigures {
    /// In the order of the rules.
    pub(crate) rules: Vec<LiveFigures>,
    /// Prompts that no fleet took.
    pub(crate) left_out: u64,
    /// Share of the caches that was filled once; 1 when all were.
    pub(crate) turned_share: f64,
}

/// What the simulated fleets are.
#[derive(Clone, Debug)]
pub(crate) struct FleetPlan {
    pub(crate) plan: SimPlan,
    pub(crate) block_units: u32,
    pub(crate) rules: Vec<Rule>,
}

/// The simulated fleets, on a thread of their own. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Simulation {
    prompts: SyncSender<ArrivedPrompt>,
    figures: watch::Receiver<FleetFigures>,
}

impl Simulation {
    pub(crate) fn start(plan: FleetPlan, clock: Clock) -> io::Result<Self> {
        let (prompts, arrived) = sync_channel(PROMPTS_MAX);
        let (sender, figures) = watch::channel(FleetFigures::default());
        let thread = std::thread::Builder::new().name("simulate".to_owned());
        thread.spawn(move || simulate(&plan, clock, &arrived, &sender))?;
        Ok(Self { prompts, figures })
    }

    /// False: the simulation is behind, and the prompt is lost.
    pub(crate) fn offer(&self, prompt: ArrivedPrompt) -> bool {
        self.prompts.try_send(prompt).is_ok()
    }

    pub(crate) fn figures(&self) -> FleetFigures {
        self.figures.borrow().clone()
    }
}

fn simulate(
    plan: &FleetPlan,
    clock: Clock,
    arrived: &Receiver<ArrivedPrompt>,
    figures: &watch::Sender<FleetFigures>,
) {
    let start = clock.now();
    let mut fleet = LiveFleet::new(plan.block_units, &plan.plan, &plan.rules);
    let mut reported = start;
    loop {
        match arrived.recv_timeout(STEP) {
            Ok(ArrivedPrompt { at, keys, units, answer_units }) => {
                let prompt =
                    LivePrompt { keys: &keys, input_tokens: units, output_tokens: answer_units };
                fleet.arrive(&prompt, at.since(start));
            }
            Err(RecvTimeoutError::Timeout) => fleet.advance(clock.now().since(start)),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = clock.now();
        if Duration::from_nanos(now.since(reported)) >= STEP {
            reported = now;
            figures.send_replace(FleetFigures {
                rules: fleet.figures(),
                left_out: fleet.left_out(),
                turned_share: fleet.turned_share(),
            });
        }
    }
}
