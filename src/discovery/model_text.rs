//! Finds and loads the tokenizer and chat template of each model, one copy per directory and
//! engine's rules. Reading and compiling run on a helper thread, not on the control plane's own.
//!
//! Loaded files stay for the life of the process. A failed load is retried when a worker that needs
//! it is described again: downloads finish, files get repaired.

use super::descriptions::description::{Description, ServedModel};
use forebay_base::limits::REVISION_BYTES_MAX;
use forebay_base::{Clock, NanosSinceStart, read_file};
use forebay_fleet::worker::{ANY_MODEL, Dialect, ModelText};
use forebay_text::chat::{
    EngineRules, find_image_tokens, has_layers_that_forget, has_tokenizer, load_model_text_for,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// Workers that share a directory are described at about the same time: a failure is returned to
/// all of them. Shorter than the interval between descriptions of a worker.
const FAILURE_KEPT: Duration = Duration::from_secs(5);

/// Loaded or loading directories; shared by the tasks of all workers.
#[derive(Clone, Debug)]
pub struct ModelTexts {
    /// By directory and rules.
    by_dir: Rc<RefCell<ByDir>>,
    clock: Clock,
    failure_kept: Duration,
    names_images: bool,
}

type ByDir = HashMap<(PathBuf, ReadingRules), Rc<OnceCell<TextAttempt>>>;
type LoadedText = Result<Readable, String>;

/// Contents of a directory.
#[derive(Clone, Debug)]
struct Readable {
    text: Arc<ModelText>,
    layers_forget: bool,
    /// Reason why its chat template is unusable.
    template_error: Option<Arc<str>>,
}

/// Rules for reading a worker's models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ReadingRules {
    of_engine: EngineRules,
    names_images: bool,
}

/// Result of a load attempt, and its time.
#[derive(Debug)]
struct TextAttempt {
    loaded: LoadedText,
    ended_at: NanosSinceStart,
}

/// Values of `model_dir` as configured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ModelDirs<'a> {
    pub(crate) of_worker: Option<&'a Path>,
    pub(crate) of_all: Option<&'a Path>,
}

/// The text files of a model, or why they are missing.
#[derive(Clone, Debug, Default)]
pub struct FoundText {
    /// The tokenizer, and the chat template if it is usable.
    pub text: Option<Arc<ModelText>>,
    /// A sentence for the log.
    pub note: String,
    /// Directory that was searched.
    pub dir: Option<Arc<Path>>,
    /// `dir` is the global directory, and the engine named no local directory.
    pub is_of_all: bool,
    /// Some layers of the model retain less than a whole prompt, by its `config.json`.
    pub layers_forget: bool,
}

impl ModelTexts {
    /// Without loaded models. `names_images`: images of vLLM get names.
    #[must_use]
    pub fn new(clock: Clock, names_images: bool) -> Self {
        Self { by_dir: Rc::default(), clock, failure_kept: FAILURE_KEPT, names_images }
    }

    /// Sets `names_images` for later loads; existing clones keep the old value.
    pub fn set_names_images(&mut self, names_images: bool) {
        self.names_images = names_images;
    }

    /// The texts of all base models of a worker.
    pub(crate) async fn find_all(
        &self,
        description: &Description,
        dirs: ModelDirs<'_>,
    ) -> BTreeMap<Arc<str>, FoundText> {
        let of_python = match description.dialect {
            Dialect::Sglang => EngineRules::Sglang,
            Dialect::Vllm | Dialect::Openai => EngineRules::Vllm,
        };
        let rules = ReadingRules {
            of_engine: match description.server.is_rust {
                true => of_python.of_rust_frontend(),
                false => of_python,
            },
            names_images: description.dialect == Dialect::Vllm && self.names_images,
        };
        let mut texts = BTreeMap::new();
        if description.models.is_empty() {
            texts.insert(ANY_MODEL.into(), self.find(dirs, None, rules).await);
        }
        for model in description.models.iter().filter(|model| model.parent.is_none()) {
            let found = self.find(dirs, Some(model), rules).await;
            texts.insert(Arc::clone(&model.name), found);
        }
        texts
    }

    async fn find(
        &self,
        dirs: ModelDirs<'_>,
        model: Option<&ServedModel>,
        rules: ReadingRules,
    ) -> FoundText {
        let root = model.and_then(|model| model.root.as_deref());
        let name = model.map(|model| &*model.name);
        let Some((dir, is_of_all)) = locate(dirs, root, name, hub_cache().as_deref()) else {
            let note =
                "neither the path of the engine's model nor the cache of Hugging Face has it";
            return FoundText { note: note.to_owned(), ..FoundText::default() };
        };
        let (text, layers_forget, note) = match self.load(&dir, rules).await {
            Ok(Readable { text, layers_forget, template_error }) => {
                let template = match &text.chat_encoder {
                    Some(encoder) => format!("tokenizer and {}", encoder.name()),
                    None if text.chat_template.is_some() => "tokenizer and chat template".into(),
                    None => "tokenizer without a chat template (chats go by guesses)".into(),
                };
                let mut note = format!("{template} from {}", dir.display());
                if let Some(error) = template_error {
                    note = format!("{note}: {error}");
                }
                (Some(text), layers_forget, note)
            }
            Err(error) => (None, false, error),
        };
        FoundText { text, note, dir: Some(dir.into()), is_of_all, layers_forget }
    }

    async fn load(&self, dir: &Path, rules: ReadingRules) -> LoadedText {
        let attempt = async || TextAttempt {
            loaded: load_apart(dir.to_owned(), rules).await,
            ended_at: self.clock.now(),
        };
        self.cell(dir, rules).get_or_init(attempt).await.loaded.clone()
    }

    /// The current attempt: successful, in progress, or recently failed; else a new attempt.
    fn cell(&self, dir: &Path, rules: ReadingRules) -> Rc<OnceCell<TextAttempt>> {
        let mut by_dir = self.by_dir.borrow_mut();
        let cell = by_dir.entry((dir.to_owned(), rules)).or_default();
        let now = self.clock.now();
        let is_stale = |attempt: &TextAttempt| {
            attempt.loaded.is_err() && now >= attempt.ended_at.plus(self.failure_kept)
        };
        if cell.get().is_some_and(is_stale) {
            *cell = Rc::default();
        }
        Rc::clone(cell)
    }
}

/// Loads on a helper thread.
async fn load_apart(dir: PathBuf, rules: ReadingRules) -> LoadedText {
    let loading = tokio::task::spawn_blocking(move || {
        let parts = load_model_text_for(&dir, rules.of_engine);
        let parts = parts.map_err(|error| error.to_string())?;
        let images = rules.names_images.then(|| find_image_tokens(&dir)).flatten();
        let vocabulary = match images {
            Some((image, marks)) => parts.vocabulary.with_images(image, &marks),
            None => parts.vocabulary,
        };
        let text = Arc::new(ModelText {
            vocabulary: Arc::new(vocabulary),
            chat_encoder: parts.chat_encoder,
            chat_template: parts.chat_template,
            rules: rules.of_engine,
        });
        let template_error = parts.template_error.map(|error| error.to_string().into());
        Ok(Readable { text, layers_forget: has_layers_that_forget(&dir), template_error })
    });
    loading.await.unwrap_or_else(|_| Err("loading the tokenizer failed (this is a bug)".to_owned()))
}

/// Directory of a model's files: as configured for the worker, else as its engine reports, else as
/// configured globally (the second value is then true), else the Hugging Face cache. The engine's
/// report is about this model; the global `model_dir` may be for another model.
fn locate(
    dirs: ModelDirs<'_>,
    root: Option<&str>,
    name: Option<&str>,
    hub: Option<&Path>,
) -> Option<(PathBuf, bool)> {
    let local = root.map(Path::new).filter(|root| root.is_absolute() && has_tokenizer(root));
    if let Some(dir) = dirs.of_worker.or(local) {
        return Some((dir.to_owned(), false));
    }
    if let Some(dir) = dirs.of_all {
        return Some((dir.to_owned(), true));
    }
    let hub = hub?;
    let mut repositories = [root, name].into_iter().flatten();
    repositories.find_map(|repository| in_hub_cache(hub, repository)).map(|dir| (dir, false))
}

/// `models--org--name/snapshots/<revision>`, with the revision in `refs/main`.
fn in_hub_cache(hub: &Path, repository: &str) -> Option<PathBuf> {
    let is_plain = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed)
    };
    let parts: Vec<&str> = repository.split('/').collect();
    if parts.len() > 2 || !parts.iter().all(|part| is_plain(part)) {
        return None;
    }
    let model = hub.join(format!("models--{}", parts.join("--")));
    let revision = read_file(&model.join("refs/main"), REVISION_BYTES_MAX).ok()?;
    let revision = revision.trim();
    let snapshot = is_plain(revision).then(|| model.join("snapshots").join(revision))?;
    has_tokenizer(&snapshot).then_some(snapshot)
}

fn hub_cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    variable("HF_HUB_CACHE")
        .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/huggingface/hub")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptions::description::{Listing, ServerTraits, read_models};
    use crate::descriptions::engine_report::EngineReport;
    use forebay_fleet::worker::Role;
    use forebay_kv_events::test_support::block_on_local;
    use std::fs;

    const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tokenizer");

    fn described(dialect: Dialect) -> Description {
        let models = read_models(r#"{"data":[{"id":"m"}]}"#).unwrap().models;
        let ranks = Vec::new();
        let role = Role::Both;
        Description {
            dialect,
            models,
            listing: Listing::Listed,
            ranks,
            role,
            source: None,
            server: ServerTraits::default(),
            reported: EngineReport::default(),
        }
    }

    async fn found(texts: &ModelTexts, dir: &Path, dialect: Dialect) -> FoundText {
        texts
            .find_all(&described(dialect), ModelDirs { of_worker: Some(dir), of_all: None })
            .await
            .remove("m")
            .unwrap()
    }

    #[test]
    fn each_engine_gets_the_text_of_its_own_rules() {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(Path::new(OWN).join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
        // The engines join the parts of a content in different ways.
        let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
        fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
        let body = br#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#;
        block_on_local(async move {
            let texts = ModelTexts::new(Clock::start(), false);
            let mut kept = Vec::new();
            for (dialect, is_rust, wanted) in [
                (Dialect::Vllm, false, "a\nb"),
                (Dialect::Sglang, false, "a b"),
                (Dialect::Openai, false, "a\nb"),
                (Dialect::Vllm, true, "ab"),
                (Dialect::Sglang, true, "a\nb"),
            ] {
                let mut description = described(dialect);
                description.server.is_rust = is_rust;
                let dirs = ModelDirs { of_worker: Some(dir.path()), of_all: None };
                let found = texts.find_all(&description, dirs).await.remove("m").unwrap();
                let text = found.text.unwrap();
                let mut out = Vec::new();
                text.chat_template.as_ref().unwrap().render_full(body, &mut out).unwrap();
                assert_eq!(String::from_utf8(out).unwrap(), wanted, "{dialect:?} {is_rust}");
                kept.push(text);
            }
            assert!(Arc::ptr_eq(&kept[0], &kept[2]), "one copy per directory and rules");
            let again = found(&texts, dir.path(), Dialect::Sglang).await.text.unwrap();
            assert!(Arc::ptr_eq(&kept[1], &again));
        });
    }

    #[test]
    fn images_are_followed_for_vllm_where_the_model_has_their_token() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        fs::copy(Path::new(OWN).join("tokenizer.json"), place("tokenizer.json")).unwrap();
        let follows = async |texts: &ModelTexts, dialect| {
            let text = found(texts, dir.path(), dialect).await.text.unwrap();
            text.vocabulary.follows_images()
        };
        block_on_local(async move {
            let new = |names_images| ModelTexts::new(Clock::start(), names_images);
            assert!(!follows(&new(true), Dialect::Vllm).await, "the model has no such token");
            let config = r#"{"image_token_id":2234,"vision_start_token_id":2235}"#;
            fs::write(place("config.json"), config).unwrap();
            let mut texts = new(false);
            for (names_images, dialect, wanted) in [
                (false, Dialect::Vllm, false),
                (true, Dialect::Vllm, true),
                (true, Dialect::Openai, false),
                (true, Dialect::Sglang, false),
                (false, Dialect::Vllm, false),
            ] {
                texts.set_names_images(names_images);
                assert_eq!(follows(&texts, dialect).await, wanted, "{dialect:?} {names_images}");
            }
        });
    }

    #[test]
    fn layers_that_forget_are_found_beside_the_tokenizer() {
        let dir = tempfile::tempdir().unwrap();
        let config_path = dir.path().join("config.json");
        fs::copy(Path::new(OWN).join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
        block_on_local(async move {
            for (config, wanted) in [
                (r#"{"layer_types":["full_attention"]}"#, false),
                (r#"{"layer_types":["full_attention","linear_attention"]}"#, true),
            ] {
                fs::write(&config_path, config).unwrap();
                let texts = ModelTexts::new(Clock::start(), false);
                let found = found(&texts, dir.path(), Dialect::Sglang).await;
                assert_eq!(found.layers_forget, wanted, "{config}");
            }
        });
    }

    #[test]
    fn what_failed_is_tried_again_and_what_loaded_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        block_on_local(async move {
            let texts = ModelTexts {
                failure_kept: Duration::ZERO,
                ..ModelTexts::new(Clock::start(), false)
            };
            let patient = ModelTexts {
                failure_kept: Duration::MAX,
                ..ModelTexts::new(Clock::start(), false)
            };
            let failed = found(&texts, dir.path(), Dialect::Vllm).await;
            assert!(failed.text.is_none() && failed.note.contains("tokenizer.json"));
            assert!(found(&patient, dir.path(), Dialect::Vllm).await.text.is_none());
            fs::write(&path, "{").unwrap();
            let broken = found(&texts, dir.path(), Dialect::Vllm).await;
            assert!(broken.text.is_none() && broken.note != failed.note);
            let same = found(&texts, dir.path(), Dialect::Vllm).await;
            assert_eq!(same.note, broken.note, "the same failure says the same");
            fs::copy(Path::new(OWN).join("tokenizer.json"), &path).unwrap();
            let loaded = found(&texts, dir.path(), Dialect::Vllm).await.text.unwrap();
            assert!(found(&patient, dir.path(), Dialect::Vllm).await.text.is_none(), "not yet");
            fs::remove_file(&path).unwrap();
            let again = found(&texts, dir.path(), Dialect::Vllm).await.text.unwrap();
            assert!(Arc::ptr_eq(&loaded, &again));
        });
    }

    #[test]
    fn looks_where_people_and_engines_put_models() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        fs::create_dir(&model).unwrap();
        let root = model.display().to_string();
        assert_eq!(
            locate(ModelDirs::default(), Some(&root), None, None),
            None,
            "no tokenizer there"
        );
        fs::write(model.join("tokenizer.json"), "{}").unwrap();
        assert_eq!(
            locate(ModelDirs::default(), Some(&root), None, None),
            Some((model.clone(), false))
        );
        let x = Some(Path::new("/x"));
        let y = Some(Path::new("/y"));
        let of_all = ModelDirs { of_worker: None, of_all: y };
        let both = ModelDirs { of_worker: x, of_all: y };
        assert_eq!(locate(both, Some(&root), None, None), Some(("/x".into(), false)));
        assert_eq!(
            locate(of_all, Some(&root), None, None),
            Some((model, false)),
            "the engine knows best"
        );
        assert_eq!(locate(of_all, Some("/nowhere"), None, None), Some(("/y".into(), true)));

        let snapshot = dir.path().join("models--org--m/snapshots/abc");
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(snapshot.join("tokenizer.json"), "{}").unwrap();
        fs::create_dir(dir.path().join("models--org--m/refs")).unwrap();
        fs::write(dir.path().join("models--org--m/refs/main"), "abc\n").unwrap();
        let hub = Some(dir.path());
        assert_eq!(
            locate(ModelDirs::default(), Some("org/m"), None, hub),
            Some((snapshot.clone(), false))
        );
        assert_eq!(
            locate(ModelDirs::default(), Some("served"), Some("org/m"), hub),
            Some((snapshot, false))
        );
        for odd in ["../m", "org/../m", "a/b/c", "", "/etc", "org/.."] {
            assert_eq!(locate(ModelDirs::default(), Some(odd), None, hub), None, "{odd}");
        }
    }
}
