//! The fleet as data. Snapshots are made by the control plane, immutable, and shared by `Arc`;
//! the load board is the one piece of shared mutable state: padded atomics, one cell per rank.

mod fleet;
mod load;
mod report;

pub use fleet::{
    BlockRoot, Dialect, FleetSnapshot, GuessRoots, Model, ModelText, Rank, Role, TierRanks, Worker,
    WorkerState,
};
pub use load::{LoadBoard, RankLoad};
pub use report::{ForeignLoad, LoadReading, LoadReport, LoadReports, OwnLoad, ReportWeight};
