//! Choice of a model's text when workers differ.

use super::*;
use forebay_config::WorkerConfig;
use forebay_discovery::{DescribedRank, EngineReport, Listing, ServerTraits, read_models};
use forebay_fleet::worker::{EngineTexts, ModelText, Role};
use forebay_kv_events::test_support::vocabulary;
use forebay_text::chat::EngineRules;

fn fleet() -> Fleet {
    let worker = |url: &str| WorkerConfig { url: url.into(), ..WorkerConfig::default() };
    let workers = ["http://a:1", "http://b:1"].map(worker).to_vec();
    Fleet::new(&Arc::new(Config { workers, ..Config::default() }), KeySeed(3))
}

fn describe(fleet: &mut Fleet, worker: u16, dialect: Dialect, found: FoundText) {
    let models = read_models(r#"{"data":[{"id":"m"}]}"#).unwrap().models;
    let ranks = vec![DescribedRank::default()];
    let description = Description {
        dialect,
        models,
        listing: Listing::Listed,
        ranks,
        role: Role::Both,
        source: None,
        server: ServerTraits::default(),
        reported: EngineReport::default(),
    };
    let texts = BTreeMap::from([("m".into(), found)]);
    let address = SocketAddr::from(([127, 0, 0, 1], 9));
    fleet.describe(WorkerIndex(worker), address, description, texts);
}

fn failed(note: &str) -> FoundText {
    FoundText { note: note.into(), ..FoundText::default() }
}

fn loaded(note: &str) -> FoundText {
    loaded_for(note, EngineRules::Vllm)
}

fn loaded_for(note: &str, rules: EngineRules) -> FoundText {
    let text = ModelText {
        vocabulary: Arc::new(vocabulary()),
        chat_encoder: None,
        chat_template: None,
        rules,
    };
    FoundText { text: Some(Arc::new(text)), note: note.into(), ..FoundText::default() }
}

#[test]
fn a_model_of_two_engines_has_the_text_of_the_first_worker() {
    let mut fleet = fleet();
    let of_first = loaded("n");
    let of_second = loaded_for("n", EngineRules::Sglang);
    let shown = |fleet: &mut Fleet| fleet.snapshot().model("m").unwrap().1.text.clone();
    let is = |shown: Option<EngineTexts>, wanted: &FoundText| {
        Arc::ptr_eq(&shown.unwrap(), wanted.text.as_ref().unwrap())
    };
    describe(&mut fleet, 1, Dialect::Sglang, of_second.clone());
    assert!(is(shown(&mut fleet), &of_second), "the only one");
    describe(&mut fleet, 0, Dialect::Vllm, failed("broken"));
    assert!(is(shown(&mut fleet), &of_second), "the only one with a text");
    describe(&mut fleet, 0, Dialect::Vllm, of_first.clone());
    assert!(is(shown(&mut fleet), &of_first), "by configuration, not by the first answer");
    let shown = shown(&mut fleet).unwrap();
    let [more] = shown.more() else { panic!("a text for each engine's rules") };
    assert!(Arc::ptr_eq(more, of_second.text.as_ref().unwrap()));
    describe(&mut fleet, 1, Dialect::Vllm, loaded("n"));
    assert!(fleet.snapshot().model("m").unwrap().1.text.as_ref().unwrap().more().is_empty());
}

#[test]
fn the_log_has_a_text_once_per_change() {
    let mut fleet = fleet();
    let mut lines = Vec::new();
    for (worker, found) in [
        (0, failed("broken")),
        (1, failed("broken")),
        (0, failed("broken")),
        (0, failed("worse")),
        (1, failed("worse")),
        (1, loaded("good")),
        (0, loaded("good")),
        (1, loaded("good")),
    ] {
        if !fleet.has_note("m", &found.note) {
            lines.push(found.note.clone());
        }
        describe(&mut fleet, worker, Dialect::Vllm, found);
    }
    assert_eq!(lines, ["broken", "worse", "good"]);
    // Directories of their own: two texts side by side are no change.
    describe(&mut fleet, 0, Dialect::Vllm, loaded("other"));
    assert!(fleet.has_note("m", "good") && fleet.has_note("m", "other"));
    assert!(!fleet.has_note("n", "good"));
}

/// SGLang's events do not contain where such a model resumes; vLLM's do.
#[test]
fn layers_that_forget_make_the_overlap_of_sglang_an_upper_bound() {
    let mut fleet = fleet();
    let forgets = || FoundText { layers_forget: true, ..loaded("n") };
    let kinds = |fleet: &mut Fleet| -> Vec<_> {
        fleet.snapshot().ranks.iter().map(|rank| rank.tiers.overlap_kind()).collect()
    };
    describe(&mut fleet, 0, Dialect::Sglang, forgets());
    describe(&mut fleet, 1, Dialect::Vllm, forgets());
    assert_eq!(kinds(&mut fleet), ["upper_bound", "exact"]);
    describe(&mut fleet, 0, Dialect::Sglang, loaded("n"));
    assert_eq!(kinds(&mut fleet), ["exact", "exact"]);
}
