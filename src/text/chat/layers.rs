//! Layers of a model in its `config.json`: whether all of them keep the whole prompt. For engines
//! that do not report this in their KV events.

use super::load::read_object;
use serde_json::{Map, Value};
use std::path::Path;

/// Kinds of layers that keep the whole prompt.
const WHOLE_KINDS: [&str; 2] = ["full_attention", "attention"];
/// Members with the kind of each layer.
const KIND_LISTS: [&str; 2] = ["layer_types", "layers_block_type"];
/// Prefixes of members that appear only if some layers keep a state, a part of the prompt, or both.
const FORGETFUL_NAMES: [&str; 8] = [
    "attention_chunk_size",
    "attn_type_list",
    "conv_L_cache",
    "hybrid_",
    "linear_attn_config",
    "linear_num_",
    "mamba",
    "ssm_",
];

/// True if the `config.json` of a directory shows layers that keep less than the whole prompt:
/// sliding windows, chunks, or a state.
#[must_use]
pub fn has_layers_that_forget(dir: &Path) -> bool {
    let Ok(config) = read_object(&dir.join("config.json")) else { return false };
    let text = config.get("text_config").and_then(Value::as_object);
    shows_forgetful_layers(&config) || text.is_some_and(shows_forgetful_layers)
}

fn shows_forgetful_layers(config: &Map<String, Value>) -> bool {
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        _ => true,
    };
    let is_forgetful = |name: &str| FORGETFUL_NAMES.iter().any(|start| name.starts_with(start));
    let kinds = KIND_LISTS.iter().filter_map(|list| config.get(*list)?.as_array()).flatten();
    let mut kinds = kinds.filter_map(Value::as_str);
    let slides = config.get("sliding_window").is_some_and(is_set)
        && config.get("use_sliding_window") != Some(&Value::Bool(false));
    slides
        || kinds.any(|kind| !WHOLE_KINDS.contains(&kind))
        || config.iter().any(|(name, value)| is_forgetful(name) && is_set(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The members that matter of configurations as the models come with them.
    #[test]
    fn models_are_known_by_their_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let forgets = |config: &str| {
            fs::write(dir.path().join("config.json"), config).unwrap();
            has_layers_that_forget(dir.path())
        };
        for (model, config) in [
            ("gpt-oss", r#"{"layer_types":["sliding_attention","full_attention"]}"#),
            ("Mistral 7B 0.1", r#"{"sliding_window":4096}"#),
            ("Gemma 3", r#"{"text_config":{"sliding_window":1024,"sliding_window_pattern":6}}"#),
            ("Llama 4", r#"{"text_config":{"attention_chunk_size":8192}}"#),
            ("Qwen3-Next", r#"{"full_attention_interval":4,"linear_num_key_heads":16}"#),
            ("Jamba", r#"{"attn_layer_period":8,"mamba_d_state":16}"#),
            ("Nemotron-H", r#"{"hybrid_override_pattern":"M-M*","ssm_state_size":128}"#),
            ("Zamba 2", r#"{"layers_block_type":["mamba","hybrid"]}"#),
            ("LFM2", r#"{"conv_L_cache":3,"layer_types":["conv","full_attention"]}"#),
            ("Kimi Linear", r#"{"linear_attn_config":{"kda_layers":[1]}}"#),
        ] {
            assert!(forgets(config), "{model}");
        }
        for (model, config) in [
            ("Llama 3", r#"{"model_type":"llama","num_hidden_layers":32}"#),
            ("Qwen2", r#"{"sliding_window":131072,"use_sliding_window":false}"#),
            ("Mistral 7B 0.2", r#"{"sliding_window":null}"#),
            ("Qwen3", r#"{"layer_types":["full_attention","full_attention"]}"#),
            ("Granite", r#"{"layer_types":["attention"],"mamba_d_state":0}"#),
            ("odd", r#"{"layer_types":7,"text_config":[]}"#),
            ("broken", "{"),
        ] {
            assert!(!forgets(config), "{model}");
        }
        fs::remove_file(dir.path().join("config.json")).unwrap();
        assert!(!has_layers_that_forget(dir.path()), "no configuration");
    }
}
