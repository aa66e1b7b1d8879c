//! Loads the vocabulary and the chat template of a model directory in the layout of the Hugging
//! Face hub. Reads files: for the control plane at start and when a model appears, never for a
//! shard.

use super::encoder::ChatEncoder;
use super::error::TemplateError;
use super::frontends::rust_source::of_vllm_file;
use super::harmony;
use super::mistral;
use super::rules::EngineRules;
use super::special::SpecialTokens;
use super::template::ChatTemplate;
use crate::{Vocabulary, VocabularyError};
use forebay_base::limits::{MODEL_FILE_BYTES_MAX, REVISION_BYTES_MAX};
use forebay_base::{FileFault, read_file};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};

/// Where a file of a model comes from.
const OF_MODEL: &str = "point the model directory to a download of the model that has it";

/// Vocabulary and chat template of a model.
#[derive(Debug)]
pub struct ModelTextParts {
    pub vocabulary: Vocabulary,
    /// The encoder that the engine uses instead of the template.
    pub chat_encoder: Option<ChatEncoder>,
    /// `None` for a model without a usable chat template.
    pub chat_template: Option<ChatTemplate>,
    /// Why the chat template cannot be used. Prompts of text and token ids still work.
    pub template_error: Option<LoadError>,
}

/// Why a model directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is missing or cannot be read.
    #[error("cannot read {}", FileFault::of_read(.path, .source, OF_MODEL))]
    Read { path: PathBuf, source: std::io::Error },
    /// A file does not contain the expected JSON.
    #[error("{path} is not valid: {source}; download the file again")]
    Json { path: PathBuf, source: serde_json::Error },
    /// The tokenizer cannot be used.
    #[error("{path} cannot be used: {source}; prompts of this model are not matched by prefix")]
    Vocabulary { path: PathBuf, source: VocabularyError },
    /// The chat template cannot be used. Chats of the model are then matched by guesses only.
    #[error("{path}: {source}; give the model a chat template that Jinja2 accepts")]
    Template {
        /// The file with the template.
        path: PathBuf,
        source: TemplateError,
    },
}

/// Reads `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and the chat template
/// of a directory, for vLLM's rules.
///
/// # Errors
/// [`LoadError`], with the file and the remedy.
pub fn load_model_text(dir: &Path) -> Result<ModelTextParts, LoadError> {
    load_model_text_for(dir, EngineRules::default())
}

/// The same, for the rules of an engine.
///
/// # Errors
/// [`LoadError`], with the file and the remedy.
pub fn load_model_text_for(dir: &Path, rules: EngineRules) -> Result<ModelTextParts, LoadError> {
    let vocabulary = read_vocabulary(dir)?;
    let config = read_object(&dir.join("tokenizer_config.json"))?;
    let special = special_tokens(&read_object(&dir.join("special_tokens_map.json"))?, &config);
    let vocabulary = match configured_prefix(&config, &special, rules) {
        Some(prefix) => vocabulary.with_completion_prefix(prefix.as_bytes()),
        None => vocabulary,
    };
    let found = find_template(dir, &config)?;
    let source = found.as_ref().map(|found| found.sources.default.as_str());
    let chat_encoder = find_encoder(dir, source, rules);
    let compiled = found.map(|found| compile(found, &special, rules));
    let (chat_template, template_error) = match compiled.transpose() {
        Ok(chat_template) => (chat_template, None),
        Err(error) => (None, Some(error)),
    };
    Ok(ModelTextParts { vocabulary, chat_encoder, chat_template, template_error })
}

/// Files with a vocabulary, in the order in which they count.
const VOCABULARY_FILES: [&str; 2] = ["tokenizer.json", mistral::TEKKEN];

/// Has the directory a vocabulary that can be read?
#[must_use]
pub fn has_tokenizer(dir: &Path) -> bool {
    VOCABULARY_FILES.iter().any(|name| dir.join(name).is_file())
}

/// Mistral's own repositories may have only `tekken.json`.
fn read_vocabulary(dir: &Path) -> Result<Vocabulary, LoadError> {
    let [hugging_face, tekken] = VOCABULARY_FILES.map(|name| dir.join(name));
    let is_tekken = !hugging_face.is_file() && tekken.is_file();
    let path = if is_tekken { tekken } else { hugging_face };
    let text = read_file(&path, MODEL_FILE_BYTES_MAX)
        .map_err(|source| LoadError::Read { path: path.clone(), source })?;
    let read = match is_tekken {
        true => Vocabulary::from_tekken_json(&text),
        false => Vocabulary::from_tokenizer_json(&text),
    };
    read.map_err(|source| LoadError::Vocabulary { path, source })
}

/// The placeholder token of images, and the marker tokens around images, from the model's
/// `config.json`. `None` if the file has no such tokens.
#[must_use]
pub fn find_image_tokens(dir: &Path) -> Option<(u32, Vec<u32>)> {
    let config = read_object(&dir.join("config.json")).ok()?;
    let id =
        |name: &str| config.get(name).and_then(Value::as_u64).and_then(|id| id.try_into().ok());
    let image = id("image_token_id").or_else(|| id("image_token_index"))?;
    let marks = ["vision_start_token_id", "vision_end_token_id"].into_iter().filter_map(id);
    Some((image, marks.collect()))
}

/// The encoder that an engine uses for a directory. Unreadable files count as absent.
fn find_encoder(dir: &Path, template: Option<&str>, rules: EngineRules) -> Option<ChatEncoder> {
    // SGLang renders the template for chats of each model.
    if !matches!(rules, EngineRules::Vllm | EngineRules::Sglang) {
        return None;
    }
    let config = read_object(&dir.join("config.json")).unwrap_or_default();
    let is_harmony = harmony::is_model(&config, template);
    if rules == EngineRules::Sglang {
        return is_harmony.then_some(ChatEncoder::OfResponses);
    }
    if is_harmony {
        return Some(ChatEncoder::Harmony);
    }
    let entries = fs::read_dir(dir).ok()?.filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let names: Vec<String> = names.take(DIR_ENTRIES_MAX).collect();
    let found =
        mistral::find_encoder(&names, |name| read_optional(&dir.join(name)).ok().flatten())?;
    Some(found.map_or(ChatEncoder::Unknown, ChatEncoder::Mistral))
}

fn compile(
    found: FoundTemplate,
    special: &SpecialTokens,
    rules: EngineRules,
) -> Result<ChatTemplate, LoadError> {
    let FoundTemplate { path, mut sources } = found;
    if rules == EngineRules::VllmRust && path.extension().is_some_and(|kind| kind == "jinja") {
        sources.default = of_vllm_file(&sources.default);
    }
    let compiled = ChatTemplate::compile_for(&sources.default, special, rules);
    let compiled = match &sources.tool_use {
        Some(tool_use) => compiled.and_then(|template| template.with_tool_use(tool_use, special)),
        None => compiled,
    };
    compiled.map_err(|source| LoadError::Template { path, source })
}

/// The directory of a model, from a path or a name on the hub: a local directory with a
/// tokenizer, or the newest snapshot of `main` in the hub's cache (`HF_HUB_CACHE`,
/// `HF_HOME`, or `~/.cache/huggingface`). Downloads nothing.
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
    let usable = has_tokenizer;
    let local = PathBuf::from(name);
    if usable(&local) {
        return Some(local);
    }
    let hub_name = !name.is_empty() && name.split('/').count() <= 2 && !name.contains("..");
    let repo = hub_cache.filter(|_| hub_name)?.join(format!("models--{}", name.replace('/', "--")));
    let snapshots = repo.join("snapshots");
    if let Ok(revision) = read_file(&repo.join("refs/main"), REVISION_BYTES_MAX) {
        let snapshot = snapshots.join(revision.trim());
        if usable(&snapshot) {
            return Some(snapshot);
        }
    }
    let modified = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let entries = fs::read_dir(snapshots).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    entries.filter(|path| usable(path)).max_by_key(modified)
}

/// Reads a JSON object. An absent file is an empty object, because only `tokenizer.json` is needed.
pub(super) fn read_object(path: &Path) -> Result<Map<String, Value>, LoadError> {
    match read_optional(path)? {
        Some(text) => serde_json::from_str(&text)
            .map_err(|source| LoadError::Json { path: path.to_owned(), source }),
        None => Ok(Map::new()),
    }
}

fn read_optional(path: &Path) -> Result<Option<String>, LoadError> {
    match read_file(path, MODEL_FILE_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoadError::Read { path: path.to_owned(), source }),
    }
}

/// Members ending in `_token`, of the map and then of the configuration, which wins.
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

/// Files of a model directory that are looked at.
const DIR_ENTRIES_MAX: usize = 4_096;

/// Classes for which SGLang uses `add_bos_token` of the configuration, true when absent, as
/// transformers 4 did. Transformers 5, which vLLM 0.33 uses, ignores it and uses the post-processor
/// of the file.
const BOS_CLASSES: [&str; 7] = [
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast",
    "GemmaTokenizer",
    "GemmaTokenizerFast",
    "CohereTokenizerFast",
];

/// Text before a completion prompt, where it differs from the post-processor of the file.
fn configured_prefix<'a>(
    config: &Map<String, Value>,
    special: &'a SpecialTokens,
    rules: EngineRules,
) -> Option<&'a str> {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    if !rules.is_sglang() || !BOS_CLASSES.contains(&class) {
        return None;
    }
    match config.get("add_bos_token").and_then(Value::as_bool).unwrap_or(true) {
        true => special.text("bos_token"),
        false => Some(""),
    }
}

/// The templates of a model, with their file.
struct FoundTemplate {
    path: PathBuf,
    sources: TemplateTexts,
}

/// Templates of a model by their use.
struct TemplateTexts {
    default: String,
    /// For requests that offer tools.
    tool_use: Option<String>,
}

/// Finds the template in `chat_template.jinja`, then in `chat_template.json` (multi-modal
/// processors), then in the configuration, as a string or a list of named templates.
fn find_template(
    dir: &Path,
    config: &Map<String, Value>,
) -> Result<Option<FoundTemplate>, LoadError> {
    let path = dir.join("chat_template.jinja");
    if let Some(default) = read_optional(&path)? {
        let tool_use = read_optional(&dir.join("additional_chat_templates/tool_use.jinja"))?;
        return Ok(Some(FoundTemplate { path, sources: TemplateTexts { default, tool_use } }));
    }
    let path = dir.join("chat_template.json");
    if let Some(sources) = templates_of(&read_object(&path)?) {
        return Ok(Some(FoundTemplate { path, sources }));
    }
    let path = dir.join("tokenizer_config.json");
    Ok(templates_of(config).map(|sources| FoundTemplate { path, sources }))
}

fn templates_of(object: &Map<String, Value>) -> Option<TemplateTexts> {
    match object.get("chat_template")? {
        Value::String(source) => Some(TemplateTexts { default: source.clone(), tool_use: None }),
        Value::Array(entries) => {
            let text = |entry: &Value| Some(entry.get("template")?.as_str()?.to_owned());
            let named = |name: &str| {
                let is_named =
                    |entry: &&Value| entry.get("name").and_then(Value::as_str) == Some(name);
                entries.iter().find(is_named).and_then(text)
            };
            let default = named("default").or_else(|| entries.first().and_then(text))?;
            Some(TemplateTexts { default, tool_use: named("tool_use") })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        LoadError, find_model_dir_in, has_tokenizer, load_model_text, load_model_text_for,
    };
    use crate::chat::{ChatEncoder, EngineRules};
    use serde_json::{Value, json};
    use std::fs;
    use std::path::{Path, PathBuf};

    const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tokenizer");

    /// A model directory with our tokenizer and this configuration.
    fn model(config: &Value) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(Path::new(OWN).join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        dir
    }

    fn rendered(dir: &Path) -> String {
        let template = load_model_text(dir).unwrap().chat_template.unwrap();
        let mut out = Vec::new();
        template.render_full(b"{\"messages\":[]}", &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn our_tokenizer_loads() {
        let parts = load_model_text(Path::new(OWN)).unwrap();
        assert!(parts.chat_template.unwrap().has_plan());
        assert!(parts.vocabulary.token_count() > 2_000);
    }

    #[test]
    fn encoders_go_before_templates_where_vllm_uses_them() {
        let tekken = r#"{"config":{"version":"v3"},"vocab":[{"rank":0}]}"#;
        let newer = r#"{"config":{"version":"v99"}}"#;
        let gpt_oss = r#"{"model_type":"gpt_oss"}"#;
        let mistral = "mistral_common encoder";
        for (files, wanted) in [
            (&[("config.json", gpt_oss)][..], Some("Harmony encoder")),
            (&[("config.json", r#"{"model_type":"llama"}"#)], None),
            (&[("tekken.json", tekken)], Some(mistral)),
            (&[("tekken.json", tekken), ("consolidated.safetensors", "")], Some(mistral)),
            (&[("tekken.json", tekken), ("model.safetensors", "")], None),
            (&[("tokenizer.model.v7", ""), ("consolidated-1.safetensors", "")], Some("unknown")),
            (&[("tekken.json", newer)], Some("unknown")),
            (&[("tekken.json", "{")], Some("unknown")),
        ] {
            let dir = model(&json!({ "chat_template": "T" }));
            for (name, text) in files {
                fs::write(dir.path().join(name), text).unwrap();
            }
            let found = load_model_text(dir.path()).unwrap();
            assert!(found.chat_template.is_some());
            let name = found.chat_encoder.as_ref().map(ChatEncoder::name);
            let same = name.is_some_and(|name| wanted.is_some_and(|wanted| name.contains(wanted)));
            assert!(same || name == wanted, "{files:?}: {name:?}");
            let by_sglang = load_model_text_for(dir.path(), EngineRules::Sglang).unwrap();
            let of_responses = wanted == Some("Harmony encoder");
            let of_responses = of_responses.then_some(ChatEncoder::OfResponses);
            assert_eq!(by_sglang.chat_encoder, of_responses, "{files:?}");
        }
        let marks = "<|start|>{{ x }}<|channel|>analysis<|message|>";
        let dir = model(&json!({ "chat_template": marks }));
        let found = load_model_text(dir.path()).unwrap().chat_encoder;
        assert_eq!(found, Some(ChatEncoder::Harmony), "by its template");
    }

    #[test]
    fn a_directory_with_tekken_json_alone_has_a_vocabulary() {
        let dir = tempfile::tempdir().unwrap();
        let tekken = r#"{ "config": { "version": "v3", "default_vocab_size": 1001,
            "default_num_special_tokens": 1000 },
            "vocab": [{ "rank": 0, "token_bytes": "YQ==" }] }"#;
        assert!(!has_tokenizer(dir.path()));
        fs::write(dir.path().join("tekken.json"), tekken).unwrap();
        assert!(has_tokenizer(dir.path()));
        let found = load_model_text(dir.path()).unwrap();
        assert_eq!(found.vocabulary.bytes(1_000), Some(&b"a"[..]));
        assert_eq!(found.vocabulary.completion_prefix(), b"<s>");
        assert_eq!(found.chat_encoder.unwrap().name(), "mistral_common encoder");
        assert!(find_model_dir_in(dir.path().to_str().unwrap(), None).is_some());
    }

    #[test]
    fn templates_are_found_where_models_keep_them() {
        let named = json!({ "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "{{ bos_token }}D{{ eos_token }}"}],
            "bos_token": {"content": "<b>", "lstrip": false}, "eos_token": "<e>" });
        let dir = model(&named);
        assert_eq!(rendered(dir.path()), "<b>D<e>");
        fs::write(
            dir.path().join("chat_template.json"),
            "{\"chat_template\": \"J{{ pad_token }}\"}",
        )
        .unwrap();
        fs::write(
            dir.path().join("special_tokens_map.json"),
            "{\"pad_token\": \"<p>\", \"bos_token\": \"<old>\"}",
        )
        .unwrap();
        assert_eq!(rendered(dir.path()), "J<p>");
        fs::write(dir.path().join("chat_template.jinja"), "{{ bos_token }}X").unwrap();
        assert_eq!(rendered(dir.path()), "<b>X");
        assert!(load_model_text(model(&json!({})).path()).unwrap().chat_template.is_none());
    }

    #[test]
    fn sglang_follows_the_configuration_of_some_classes() {
        let prefix = |config: &Value, rules| {
            let parts = load_model_text_for(model(config).path(), rules).unwrap();
            String::from_utf8(parts.vocabulary.completion_prefix().to_vec()).unwrap()
        };
        for (config, sglang) in [
            (json!({ "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true }), "<b>"),
            (json!({ "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": false }), ""),
            (json!({ "tokenizer_class": "GemmaTokenizer" }), "<b>"),
            (json!({ "tokenizer_class": "Qwen2Tokenizer", "add_bos_token": true }), ""),
        ] {
            let mut config = config;
            config["bos_token"] = json!("<b>");
            assert_eq!(prefix(&config, EngineRules::Sglang), sglang, "{config}");
            assert_eq!(prefix(&config, EngineRules::Vllm), "", "the file's own: {config}");
        }
    }

    #[test]
    fn requests_with_tools_have_a_template_of_their_own() {
        let named = json!({ "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T{{ tools | length }}"}] });
        let with_tools =
            br#"{"messages":[],"tools":[{"type":"function","function":{"name":"f"}}]}"#;
        let dir = model(&named);
        let separate = model(&json!({ "chat_template": "old" }));
        fs::write(separate.path().join("chat_template.jinja"), "D").unwrap();
        fs::create_dir(separate.path().join("additional_chat_templates")).unwrap();
        fs::write(separate.path().join("additional_chat_templates/tool_use.jinja"), "T1").unwrap();
        for dir in [dir.path(), separate.path()] {
            let template = load_model_text(dir).unwrap().chat_template.unwrap();
            for (body, wanted) in [(&with_tools[..], "T1"), (br#"{"messages":[],"tools":[]}"#, "D")]
            {
                let mut out = Vec::new();
                template.render_full(body, &mut out).unwrap();
                assert_eq!(String::from_utf8(out).unwrap(), wanted);
            }
        }
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let error = load_model_text(dir.path()).unwrap_err();
        assert!(
            matches!(error, LoadError::Read { .. }) && error.to_string().contains("tokenizer.json")
        );
        let dir = model(&json!({ "chat_template": "{% if %}" }));
        let parts = load_model_text(dir.path()).unwrap();
        assert!(parts.chat_template.is_none() && parts.vocabulary.token_count() > 2_000);
        let error = parts.template_error.unwrap().to_string();
        assert!(
            error.contains("tokenizer_config.json") && error.contains("chat template"),
            "{error}"
        );
        fs::write(dir.path().join("tokenizer_config.json"), "{").unwrap();
        assert!(matches!(load_model_text(dir.path()), Err(LoadError::Json { .. })));
        fs::write(
            dir.path().join("tokenizer.json"),
            "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}",
        )
        .unwrap();
        assert!(matches!(load_model_text(dir.path()), Err(LoadError::Vocabulary { .. })));
    }

    #[test]
    fn models_are_found_by_path_and_in_the_hub_cache() {
        assert_eq!(find_model_dir_in(OWN, None), Some(PathBuf::from(OWN)));
        let cache = tempfile::tempdir().unwrap();
        let repo = cache.path().join("models--org--name");
        for revision in ["aaa", "bbb"] {
            fs::create_dir_all(repo.join("snapshots").join(revision)).unwrap();
            fs::write(repo.join("snapshots").join(revision).join("tokenizer.json"), "{}").unwrap();
        }
        assert!(find_model_dir_in("org/name", Some(cache.path())).is_some());
        fs::create_dir_all(repo.join("refs")).unwrap();
        fs::write(repo.join("refs/main"), "aaa\n").unwrap();
        assert_eq!(
            find_model_dir_in("org/name", Some(cache.path())),
            Some(repo.join("snapshots/aaa"))
        );
        assert_eq!(find_model_dir_in("org/other", Some(cache.path())), None);
        assert_eq!(find_model_dir_in("../org", Some(cache.path())), None);
    }
}
