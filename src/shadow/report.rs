//! The figures as JSON. Contains no text of a prompt and no name of a client.

use crate::calibration::{Calibration, CalibrationFault};
use crate::counters::{Counter, EngineCounters};
use crate::limits::POINTS_MAX;
use forebay_simulate::LiveFigures;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

const DAY_S: f64 = 86_400.0;

/// What the shadow does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShadowPhase {
    /// Reads the engines' counters, until their speed and the tokens of the text are known.
    #[default]
    Calibrating,
    /// The simulated caches fill, and no figure counts.
    WarmingUp,
    /// The figures count from a moment with full caches.
    Counting,
}

/// Mirrored requests since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MirroredCounts {
    /// Requests that came to the listener.
    pub received: u64,
    /// Requests with a prompt that was read.
    pub prompts: u64,
    /// Requests without a prompt, or for a model that the engines do not serve.
    pub other: u64,
    /// Requests beyond a limit of the shadow: too many, too long or too slow.
    pub lost: u64,
    /// Prompts that the simulation left out: longer than a cache.
    pub left_out: u64,
}

/// Figures of a rule, or of the engines, while the figures count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RuleFigures {
    /// Share of the prompt tokens that caches had.
    pub hit_rate: Option<f64>,
    /// Mean time to the first token.
    pub ttft_ms_mean: Option<f64>,
    /// Nine of ten requests are faster; simulated rules only.
    pub ttft_ms_p90: Option<f64>,
    /// Requests that ended, or began where engines count no ends.
    pub requests: u64,
    /// Requests that a queue refused; simulated rules only.
    pub refused: Option<u64>,
}

/// All figures of a shadow.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ShadowReport {
    pub phase: ShadowPhase,
    /// Share of the calibration or of the warm-up that is done; 1 while the figures count.
    pub progress: f64,
    /// Why the calibration has not ended.
    pub fault: Option<CalibrationFault>,
    /// Seconds for which the figures count.
    pub seconds: f64,
    pub mirrored: MirroredCounts,
    pub fleet: FleetSummary,
    pub figures: ShadowFigures,
    /// Share of cached prompt tokens over time.
    pub points: Vec<HitPoint>,
}

/// The fleet as the shadow sees it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FleetSummary {
    pub engines: usize,
    /// Engines without an answer to the last poll.
    pub silent: usize,
    pub ranks: usize,
    pub calibration: Option<Calibration>,
}

/// Present, control and promise.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ShadowFigures {
    /// The engines by their own counters.
    pub present: RuleFigures,
    /// Rule of the control.
    pub control_rule: String,
    /// The simulated fleet with the rule of the present balancer.
    pub control: RuleFigures,
    /// The simulated fleet with policy `kv`: the promise.
    pub kv: RuleFigures,
    /// GPU seconds of prefill that `kv` saves a day.
    pub gpu_s_saved_a_day: Option<f64>,
}

/// Shares of cached prompt tokens in a part of the time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HitPoint {
    /// End of the part, in seconds of the time that counts.
    pub at_s: f64,
    pub present: Option<f64>,
    pub control: Option<f64>,
    pub kv: Option<f64>,
}

/// Counts at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShadowSample {
    pub(crate) at: Duration,
    pub(crate) engines: EngineCounters,
    pub(crate) control: LiveFigures,
    pub(crate) kv: LiveFigures,
}

/// Moments of the picture, from the moment on from which the figures count.
#[derive(Debug, Default)]
pub(crate) struct SampleSeries {
    samples: Vec<ShadowSample>,
    /// Samples to skip between two that are kept.
    skipped: u64,
    seen: u64,
}

impl RuleFigures {
    pub(crate) fn of_engines(engines: &EngineCounters) -> Self {
        Self {
            hit_rate: engines.hit_rate(),
            ttft_ms_mean: engines.ttft_ms_mean(),
            ttft_ms_p90: None,
            requests: whole(engines.requests()),
            refused: None,
        }
    }

    pub(crate) fn of_rule(figures: &LiveFigures) -> Self {
        Self {
            hit_rate: figures.hit_rate(),
            ttft_ms_mean: figures.ttft_ms_mean(),
            ttft_ms_p90: figures.ttft_ms(0.9),
            requests: figures.answered,
            refused: Some(figures.refused),
        }
    }
}

impl ShadowSample {
    /// Growth since an earlier moment.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            at: self.at.saturating_sub(before.at),
            engines: self.engines.since(&before.engines),
            control: self.control.since(&before.control),
            kv: self.kv.since(&before.kv),
        }
    }

    /// GPU seconds of prefill a day that the hits of `kv` save, beside the engines.
    pub(crate) fn gpu_s_saved_a_day(&self, prefill_tokens_per_s: f64) -> Option<f64> {
        let more = self.kv.hit_rate()? - self.engines.hit_rate()?;
        let tokens = self.engines.get(Counter::QueriedTokens) * more;
        let seconds = self.at.as_secs_f64();
        (seconds > 0.0).then(|| tokens / prefill_tokens_per_s.max(1.0) / seconds * DAY_S)
    }
}

impl ShadowFigures {
    /// The rows of a table: what each is, and whether it is measured or simulated.
    pub(crate) fn rows(&self) -> [(String, &RuleFigures); 3] {
        [
            ("present, by the engines' counters".to_owned(), &self.present),
            (format!("control, {} simulated", self.control_rule), &self.control),
            ("kv, simulated: the promise".to_owned(), &self.kv),
        ]
    }
}

impl ShadowReport {
    /// The figures as a table of text, for the end of the command.
    pub(crate) fn summary(&self) -> String {
        let Self { phase, seconds, mirrored, figures, .. } = self;
        let counted = match phase {
            ShadowPhase::Counting => format!("counted for {seconds:.0} s"),
            ShadowPhase::WarmingUp => "no figures: the caches were still filling".to_owned(),
            ShadowPhase::Calibrating => "no figures: not calibrated yet".to_owned(),
        };
        let mut text = format!(
            "{counted}; {} mirrored requests: {} prompts, {} others, {} lost, {} left out\n",
            mirrored.received, mirrored.prompts, mirrored.other, mirrored.lost, mirrored.left_out
        );
        if *phase != ShadowPhase::Counting {
            return text;
        }
        for (name, rule) in figures.rows() {
            let none = || "-".to_owned();
            let hits = rule.hit_rate.map_or_else(none, |rate| format!("{:.1} %", rate * 100.0));
            let ttft = rule.ttft_ms_mean.map_or_else(none, |ms| format!("{ms:.0} ms"));
            let requests = rule.requests;
            let _infallible = writeln!(
                text,
                "{name:<36} {hits:>8} hits {ttft:>9} to the first token, {requests} requests"
            );
        }
        if let Some(saved) = figures.gpu_s_saved_a_day {
            let _infallible = writeln!(
                text,
                "GPU seconds of prefill that kv saves a day, beside present: {saved:.0}"
            );
        }
        text
    }
}

impl SampleSeries {
    /// Adds a moment. Beyond the limit every second moment leaves.
    pub(crate) fn add(&mut self, sample: ShadowSample) {
        if self.seen.is_multiple_of(self.skipped + 1) {
            self.samples.push(sample);
        }
        self.seen += 1;
        if self.samples.len() > POINTS_MAX {
            let mut at = 0_usize;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.skipped = self.skipped * 2 + 1;
        }
    }

    pub(crate) fn points(&self) -> Vec<HitPoint> {
        let Some(first) = self.samples.first() else { return Vec::new() };
        let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
        let point = |(before, after): (&ShadowSample, &ShadowSample)| {
            let part = after.since(before);
            HitPoint {
                at_s: after.at.saturating_sub(first.at).as_secs_f64(),
                present: part.engines.hit_rate(),
                control: part.control.hit_rate(),
                kv: part.kv.hit_rate(),
            }
        };
        pairs.map(point).collect()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count that is exact as a float"
)]
fn whole(count: f64) -> u64 {
    count.clamp(0.0, 9e15) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: u64, cached: u32) -> ShadowSample {
        let text = format!(
            "vllm:prefix_cache_queries_total {}\nvllm:prefix_cache_hits_total {cached}\n",
            second * 100
        );
        let mut kv = LiveFigures::default();
        kv.cached_tokens = second * 80;
        kv.computed_tokens = second * 20;
        ShadowSample {
            at: Duration::from_secs(second),
            engines: EngineCounters::read(&text),
            kv,
            ..ShadowSample::default()
        }
    }

    /// Each field of the file is in the table of the page.
    #[test]
    fn the_page_of_the_book_has_each_field_of_the_file() {
        let book = include_str!("../../docs/operate/shadow.md");
        let report = ShadowReport {
            fleet: FleetSummary {
                calibration: Some(Calibration::default()),
                ..FleetSummary::default()
            },
            points: vec![HitPoint { at_s: 1.0, present: None, control: None, kv: None }],
            ..ShadowReport::default()
        };
        let mut names = Vec::new();
        fields(&serde_json::to_value(&report).unwrap(), &mut names);
        assert!(names.len() > 30, "{names:?}");
        for name in names {
            assert!(book.contains(&format!("`{name}`")), "no {name} in docs/operate/shadow.md");
        }
    }

    fn fields(value: &serde_json::Value, names: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(members) => {
                for (name, member) in members {
                    names.push(name.clone());
                    fields(member, names);
                }
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| fields(item, names)),
            _ => {}
        }
    }

    #[test]
    fn the_last_words_have_the_figures_or_why_there_are_none() {
        let mut report = ShadowReport::default();
        assert!(report.summary().contains("not calibrated"), "{}", report.summary());
        report.phase = ShadowPhase::Counting;
        report.seconds = 90.0;
        report.figures.kv.hit_rate = Some(0.842);
        let text = report.summary();
        assert!(text.contains("counted for 90 s") && text.contains("84.2 %"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    #[test]
    fn points_are_of_their_own_part_of_the_time() {
        let mut series = SampleSeries::default();
        [sample(10, 0), sample(20, 400), sample(30, 1_000)].into_iter().for_each(|s| series.add(s));
        let points = series.points();
        assert_eq!(points.len(), 2);
        let last = HitPoint { at_s: 20.0, present: Some(0.6), control: None, kv: Some(0.8) };
        assert_eq!(points.last(), Some(&last));
    }

    #[test]
    fn points_are_bounded_and_reach_from_begin_to_end() {
        let mut series = SampleSeries::default();
        (1..=10_000).for_each(|second| series.add(sample(second, 0)));
        let points = series.points();
        assert!((POINTS_MAX / 2 - 1..POINTS_MAX).contains(&points.len()), "{}", points.len());
        assert!(points.last().unwrap().at_s > 9_900.0);
        let gap = points[1].at_s - points[0].at_s;
        let even = points.windows(2).all(|pair| (pair[1].at_s - pair[0].at_s - gap).abs() < 0.1);
        assert!(even, "equal parts");
    }

    #[test]
    fn saved_seconds_are_the_tokens_that_kv_would_not_compute() {
        // 100 tokens/s, of which `kv` finds 80 and the engines 30: 50 at 1,000 tokens/s.
        let saved = sample(100, 3_000).gpu_s_saved_a_day(1_000.0).unwrap();
        assert!((saved - 0.05 * DAY_S).abs() < 1e-6, "{saved}");
    }
}
