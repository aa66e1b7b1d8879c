//! The table of keys, defaults of workers: what holds for each worker that lacks the key.

use crate::keys::key::Form;
use crate::keys::table::table;
use crate::values::engine::EngineKind;
use std::path::PathBuf;

table! {
    /// Keys of each worker, listed or discovered, whose own table lacks the key.
    pub struct WorkerDefaultsConfig in "worker_defaults." {
        /// File with the key that workers get as `Authorization: Bearer …`. Read again at each
        /// reload.
        api_key_file: Option<PathBuf> = None, { absent: "none" };
        /// The key itself. Never printed.
        api_key: Option<String> = None, { absent: "none", form: Form::Secret };
        /// What the workers speak.
        engine: Option<EngineKind> = None, { absent: "top-level `engine`" };
        /// Folder with the tokenizer and chat template of the workers' models. Used before the
        /// folder that an engine names.
        model_dir: Option<PathBuf> = None, { absent: "top-level `model_dir`" };
        /// Most requests in flight on each rank. 0 means no limit.
        concurrency_max: Option<u32> = None, { absent: "`rank_concurrency_max`" };
        /// Path of health checks.
        health_path: Option<String> = None, { absent: "by engine" };
    }
}
