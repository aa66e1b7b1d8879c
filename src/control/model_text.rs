//! Finds and loads what turns prompts and token ids into text: tokenizer and chat template of each model, one copy
//! per directory. Reading and compiling happen on a helper thread, not on the control plane's own.

use super::described::{Description, ServedModel};
use super::fleet::ANY_MODEL;
use crate::chat::{EngineRules, load_model_text_for};
use crate::worker::{Dialect, ModelText};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Directories that were loaded, or are loading; shared by the tasks of all workers.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelTexts {
    /// By directory and whether SGLang's rules apply.
    by_dir: Rc<RefCell<ByDir>>,
}

type ByDir = HashMap<(PathBuf, bool), Rc<OnceCell<Loaded>>>;
type Loaded = Result<Arc<ModelText>, String>;

/// The text of one model, or why there is none.
#[derive(Clone, Debug)]
pub(super) struct FoundText {
    pub(super) text: Option<Arc<ModelText>>,
    /// One sentence for the log.
    pub(super) note: String,
}

impl ModelTexts {
    /// The texts of all base models of a worker.
    pub(super) async fn find_all(
        &self,
        description: &Description,
        configured: Option<&Path>,
    ) -> BTreeMap<Arc<str>, FoundText> {
        let rules = match description.dialect {
            Dialect::Sglang => EngineRules::Sglang,
            Dialect::Vllm | Dialect::Openai => EngineRules::Vllm,
        };
        let mut texts = BTreeMap::new();
        if description.models.is_empty() {
            texts.insert(ANY_MODEL.into(), self.find(configured, None, rules).await);
        }
        for model in description.models.iter().filter(|model| model.parent.is_none()) {
            let found = self.find(configured, Some(model), rules).await;
            texts.insert(Arc::clone(&model.name), found);
        }
        texts
    }

    async fn find(
        &self,
        configured: Option<&Path>,
        model: Option<&ServedModel>,
        rules: EngineRules,
    ) -> FoundText {
        let root = model.and_then(|model| model.root.as_deref());
        let name = model.map(|model| &*model.name);
        let Some(dir) = locate(configured, root, name, hub_cache().as_deref()) else {
            let note =
                "no tokenizer found: prompts are not matched against KV caches; set `model_dir`";
            return FoundText { text: None, note: note.to_owned() };
        };
        match self.load(&dir, rules).await {
            Ok(text) => {
                let template = if text.chat_template.is_some() {
                    "tokenizer and chat template"
                } else {
                    "tokenizer without a chat template (chat requests are not matched)"
                };
                let note = format!("{template} from {}", dir.display());
                FoundText { text: Some(text), note }
            }
            Err(error) => FoundText { text: None, note: error },
        }
    }

    async fn load(&self, dir: &Path, rules: EngineRules) -> Loaded {
        let cell = {
            let mut by_dir = self.by_dir.borrow_mut();
            Rc::clone(by_dir.entry((dir.to_owned(), rules == EngineRules::Sglang)).or_default())
        };
        let load = || async {
            let dir = dir.to_owned();
            let loading = tokio::task::spawn_blocking(move || {
                let parts = load_model_text_for(&dir, rules).map_err(|error| error.to_string())?;
                Ok(Arc::new(ModelText {
                    vocabulary: Arc::new(parts.vocabulary),
                    chat_template: parts.chat_template,
                }))
            });
            loading
                .await
                .unwrap_or_else(|_| Err("loading the tokenizer failed (this is a bug)".to_owned()))
        };
        cell.get_or_init(load).await.clone()
    }
}

/// Where the files of a model are: as configured, else where the engine says, else in the Hugging Face cache.
fn locate(
    configured: Option<&Path>,
    root: Option<&str>,
    name: Option<&str>,
    hub: Option<&Path>,
) -> Option<PathBuf> {
    if let Some(dir) = configured {
        return Some(dir.to_owned());
    }
    let local = root.map(Path::new).filter(|root| root.is_absolute() && has_tokenizer(root));
    if let Some(dir) = local {
        return Some(dir.to_owned());
    }
    let hub = hub?;
    [root, name].into_iter().flatten().find_map(|repository| in_hub_cache(hub, repository))
}

fn has_tokenizer(dir: &Path) -> bool {
    dir.join("tokenizer.json").is_file()
}

/// `models--org--name/snapshots/<revision>`, the revision that `refs/main` names.
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
    let revision = std::fs::read_to_string(model.join("refs/main")).ok()?;
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
    use std::fs;

    #[test]
    fn looks_where_people_and_engines_put_models() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        fs::create_dir(&model).unwrap();
        let root = model.display().to_string();
        assert_eq!(locate(None, Some(&root), None, None), None, "no tokenizer there");
        fs::write(model.join("tokenizer.json"), "{}").unwrap();
        assert_eq!(locate(None, Some(&root), None, None), Some(model));
        assert_eq!(locate(Some(Path::new("/x")), Some(&root), None, None), Some("/x".into()));

        let snapshot = dir.path().join("models--org--m/snapshots/abc");
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(snapshot.join("tokenizer.json"), "{}").unwrap();
        fs::create_dir(dir.path().join("models--org--m/refs")).unwrap();
        fs::write(dir.path().join("models--org--m/refs/main"), "abc\n").unwrap();
        let hub = Some(dir.path());
        assert_eq!(locate(None, Some("org/m"), None, hub), Some(snapshot.clone()));
        assert_eq!(locate(None, Some("served"), Some("org/m"), hub), Some(snapshot));
        for odd in ["../m", "org/../m", "a/b/c", "", "/etc", "org/.."] {
            assert_eq!(locate(None, Some(odd), None, hub), None, "{odd}");
        }
    }
}
