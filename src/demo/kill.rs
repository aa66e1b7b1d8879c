//! The third act: an engine is killed under load, as by `kill -9`. Half of the users read streams,
//! half want whole answers. The router retries requests without a response byte. A stream that has
//! begun ends with its engine, and counts as cut.

use super::act::{Act, DemoStage, warm_up_s};
use super::config::DemoConfig;
use super::conversations::ReplyForm;
use super::error::DemoError;
use super::meter::{DemoOutcome, Meter, rounded};
use super::policy::DemoPolicy;
use super::screen::Screen;
use super::view::Live;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// Figures of the third act.
#[derive(Debug, Default)]
pub(super) struct KillFigures {
    whole: FormAnswers,
    streams: FormAnswers,
    killed: Option<KilledEngine>,
    /// Time from the kill to the state `down`; `None` if the act was too short.
    down_after: Option<Duration>,
    /// Requests resent to a second engine.
    sent_again: u64,
}

/// The killed engine with its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KilledEngine {
    engine: usize,
    /// Requests in the engine at the kill.
    requests: usize,
}

/// Requests with the same form of answers.
#[derive(Debug, Default)]
struct FormAnswers {
    /// Requests since the act began.
    all: Meter,
    /// From the end of the warm-up to the kill.
    before: Meter,
    /// From the kill on.
    after: Meter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KillPhase {
    WarmUp,
    Before,
    After,
}

/// Plays the act to its end.
pub(super) async fn run(
    config: &DemoConfig,
    stage: &mut DemoStage,
    out: &mut impl Write,
) -> Result<KillFigures, DemoError> {
    let forms = [ReplyForm::Streamed, ReplyForm::Whole];
    let mut act = Act::start(DemoPolicy::Kv, stage, &forms, out).await?;
    let mut figures = KillFigures::default();
    watch(config, &mut act, &mut figures, out).await?;
    let Act { engines, router, crowd, mut outcomes, .. } = act;
    crowd.leave().await;
    while let Some((form, outcome)) = outcomes.recv().await {
        figures.add(form, KillPhase::After, outcome);
    }
    figures.sent_again = router.admin_client()?.retries().await.unwrap_or(0);
    router.stop();
    drop(engines);
    Ok(figures)
}

async fn watch(
    config: &DemoConfig,
    act: &mut Act,
    figures: &mut KillFigures,
    out: &mut impl Write,
) -> Result<(), DemoError> {
    let total_s = config.duration.as_secs_f64();
    let warm_up_s = warm_up_s(total_s);
    let mut screen = Screen::new(config.terminal);
    let kill_s = total_s * KILL_SHARE;
    let kill = sleep(config.duration.mul_f64(KILL_SHARE));
    let end = sleep(config.duration);
    tokio::pin!(kill, end);
    let (detected, mut down) = oneshot::channel();
    let mut detected = Some(detected);
    loop {
        let last = tokio::select! {
            Some((form, outcome)) = act.outcomes.recv() => {
                let phase = match figures.killed {
                    Some(_) => KillPhase::After,
                    None if act.elapsed_s() >= warm_up_s => KillPhase::Before,
                    None => KillPhase::WarmUp,
                };
                figures.add(form, phase, outcome);
                continue;
            }
            () = &mut kill, if figures.killed.is_none() => {
                let is_busy = act.rank_loads().iter().flatten().any(|load| *load >= BUSY_REQUESTS);
                if !is_busy && act.elapsed_s() < kill_s + BUSY_WAIT_S_MAX {
                    kill.set(sleep(BUSY_LOOK_PERIOD));
                    continue;
                }
                figures.killed = kill_busiest(act, detected.take())?;
                false
            }
            Ok(after) = &mut down, if figures.down_after.is_none() => {
                figures.down_after = Some(after);
                continue;
            }
            () = screen.tick() => false,
            () = &mut end => true,
        };
        let live = Live {
            title: "kill",
            elapsed_s: act.elapsed_s(),
            total_s,
            numbers: figures.numbers(),
            rank_loads: act.rank_loads(),
        };
        screen.show(&live, last, out)?;
        if last {
            return Ok(());
        }
    }
}

/// Kills the engine with the most requests. When the router reports the engine down, `detected`
/// receives the time since the kill.
fn kill_busiest(
    act: &mut Act,
    detected: Option<oneshot::Sender<Duration>>,
) -> Result<Option<KilledEngine>, DemoError> {
    let loads = act.rank_loads();
    let busiest = loads.iter().enumerate().max_by_key(|(_, load)| **load);
    let Some((engine, Some(requests))) = busiest else { return Ok(None) };
    let Some(handle) = act.engines.get_mut(engine).and_then(Option::take) else { return Ok(None) };
    let url = handle.url();
    let client = act.router.admin_client()?;
    let clock = act.clock;
    let at = clock.now();
    // `stop` waits for the engine's thread, and this thread must serve clients.
    tokio::task::spawn_blocking(move || handle.stop());
    tokio::spawn(async move {
        client.until_down(&url).await;
        let after = Duration::from_nanos(clock.now().since(at));
        let _act_is_over = detected.map(|detected| detected.send(after));
    });
    Ok(Some(KilledEngine { engine, requests: *requests }))
}

impl KillFigures {
    fn add(&mut self, form: ReplyForm, phase: KillPhase, outcome: DemoOutcome) {
        let answers = match form {
            ReplyForm::Streamed => &mut self.streams,
            ReplyForm::Whole => &mut self.whole,
        };
        answers.all.add(outcome);
        match phase {
            KillPhase::WarmUp => {}
            KillPhase::Before => answers.before.add(outcome),
            KillPhase::After => answers.after.add(outcome),
        }
    }

    fn both(&self, of: impl Fn(&FormAnswers) -> u64) -> u64 {
        of(&self.whole) + of(&self.streams)
    }

    /// Text for the live view.
    fn numbers(&self) -> String {
        let engine = match self.killed {
            Some(killed) => format!("  engine {} is killed", killed.engine),
            None => String::new(),
        };
        format!(
            "{:>5} answered  {} failed  {} cut{engine}",
            self.both(FormAnswers::answered),
            self.both(|answers| answers.all.failed()),
            self.both(|answers| answers.all.cut()),
        )
    }

    /// Figures for `demo --json`.
    pub(super) fn to_json(&self) -> Value {
        let down_ms = self.down_after.map(|after| rounded(after.as_secs_f64() * 1e3, 1));
        json!({
            "requests_in_engine": self.killed.map(|killed| killed.requests),
            "sent_again": self.sent_again,
            "down_after_ms": down_ms,
            "whole": self.whole.to_json("answer_ms"),
            "streams": self.streams.to_json("ttft_ms"),
        })
    }

    /// Whole answers and streams side by side.
    pub(super) fn table(&self) -> String {
        let mut out =
            format!("\n{:<16}{:>14}{:>14}\n", "engine killed", "whole answers", "streams");
        let mut count = |name: &str, value: fn(&FormAnswers) -> u64| {
            let whole = value(&self.whole);
            let streams = value(&self.streams);
            let _infallible = writeln!(out, "{name:<16}{whole:>14}{streams:>14}");
        };
        count("sent", FormAnswers::sent);
        count("answered", FormAnswers::answered);
        count("failed", |answers| answers.all.failed());
        count("cut", |answers| answers.all.cut());
        let mut time = |name: &str, value: fn(&FormAnswers) -> f64| {
            let whole = value(&self.whole);
            let streams = value(&self.streams);
            let unit = "ms to the answer, to the first token";
            let _infallible = writeln!(out, "{name:<16}{whole:>14.1}{streams:>14.1}  {unit}");
        };
        time("p50 before", |answers| answers.before.ttft_ms_p50());
        time("p50 after", |answers| answers.after.ttft_ms_p50());
        out
    }

    /// Summary of the table in sentences.
    pub(super) fn conclusion(&self) -> String {
        let Some(KilledEngine { engine, requests }) = self.killed else {
            return "No engine was killed.".into();
        };
        let down = match self.down_after {
            Some(after) => {
                format!(", and marked the engine down after {:.2} s", after.as_secs_f64())
            }
            None => String::new(),
        };
        let failed = self.both(|answers| answers.all.failed());
        let cut = self.both(|answers| answers.all.cut());
        let seen = match (failed, cut) {
            (0, 0) => "No client saw it.".into(),
            (0, cut) => {
                format!("No request failed. Answers that had begun and ended early: {cut}.")
            }
            (failed, _) => format!("Requests that failed: {failed}."),
        };
        let later = match self.sent_again.saturating_sub(requests as u64) {
            0 => String::new(),
            later => format!(", of which {later} had come after the kill"),
        };
        let sent = self.sent_again;
        let moved = format!("The router sent {sent} to another engine{later}{down}.");
        format!("Engine {engine} was killed with {requests} requests in it. {moved}\n{seen}")
    }
}

impl FormAnswers {
    fn answered(&self) -> u64 {
        self.all.answered()
    }

    fn sent(&self) -> u64 {
        self.all.answered() + self.all.failed() + self.all.cut()
    }

    fn to_json(&self, time: &str) -> Value {
        json!({
            "sent": self.sent(), "answered": self.answered(),
            "failed": self.all.failed(), "cut": self.all.cut(),
            (format!("{time}_p50_before")): rounded(self.before.ttft_ms_p50(), 2),
            (format!("{time}_p50_after")): rounded(self.after.ttft_ms_p50(), 2),
        })
    }
}

/// Time of the kill, as a share of the act.
const KILL_SHARE: f64 = 0.5;
/// The kill waits briefly for an engine with this many requests.
const BUSY_REQUESTS: usize = 3;
const BUSY_WAIT_S_MAX: f64 = 0.5;
const BUSY_LOOK_PERIOD: Duration = Duration::from_millis(3);

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(ttft_us: u64) -> DemoOutcome {
        DemoOutcome::Answered { ttft_us, prompt_tokens: 1, cached_tokens: 0 }
    }

    fn killed() -> KillFigures {
        let mut figures = KillFigures::default();
        figures.add(ReplyForm::Whole, KillPhase::WarmUp, answered(900_000));
        figures.add(ReplyForm::Whole, KillPhase::Before, answered(100_000));
        figures.add(ReplyForm::Whole, KillPhase::After, answered(120_000));
        figures.add(ReplyForm::Streamed, KillPhase::Before, answered(25_000));
        figures.killed = Some(KilledEngine { engine: 2, requests: 5 });
        figures
    }

    #[test]
    fn the_warm_up_counts_as_requests_and_not_as_time() {
        let json = killed().to_json();
        assert_eq!((&json["whole"]["sent"], &json["streams"]["sent"]), (&json!(3), &json!(1)));
        let before = json["whole"]["answer_ms_p50_before"].as_f64().expect("number");
        assert!((before - 100.0).abs() < 1.0, "{json}");
    }

    #[test]
    fn requests_that_came_after_the_kill_are_named() {
        let sent = |sent_again| KillFigures { sent_again, ..killed() }.conclusion();
        let begin = "Engine 2 was killed with 5 requests in it. The router sent ";
        assert!(sent(4).starts_with(&format!("{begin}4 to another engine.")));
        assert!(sent(7).starts_with(&format!(
            "{begin}7 to another engine, of which 2 had come after the kill."
        )));
    }

    #[test]
    fn a_cut_stream_is_no_failed_request_and_is_told() {
        let mut figures = killed();
        assert!(figures.conclusion().ends_with("No client saw it."));
        figures.add(ReplyForm::Streamed, KillPhase::After, DemoOutcome::Cut);
        assert!(
            figures
                .conclusion()
                .ends_with("No request failed. Answers that had begun and ended early: 1.")
        );
        figures.add(ReplyForm::Whole, KillPhase::After, DemoOutcome::Failed);
        assert!(figures.conclusion().ends_with("Requests that failed: 1."));
    }
}
