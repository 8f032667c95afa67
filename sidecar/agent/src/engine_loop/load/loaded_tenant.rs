//! What is known of a tenant before its weights are loaded.

use std::sync::Arc;
use std::time::Duration;

use sluice_link::message::Faults;
use sluice_link::model::ModelSpec;
use sluice_memory::gpu_ledger::LedgerFaults;
use sluice_policy::tunables::Tuned;
use sluice_wire::config::SidecarConfig;
use sluice_wire::state::SidecarHangs;

use crate::model::text::Text;

/// Faults that tests inject to prove that they detect them. A production sidecar has none: no configuration names them.
#[derive(Clone, Debug, Default)]
pub struct InjectedFaults {
    /// Faults of memory: copies, allocations.
    pub memory: sluice_memory::Faults,
    /// Faults of the ledger shared with peers.
    pub ledger: LedgerFaults,
    /// Faults of the engine.
    pub engine: Faults,
    /// Time to live of loans without renewal, if it is not the default.
    pub loan: Option<Duration>,
}

/// Everything known after the model folder is read, before any weight is loaded.
#[derive(Debug)]
pub struct LoadedTenant {
    /// The configuration.
    pub config: SidecarConfig,
    /// The model's shape.
    pub spec: ModelSpec,
    /// Text handling of the model.
    pub text: Arc<Text>,
    /// Longest sequence, tokens.
    pub max_model_tokens: u32,
    /// Policy constants that differ from the defaults.
    pub tuned: Tuned,
    /// Injected faults. None outside tests.
    pub faults: InjectedFaults,
    /// Earlier sidecars of this tenant that hung and were killed.
    pub sidecar_hangs: Option<SidecarHangs>,
}
