//! A model directory, as Hugging Face's hub lays it out, to what renders and decodes its prompts. Reads files: for
//! the control plane at start and when a model appears, never for a shard.

use super::rules::EngineRules;
use super::special::SpecialTokens;
use super::template::{ChatTemplate, TemplateError};
use crate::block::{Vocabulary, VocabularyError};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};

/// What a model directory gives.
#[derive(Debug)]
pub struct ModelTextParts {
    /// Token id to bytes.
    pub vocabulary: Vocabulary,
    /// `None` for models without a chat template.
    pub chat_template: Option<ChatTemplate>,
}

/// Why a model directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is missing or cannot be read.
    #[error(
        "cannot read {path}: {source}; point the model directory to a download of the model that has it"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("{path} is not valid: {source}; download the file again")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: serde_json::Error,
    },
    /// The tokenizer cannot be used.
    #[error("{path} cannot be used: {source}; prompts of this model are not matched by prefix")]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Why.
        source: VocabularyError,
    },
    /// The chat template cannot be used.
    #[error("{path}: {source}; give the model a chat template that Jinja2 accepts")]
    Template {
        /// The file that held it.
        path: PathBuf,
        /// Why.
        source: TemplateError,
    },
}

/// Reads `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and the chat template of a directory, for
/// vLLM's rules.
///
/// # Errors
/// [`LoadError`], which names the file and says what to do.
pub fn load_model_text(dir: &Path) -> Result<ModelTextParts, LoadError> {
    load_model_text_for(dir, EngineRules::default())
}

/// The same under the rules of one engine.
///
/// # Errors
/// [`LoadError`], which names the file and says what to do.
pub fn load_model_text_for(dir: &Path, rules: EngineRules) -> Result<ModelTextParts, LoadError> {
    let path = dir.join("tokenizer.json");
    let text = fs::read_to_string(&path)
        .map_err(|source| LoadError::Read { path: path.clone(), source })?;
    let vocabulary = Vocabulary::from_tokenizer_json(&text)
        .map_err(|source| LoadError::Vocabulary { path, source })?;
    let config = read_object(&dir.join("tokenizer_config.json"))?;
    let special = special_tokens(&read_object(&dir.join("special_tokens_map.json"))?, &config);
    let vocabulary = match configured_prefix(&config, &special) {
        Some(prefix) => vocabulary.with_completion_prefix(prefix.as_bytes()),
        None => vocabulary,
    };
    let chat_template = match find_template(dir, &config)? {
        Some((path, source)) => Some(
            ChatTemplate::compile_for(&source, &special, rules)
                .map_err(|source| LoadError::Template { path, source })?,
        ),
        None => None,
    };
    Ok(ModelTextParts { vocabulary, chat_template })
}

/// The directory of a model that is named by a path or by its name on the hub: a local directory with a
/// `tokenizer.json`, or the newest snapshot of `main` in the hub's cache (`HF_HUB_CACHE`, `HF_HOME`, or
/// `~/.cache/huggingface`). Nothing is downloaded.
#[must_use]
pub fn find_model_dir(name: &str) -> Option<PathBuf> {
    let variable =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home_cache = || variable("HOME").map(|home| home.join(".cache"));
    let cache = variable("HF_HUB_CACHE")
        .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| {
            variable("XDG_CACHE_HOME")
                .or_else(home_cache)
                .map(|cache| cache.join("huggingface/hub"))
        });
    find_model_dir_in(name, cache.as_deref())
}

fn find_model_dir_in(name: &str, hub_cache: Option<&Path>) -> Option<PathBuf> {
    let usable = |dir: &Path| dir.join("tokenizer.json").is_file();
    let local = PathBuf::from(name);
    if usable(&local) {
        return Some(local);
    }
    let hub_name = !name.is_empty() && name.split('/').count() <= 2 && !name.contains("..");
    let repo = hub_cache.filter(|_| hub_name)?.join(format!("models--{}", name.replace('/', "--")));
    let snapshots = repo.join("snapshots");
    if let Ok(revision) = fs::read_to_string(repo.join("refs/main")) {
        let snapshot = snapshots.join(revision.trim());
        if usable(&snapshot) {
            return Some(snapshot);
        }
    }
    let modified = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let entries = fs::read_dir(snapshots).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    entries.filter(|path| usable(path)).max_by_key(modified)
}

/// An absent file is an empty object: only `tokenizer.json` is needed.
fn read_object(path: &Path) -> Result<Map<String, Value>, LoadError> {
    match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|source| LoadError::Json { path: path.to_owned(), source }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Map::new()),
        Err(source) => Err(LoadError::Read { path: path.to_owned(), source }),
    }
}

/// Names ending in `_token`: those of the map, then those of the configuration, which win.
fn special_tokens(map: &Map<String, Value>, config: &Map<String, Value>) -> SpecialTokens {
    let mut special = SpecialTokens::new();
    for (name, value) in map.iter().chain(config) {
        let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
        if let Some(text) = text.filter(|_| name.ends_with("_token")) {
            special = special.with(name, text);
        }
    }
    special
}

/// Llama's tokenizer classes follow `add_bos_token` of the configuration, not the post-processor of the file.
fn configured_prefix<'a>(
    config: &Map<String, Value>,
    special: &'a SpecialTokens,
) -> Option<&'a str> {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    if !class.starts_with("Llama") {
        return None;
    }
    match config.get("add_bos_token").and_then(Value::as_bool)? {
        true => special.text("bos_token"),
        false => Some(""),
    }
}

/// The template and the file it came from: `chat_template.jinja`, then `chat_template.json` (multi-modal processors),
/// then the configuration, where it is one string or a list of named ones, of which `default` is taken.
fn find_template(
    dir: &Path,
    config: &Map<String, Value>,
) -> Result<Option<(PathBuf, String)>, LoadError> {
    let path = dir.join("chat_template.jinja");
    match fs::read_to_string(&path) {
        Ok(source) => return Ok(Some((path, source))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(LoadError::Read { path, source }),
    }
    let path = dir.join("chat_template.json");
    if let Some(source) = template_of(&read_object(&path)?) {
        return Ok(Some((path, source)));
    }
    Ok(template_of(config).map(|source| (dir.join("tokenizer_config.json"), source)))
}

fn template_of(object: &Map<String, Value>) -> Option<String> {
    match object.get("chat_template")? {
        Value::String(source) => Some(source.clone()),
        Value::Array(named) => {
            let is_default =
                |entry: &&Value| entry.get("name").and_then(Value::as_str) == Some("default");
            let entry = named.iter().find(is_default).or_else(|| named.first())?;
            entry.get("template").and_then(Value::as_str).map(str::to_owned)
        }
        _ => None,
    }
}
