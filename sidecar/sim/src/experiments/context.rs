//! [`ExperimentContext`].

use crate::workload::table::Table;

/// The inputs of simulated experiments.
pub struct ExperimentContext<'a> {
    /// Reads a file of lengths or arrivals.
    pub read: &'a dyn Fn(&str) -> Result<Table, String>,
    /// Called after each run with its name, the number of finished runs and the total.
    pub progress: &'a dyn Fn(&str, usize, usize),
    /// Number of requests of each run.
    pub requests: usize,
    /// Seed of all randomness.
    pub seed: u64,
    /// Number of seeds for experiments that compare over seeds.
    pub seeds: u64,
}
