//! Checks `kv_pool`: names, and pools of workers with incompatible blocks.

use super::check::Check;
use crate::sections::schema::Config;
use crate::sections::worker::WorkerConfig;
use crate::values::engine::EngineKind;
use forebay_base::limits::KV_POOL_NAME_BYTES_MAX;

impl Check<'_> {
    pub(crate) fn kv_pools(&mut self, config: &Config) {
        for (position, worker) in config.workers.iter().enumerate() {
            let Some(name) = worker.kv_pool.as_deref() else { continue };
            let key = format!("worker.{position}.kv_pool");
            self.kv_pool_name(&key, name);
            let before = config.workers.iter().take(position);
            let same = before.filter(|other| other.kv_pool.as_deref() == Some(name));
            let mut same = same.filter(|other| may_share_model(worker, other));
            if let Some(what) = same.find_map(|other| difference(config, worker, other)) {
                let what = format!("workers of the pool {name:?} have {what}");
                self.warning(&key, what, "their blocks never match: give them different pools");
            }
        }
    }

    fn kv_pool_name(&mut self, key: &str, name: &str) {
        if name.is_empty() || !name.bytes().all(|byte| (0x21..0x7f).contains(&byte)) {
            let what = "`kv_pool` is a name: visible ASCII without spaces";
            self.error(key, what, "leave it out where nothing is shared");
        } else if name.len() > KV_POOL_NAME_BYTES_MAX {
            let is = name.len();
            let most = KV_POOL_NAME_BYTES_MAX;
            let what = format!("`kv_pool` is a name of {is} bytes, more than {most}");
            self.error(key, what, "give it a shorter name");
        }
    }
}

/// False if their lists of models are disjoint.
fn may_share_model(one: &WorkerConfig, other: &WorkerConfig) -> bool {
    let [a, b] = [&one.models, &other.models];
    a.is_empty() || b.is_empty() || a.iter().any(|model| b.contains(model))
}

/// Reason why blocks of two workers differ.
fn difference(config: &Config, one: &WorkerConfig, other: &WorkerConfig) -> Option<String> {
    let engines = [one, other].map(|worker| config.engine_of(worker));
    if engines.contains(&EngineKind::Vllm) && engines.contains(&EngineKind::Sglang) {
        return Some("different engines, vLLM and SGLang".to_owned());
    }
    let one = one.block_size_tokens?;
    let other = other.block_size_tokens?;
    (one != other).then(|| format!("different block sizes, {other} and {one}"))
}
