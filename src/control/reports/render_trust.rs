//! Verdicts about predicted cache hits, by model and shape of request: what the shards counted,
//! judged at each tick. A new verdict goes to the shards with the next published fleet. The log
//! names each model and shape once.

use forebay_base::limits::MODELS_MAX;
use forebay_board::account::ShardCounters;
use forebay_fleet::trust::{
    GuessUse, ModelTrust, ModelTrusts, RequestShape, SHARES, ShapeJudge, ShapeTrust, TRUST_GROUPS,
    TrustCount, TrustTally, trust_group,
};
use forebay_fleet::worker::{FleetSnapshot, Model, ModelText};
use std::collections::BTreeSet;
use std::sync::Arc;
use tracing::{info, warn};

const SHAPES: usize = RequestShape::ALL.len();

/// Why KV events predict other caches than engines report, as far as the router can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MispredictionCause {
    /// Every worker of the model: the text is wrong, or the events of all are.
    TextOrEvents,
    /// Some workers of the model: the router renders a text for all of them.
    EventsOfSome,
    /// Every worker of the model, and prompts that no template renders.
    Events,
}

impl MispredictionCause {
    /// `is_in`: the difference concerns this group of workers.
    fn of(
        fleet: &FleetSnapshot,
        model: &Model,
        shape: RequestShape,
        is_in: impl Fn(usize) -> bool,
    ) -> Self {
        let mut groups = model.ranks.iter().filter_map(|rank| fleet.rank(*rank));
        if !groups.all(|(rank, _)| is_in(trust_group(rank.worker))) {
            return Self::EventsOfSome;
        }
        if shape == RequestShape::TokenIds { Self::Events } else { Self::TextOrEvents }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::TextOrEvents => {
                "the router renders the prompts unlike the engines, or follows the KV events of \
                 other engines"
            }
            Self::EventsOfSome => {
                "the router follows the KV events of other engines for these workers, or these \
                 workers render prompts unlike the other workers"
            }
            Self::Events => "the router follows the KV events of other engines",
        }
    }

    const fn help(self) -> &'static str {
        match self {
            Self::TextOrEvents => {
                "compare engine version, chat template and `model_dir` of the workers, and \
                 `kv_events` with the endpoint of each engine's --kv-events-config, see \
                 'Predictions that do not hold' in docs/operate/troubleshooting.md"
            }
            Self::EventsOfSome => {
                "compare `kv_events` of these workers with the endpoint of their \
                 --kv-events-config, then version and flags with the other workers, see \
                 'Predictions that do not hold' in docs/operate/troubleshooting.md"
            }
            Self::Events => {
                "compare `kv_events` with the endpoint of each engine's --kv-events-config, see \
                 'Predictions that do not hold' in docs/operate/troubleshooting.md"
            }
        }
    }
}

/// Answers that match their guesses, before a warning.
const SIGNS_LOGGED: u64 = 8;

/// Workers that a line of the log names.
const WORKERS_NAMED: usize = 8;
/// Parts of a whole claim.
const WHOLE: u32 = SHARES as u32;

/// Evidence and verdicts of all models.
#[derive(Debug, Default)]
pub(super) struct RenderTrust {
    /// By model index; `None` before the first compared answer.
    models: Vec<Option<Box<JudgedModel>>>,
}

#[derive(Debug)]
struct JudgedModel {
    /// The text that the evidence is about.
    text: Option<Arc<ModelText>>,
    compared_count: u64,
    shapes: [JudgedShape; SHAPES],
}

#[derive(Debug, Default)]
struct JudgedShape {
    judge: ShapeJudge,
    /// Counts of the shards at the last tick.
    counts: [TrustTally; TRUST_GROUPS],
    /// The log has a warning of engines that find more, or less.
    is_more_logged: bool,
    is_less_logged: bool,
}

impl RenderTrust {
    /// Judges new counts. True if a verdict has changed.
    pub(super) fn tick(&mut self, fleet: &FleetSnapshot, shards: &[Arc<ShardCounters>]) -> bool {
        let mut is_changed = false;
        for (index, model) in fleet.models.iter().enumerate().take(MODELS_MAX) {
            let compared = |shard: &Arc<ShardCounters>| shard.choices().compared_count(index);
            let compared_count = shards.iter().map(compared).fold(0, u64::wrapping_add);
            if compared_count == 0 {
                continue;
            }
            if self.models.len() <= index {
                self.models.resize_with(index + 1, || None);
            }
            let Some(entry) = self.models.get_mut(index) else { continue };
            let counts = |shape| counts_of(index, shape, shards);
            if entry.as_ref().is_some_and(|judged| !judged.is_about(model)) {
                // Another text: its predictions have no past.
                is_changed |= !fleet.serving.trusts.is_empty();
                *entry = Some(Box::new(JudgedModel::new(model, compared_count, counts)));
            }
            let judged = entry.get_or_insert_with(|| {
                let none = |_| [TrustTally::default(); TRUST_GROUPS];
                Box::new(JudgedModel::new(model, 0, none))
            });
            if judged.compared_count != compared_count {
                judged.compared_count = compared_count;
                is_changed |= judged.judge(fleet, model, counts);
            }
        }
        is_changed
    }

    /// Gives the models of the next fleet their verdicts.
    pub(super) fn equip(&self, fleet: &mut FleetSnapshot) {
        let mut trusts = ModelTrusts::default();
        for (model, judged) in fleet.models.iter().zip(&self.models) {
            let Some(judged) = judged.as_ref().filter(|judged| judged.is_about(model)) else {
                continue;
            };
            let mut trust = ModelTrust::default();
            for (shape, judged) in RequestShape::ALL.into_iter().zip(&judged.shapes) {
                trust.set(shape, judged.verdict());
            }
            trusts.add(&model.name, trust);
        }
        fleet.serving.trusts = trusts;
    }
}

impl JudgedModel {
    fn new(
        model: &Model,
        compared_count: u64,
        counts: impl Fn(RequestShape) -> [TrustTally; TRUST_GROUPS],
    ) -> Self {
        let shape = |at: usize| JudgedShape {
            counts: RequestShape::ALL.get(at).map(|shape| counts(*shape)).unwrap_or_default(),
            ..JudgedShape::default()
        };
        let text = model.text.as_deref().map(Arc::clone);
        Self { text, compared_count, shapes: std::array::from_fn(shape) }
    }

    fn is_about(&self, model: &Model) -> bool {
        match (&self.text, &model.text) {
            (Some(text), Some(other)) => Arc::ptr_eq(text, other),
            (text, other) => text.is_none() && other.is_none(),
        }
    }

    fn judge(
        &mut self,
        fleet: &FleetSnapshot,
        model: &Model,
        counts: impl Fn(RequestShape) -> [TrustTally; TRUST_GROUPS],
    ) -> bool {
        let groups: BTreeSet<usize> = model
            .ranks
            .iter()
            .filter_map(|rank| Some(trust_group(fleet.rank(*rank)?.0.worker)))
            .collect();
        let mut is_changed = false;
        for (shape, judged) in RequestShape::ALL.into_iter().zip(&mut self.shapes) {
            let now = counts(shape);
            let before = std::mem::replace(&mut judged.counts, now);
            let grown = std::array::from_fn(|group| match (now.get(group), before.get(group)) {
                (Some(now), Some(before)) => now.since(before),
                _ => TrustTally::default(),
            });
            let earlier = judged.verdict();
            judged.judge.observe(&grown, groups.len());
            judged.log_more(fleet, model, shape, earlier);
            judged.log_less(fleet, model, shape);
            is_changed |= judged.verdict() != earlier;
        }
        is_changed
    }
}

impl JudgedShape {
    /// The verdict of the judge. `is_logged` stays with the guesses that the log has named.
    fn verdict(&self) -> ShapeTrust {
        let verdict = self.judge.verdict();
        let is_logged = self.is_more_logged && verdict.guesses == GuessUse::Counted;
        ShapeTrust { is_logged, ..verdict }
    }

    /// Logs the beginning and the end of guesses beside events. The first few signs may be events
    /// that were late once, so the warning waits for more.
    fn log_more(
        &mut self,
        fleet: &FleetSnapshot,
        model: &Model,
        shape: RequestShape,
        earlier: ShapeTrust,
    ) {
        let is_more = |trust: ShapeTrust| trust.guesses == GuessUse::Counted;
        let total = self.judge.total();
        let verdict = self.judge.verdict();
        if !is_more(verdict) {
            if is_more(earlier) && self.is_more_logged {
                info!(
                    model = &*model.name,
                    shape = shape.name(),
                    "KV events predict these prompts again, or guesses prove wrong: guesses end"
                );
            }
            return;
        }
        let is_sure = total.get(TrustCount::GuessRight) >= SIGNS_LOGGED;
        if is_sure && !std::mem::replace(&mut self.is_more_logged, true) {
            let is_in = |group| verdict.counts_guess(group);
            let cause = MispredictionCause::of(fleet, model, shape, is_in);
            warn!(
                model = &*model.name,
                shape = shape.name(),
                predicted_tokens = total.get(TrustCount::PredictedTokens),
                found_tokens = total.get(TrustCount::FoundTokens),
                workers = workers_of(fleet, model, is_in),
                cause = cause.text(),
                help = cause.help(),
                "engines find more of these prompts in their caches than KV events predict: the \
                 prompts go where earlier prompts went"
            );
        }
    }

    fn log_less(&mut self, fleet: &FleetSnapshot, model: &Model, shape: RequestShape) {
        let verdict = self.judge.verdict();
        if verdict.is_whole() {
            if std::mem::take(&mut self.is_less_logged) {
                let model = &*model.name;
                info!(model, shape = shape.name(), "predictions count in full again");
            }
            return;
        }
        if std::mem::replace(&mut self.is_less_logged, true) {
            return;
        }
        let total = self.judge.total();
        let is_in = |group| verdict.share(group, WHOLE) < WHOLE;
        let cause = MispredictionCause::of(fleet, model, shape, is_in);
        warn!(
            model = &*model.name,
            shape = shape.name(),
            predicted_tokens = total.get(TrustCount::PredictedTokens),
            found_tokens = total.get(TrustCount::FoundTokens),
            workers = workers_of(fleet, model, is_in),
            cause = cause.text(),
            help = cause.help(),
            "engines find less of these prompts in their caches than KV events predict: the \
             predictions count in part"
        );
    }
}

/// Names of the model's workers in these groups, the first few.
fn workers_of(fleet: &FleetSnapshot, model: &Model, is_in: impl Fn(usize) -> bool) -> String {
    let ranks = model.ranks.iter().filter_map(|rank| fleet.rank(*rank));
    let ranks = ranks.filter(|(rank, _)| is_in(trust_group(rank.worker)));
    let names: BTreeSet<&str> = ranks.map(|(_, worker)| &*worker.name).collect();
    let more = if names.len() > WORKERS_NAMED { ", ..." } else { "" };
    let first: Vec<&str> = names.into_iter().take(WORKERS_NAMED).collect();
    first.join(", ") + more
}

/// Counts of all shards for a shape.
fn counts_of(
    model_index: usize,
    shape: RequestShape,
    shards: &[Arc<ShardCounters>],
) -> [TrustTally; TRUST_GROUPS] {
    std::array::from_fn(|group| {
        let mut all = TrustTally::default();
        for shard in shards {
            all.add(&shard.choices().trust_tally(model_index, shape, group));
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ModelIndex;
    use forebay_fleet::trust::TrustSample;
    use forebay_fleet::worker::test_support;

    fn answer(predicted: u64, guessed: u64, found: u64) -> TrustTally {
        let sample = TrustSample {
            predicted_tokens: predicted,
            predicted_tokens_max: predicted,
            guessed_tokens: guessed,
            found_tokens: found,
            block_size_tokens: 16,
            is_quiet: true,
            is_bound: false,
        };
        sample.tally()
    }

    /// Each cause names the endpoint of events. The text is a cause only where a template renders
    /// it, and comes second where other workers with the same text have none of it.
    #[test]
    fn the_cause_names_the_events_and_the_text_where_it_may_be_wrong() {
        use MispredictionCause as Cause;
        let mut fleet = test_support::three_ranks();
        let mut second = fleet.ranks[1].clone();
        second.worker = forebay_base::WorkerIndex(1);
        fleet.workers.push(fleet.workers[0].clone());
        fleet.ranks[1] = second;
        let model = &fleet.models[0];
        for shape in RequestShape::ALL {
            let of_first = Cause::of(&fleet, model, shape, |group| group == 0);
            assert_eq!(of_first, Cause::EventsOfSome, "{shape:?}");
            let of_all = Cause::of(&fleet, model, shape, |_| true);
            assert_eq!(of_all == Cause::Events, shape == RequestShape::TokenIds, "{shape:?}");
        }
        for cause in [Cause::TextOrEvents, Cause::EventsOfSome, Cause::Events] {
            assert!(cause.text().contains("KV events of other engines"), "{cause:?}");
            assert!(cause.help().contains("`kv_events`"), "{cause:?}");
        }
    }

    #[test]
    fn shards_count_together_and_only_the_shape_changes() {
        let shards = [Arc::new(ShardCounters::new()), Arc::new(ShardCounters::new())];
        let mut trust = RenderTrust::default();
        let mut fleet = test_support::three_ranks();
        assert!(!trust.tick(&fleet, &shards));
        let model = ModelIndex(1);
        let shape = RequestShape::ChatTools;
        let count = |sample: &TrustTally| {
            shards.iter().for_each(|shard| shard.choices().compared(model, shape, 0, sample));
        };
        count(&answer(64, 0, 64));
        assert!(trust.tick(&fleet, &shards), "watched");
        count(&answer(64, 640, 640));
        count(&answer(64, 640, 640));
        assert!(trust.tick(&fleet, &shards));
        assert!(!trust.tick(&fleet, &shards));
        trust.equip(&mut fleet);
        let of = |model: &str, shape| fleet.serving.trusts.of(model, shape);
        assert_eq!(of("base", shape), ShapeTrust::default());
        assert_eq!(of("adapter", shape).guesses, GuessUse::Counted);
        assert_eq!(of("adapter", RequestShape::Chat), ShapeTrust::default());
    }
}
