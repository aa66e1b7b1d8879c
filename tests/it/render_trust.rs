//! A router that renders prompts unlike its engines: hits as without a template, and claims that
//! shrink. The router's `model_dir` has another chat template than the simulated engines.

use crate::rig::{
    Client, Reply, RouterProcess, admin, any_port, metric_of, post, until, until_live,
};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;
