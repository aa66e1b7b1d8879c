//! Examines a worker once, for `forebay doctor`: its description, missing features, and two facts
//! that only a query shows: whether its event sockets are reachable, and whether its tokenizer
//! matches.

use super::contradictions::contradictions;
use super::describe::check_health;
use super::description::Description;
use super::kv_source::KvSource;
use super::missing_features::{MissingFeature, lacks};
use crate::http::WorkerClient;
use crate::model_text::FoundText;
use crate::probe::Probe;
use crate::trouble_help::trouble_help;
use crate::worker_look::WorkerLook;
use forebay_base::read_file;
use forebay_config::AdapterConfig;
use forebay_fleet::worker::{Dialect, EventSocket};
use forebay_text::chat::ChatApi;
use forebay_zmq::{Side, SocketError, SocketKind, ZmqEndpoint, ZmqSource};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// Letters, marks, digits, spaces and emoji: vocabularies differ in these.
const SAMPLE: &str = "Forebay 42: naïve café — \u{4f60}\u{597d}, \u{1f600}!\n\tdef f(x): return x";

/// Longest `config.json` that is read.
const CONFIG_BYTES_MAX: usize = 1 << 20;
/// Route of vLLM that loads an adapter.
const LOAD_ADAPTER: &str = "/v1/load_lora_adapter";
/// Types of models without a chat template in their repositories.
const WITHOUT_TEMPLATE: [&str; 1] = ["deepseek_v32"];

/// Result of an examination.
#[derive(Clone, Debug)]
pub struct Examination {
    /// Address that the host of the worker resolved to.
    pub address: SocketAddr,
    pub description: Description,
    /// Matching of chats of its models, where they have no chat template or do not use it.
    pub chat_notes: Vec<String>,
    /// Missing or wrong features.
    pub lacks: Vec<MissingFeature>,
    /// Fault of the health check, for a router with health checks.
    pub health_fault: Option<MissingFeature>,
}

impl Probe {
    /// Examines the worker once. Without `for_kv`, requirements of policy `kv` are not checked.
    /// `adapters` are the adapters that the router loads.
    ///
    /// # Errors
    /// The reason why the worker cannot be described.
    pub async fn examine(
        self,
        for_kv: bool,
        adapters: &[AdapterConfig],
    ) -> Result<Examination, String> {
        let WorkerLook { address, description, texts } = self.look().await?;
        let mut found = contradictions(&description);
        found.extend(refused_adapter(&self.patient(), &description, adapters).await);
        found.extend(self.silent_registry(&description).await);
        if for_kv {
            found.extend(lacks(&description, &texts));
            found.extend(unreachable_events(&description).await);
            found.extend(wrong_tokenizers(&self.patient(), &texts).await);
            found.extend(texts.iter().flat_map(|(model, text)| missing_files(model, text)));
        }
        let health_fault = self.health_fault(&description).await;
        let chat_notes = chat_notes(&texts);
        Ok(Examination { address, description, chat_notes, lacks: found, health_fault })
    }

    /// The registry of a prefill worker, if it does not know each rank.
    async fn silent_registry(&self, description: &Description) -> Option<MissingFeature> {
        let Some(KvSource::Registry(registry)) = &description.source else { return None };
        let lacks = self.registrar(registry.clone()).ask().await?.lacks?;
        let what = format!("this prefill worker gets no requests: it waits for {lacks}");
        let help = "correct `bootstrap_port` or remove the key, or open the port of the registry";
        Some(MissingFeature::new(what, help))
    }

    /// Asks what the health checks of the router ask. A worker without a list of models has that
    /// fault instead.
    async fn health_fault(&self, description: &Description) -> Option<MissingFeature> {
        if description.listing.is_nothing() {
            return None;
        }
        let path = self.subject.config.health_path.as_deref();
        let error = check_health(&self.patient(), path, description.dialect).await.err()?;
        let error = error.to_string();
        let help = match path {
            Some(_) => {
                "correct `health_path` of the worker or of `worker_defaults`, or remove the key"
            }
            None => trouble_help(&error),
        };
        Some(MissingFeature::new(format!("fails its health check, {error}"), help))
    }
}

/// An adapter for a model of this worker, where the engine has no route that loads adapters. vLLM
/// has the route, for POST alone, in an environment that permits the calls. GET changes nothing.
pub(crate) async fn refused_adapter(
    asker: &WorkerClient,
    description: &Description,
    adapters: &[AdapterConfig],
) -> Option<MissingFeature> {
    let is_own = |adapter: &&AdapterConfig| description.served(&adapter.of).is_some();
    let adapter = adapters.iter().find(is_own)?;
    if description.dialect != Dialect::Vllm {
        return None;
    }
    let error = asker.get(LOAD_ADAPTER).await.err()?;
    let what = || format!("the engine loads no adapter, such as {:?}: {error}", adapter.name);
    let help = "start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True";
    (error.status() == Some(404)).then(|| MissingFeature::new(what(), help))
}

/// A note for each model with an encoder of the engine, or without a usable chat template, so that
/// its chats go by guesses.
fn chat_notes(texts: &BTreeMap<Arc<str>, FoundText>) -> Vec<String> {
    let note = |(model, found): (&Arc<str>, &FoundText)| {
        let text = found.text.as_ref()?;
        match &text.chat_encoder {
            Some(encoder) if !encoder.writes(ChatApi::Chat) && text.chat_template.is_some() => {
                Some(format!("responses of `{model}` by guesses"))
            }
            Some(encoder) if encoder.is_known() => {
                Some(format!("chats of `{model}` by the {}", encoder.name()))
            }
            None if text.chat_template.is_some() => None,
            _ => Some(format!("chats of `{model}` by guesses")),
        }
    };
    texts.iter().filter_map(note).collect()
}

/// Files that a model's folder lacks: the list of its layers, and the template of a chat model.
fn missing_files(model: &str, found: &FoundText) -> Vec<MissingFeature> {
    let (Some(dir), Some(text)) = (&found.dir, &found.text) else { return Vec::new() };
    let shown = dir.display();
    let mut lacks = Vec::new();
    if !dir.join("config.json").is_file() {
        let what =
            format!("no config.json of `{model}` in {shown}: layers and encoder are unknown");
        lacks.push(MissingFeature::new(what, "copy the model's config.json there"));
    }
    if text.chat_template.is_none() && text.chat_encoder.is_none() && !ships_no_template(dir) {
        let what =
            format!("no chat template of `{model}` in {shown}: its chats are matched by guesses");
        let help = "copy chat_template.jinja there, or the tokenizer_config.json that has it; a \
                    base model needs none";
        lacks.push(MissingFeature::new(what, help));
    }
    lacks
}

/// True for models with an encoder in their repository in place of a template.
fn ships_no_template(dir: &Path) -> bool {
    #[derive(Deserialize)]
    struct ModelConfig {
        model_type: String,
    }
    let text = read_file(&dir.join("config.json"), CONFIG_BYTES_MAX);
    let config = text.ok().and_then(|text| serde_json::from_str::<ModelConfig>(&text).ok());
    config.is_some_and(|config| WITHOUT_TEMPLATE.contains(&&*config.model_type))
}

async fn unreachable_events(description: &Description) -> Option<MissingFeature> {
    for events in description.ranks.iter().filter_map(|rank| rank.events.as_ref()) {
        let replay = events.replay.as_ref().map(|replay| (replay, EventSocket::Replay));
        let publisher = (&events.endpoint, EventSocket::Publisher);
        for (endpoint, socket) in std::iter::once(publisher).chain(replay) {
            if let Err(why) = open_socket(socket, endpoint).await {
                return Some(socket_fault(socket, endpoint, &why));
            }
        }
    }
    None
}

/// Opens the socket, with its handshake. An engine that connects to the router is not looked at.
async fn open_socket(socket: EventSocket, endpoint: &ZmqEndpoint) -> Result<(), SocketError> {
    if endpoint.side == Side::Bind {
        return Ok(());
    }
    let kind = match socket {
        EventSocket::Publisher => SocketKind::Subscriber,
        EventSocket::Replay => SocketKind::Dealer,
    };
    ZmqSource::open(endpoint).await?.peer().await?.open(kind).await.map(drop)
}

fn socket_fault(socket: EventSocket, endpoint: &ZmqEndpoint, why: &SocketError) -> MissingFeature {
    let name = match socket {
        EventSocket::Publisher => "KV events",
        EventSocket::Replay => "replay of KV events",
    };
    let key = socket.key();
    let option = socket.option();
    let is_other_socket = matches!(why, SocketError::NoGreeting | SocketError::Zmtp(_));
    let help = if is_other_socket {
        format!("set `{key}` to the `{option}` of the engine's --kv-events-config")
    } else {
        format!("open the port between router and engine, or set `{key}`")
    };
    let cannot = if is_other_socket { "cannot be read" } else { "cannot be reached" };
    MissingFeature::new(format!("{name} at {endpoint} {cannot}: {why}"), help)
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<u32>,
}

/// Models whose engine tokenizes a text differently from the router's tokenizer.
async fn wrong_tokenizers(
    asker: &WorkerClient,
    texts: &BTreeMap<Arc<str>, FoundText>,
) -> Vec<MissingFeature> {
    let mut found = Vec::new();
    for (model, text) in texts {
        let Some(known) = &text.text else { continue };
        let body = serde_json::json!({
            "model": &**model, "prompt": SAMPLE, "add_special_tokens": false,
        });
        // An engine without the route is not checked.
        let Ok(answer) = asker.post_json("/tokenize", &body).await else { continue };
        let Ok(Tokens { tokens }) = serde_json::from_str(&answer) else { continue };
        let mut read = Vec::new();
        let is_known = known.vocabulary.decode_into(&tokens, &mut read);
        let mut expected = SAMPLE.as_bytes().to_vec();
        known.vocabulary.align(&mut expected, 0);
        if !is_known || read != expected {
            let dir = text.dir.as_ref().map_or_else(String::new, |dir| dir.display().to_string());
            let what = format!("the tokenizer in {dir} is not that of the engine's `{model}`");
            found.push(MissingFeature::new(
                what,
                "set `model_dir` of the worker to the files of its model",
            ));
        }
    }
    found
}
