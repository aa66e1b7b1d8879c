//! `forebay shadow`: takes mirrored requests, forwards nothing, and shows what policy `kv` would
//! have given.
//!
//! Mirrored requests are the arrivals of simulated fleets that run in the time of the wall: a fleet
//! with policy `kv`, and a fleet with the rule of the present balancer as the control. The ranks
//! have the KV capacity and the speed of the real engines, by the counters of the engines. The
//! fleet of `kv` is the promise. The control shows how well the model predicts the engines.
//!
//! | file | holds |
//! |---|---|
//! | `watch` | the phases: calibrate, warm up, count; open this file first |
//! | `intake` | the listeners, bounded in connections, bytes and time |
//! | `body_places`, `write_deadline` | bounds of bodies that are read, and of answers |
//! | `mirrored` | a body to the keys of its prompt |
//! | `counters`, `engines` | counters of the engines, polled by GET |
//! | `calibration` | speed and capacity of the simulated ranks |
//! | `simulation` | the thread of the simulated fleets |
//! | `report`, `page` | the figures as JSON and as a page with a picture |
//!
//! Limits: see [`limits`]. Must never answer a mirrored request late, never send a request other
//! than GET to an engine, and never keep or show the text of a prompt.

mod limits;
mod body_places;
mod write_deadline;
mod mirrored_prompt;
mod counters;
mod calibration;
mod report;
mod page;
mod simulation;
mod engines;
mod intake;
mod watch;

pub use calibration::{Calibration, CalibrationFault};
pub use counters::EngineCounters;
pub use engines::ShadowWorker;
pub use mirrored_prompt::{MirroredPrompt, PromptReader};
pub use report::{RuleFigures, ShadowPhase, ShadowReport};
pub use watch::{GivenFigures, ShadowSettings, ShadowTimes, run};
