//! [`Calibration`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sluice_probe::bench::Bench;
use sluice_wire::State;

use super::config::{Policy, TenantConfig};
use super::error::ServedError;
use super::folder::RunFolder;
use super::load::{Load, LoadFigures};
use super::model::ServedModel;
use super::sidecar::Sidecar;
use crate::scale::Scale;

/// Between two looks at a tenant under load.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// A model, what a tenant of it takes of the device, and how it serves a load where memory is ample. The devices of the
/// runs after it are sized by this.
#[derive(Debug)]
pub struct Calibration {
    /// The model.
    pub model: ServedModel,
    /// The load.
    pub load: Load,
    /// The load where memory is ample.
    pub ample: LoadFigures,
    /// Chunks of weights and activations, bytes.
    fixed_bytes: u64,
    uuid: String,
    folder: RunFolder,
}

impl Calibration {
    /// Makes the model of this scale, and serves the load once with ample memory.
    pub fn measure(bench: &Bench, load: Load) -> Result<Calibration, ServedError> {
        let folder = RunFolder::new()?;
        bench.progress("making a model");
        let model = ServedModel::write(Scale::of(bench), &folder)?;
        let uuid = bench.device.uuid()?;
        let ample = LoadFigures::default();
        let mut calibration = Calibration { model, load, ample, fixed_bytes: 0, uuid, folder };
        bench.progress("ample memory");
        let memory_bytes = calibration.model.ample_bytes(&load);
        let tenant = calibration.tenant("ample", Policy::Recompute, memory_bytes)?;
        calibration.ample = calibration.send(&tenant, 0)?;
        calibration.fixed_bytes = fixed_bytes(&tenant.state()?);
        Ok(calibration)
    }

    /// Starts a tenant that has this memory of the device for itself, and waits until it serves. Names differ.
    pub fn tenant(&self, name: &str, policy: Policy, memory_bytes: u64) -> Result<Sidecar, ServedError> {
        let folder = self.folder.path().join(name);
        let config = self.config(policy, memory_bytes).of(name, &folder)?;
        let mut sidecar = Sidecar::start(&folder, &config)?;
        sidecar.wait_until_ready()?;
        Ok(sidecar)
    }

    /// Sends the load.
    pub fn send(&self, tenant: &Sidecar, seed: u64) -> Result<LoadFigures, ServedError> {
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let watcher = scope.spawn(|| most_running(tenant, &ended));
            let figures = self.load.send(tenant.address(), self.model.vocab(), seed);
            ended.store(true, Ordering::Relaxed);
            let most_running = watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(LoadFigures { most_running, ..figures? })
        })
    }

    /// Device memory with which all layers stay resident and KV holds this number of requests, bytes.
    pub fn memory_for(&self, requests: u32) -> u64 {
        let kv = u64::from(requests) * self.model.kv_bytes(&self.load);
        self.fixed_bytes + kv.next_multiple_of(self.model.chunk_bytes)
    }

    /// The folder of a run's files.
    pub(super) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub(super) fn config(&self, policy: Policy, memory_bytes: u64) -> TenantConfig<'_> {
        TenantConfig { model: &self.model, uuid: &self.uuid, memory_bytes, policy, load: self.load }
    }
}

/// Returns the most requests that were in the batch at a time, as far as was seen.
fn most_running(tenant: &Sidecar, ended: &AtomicBool) -> u32 {
    let mut most = 0;
    while !ended.load(Ordering::Relaxed) {
        // A sidecar that does not answer fails the load.
        most = most.max(tenant.state().map_or(0, |state| state.queue.running));
        thread::sleep(POLL_INTERVAL);
    }
    most
}

fn fixed_bytes(state: &State) -> u64 {
    let owners = &state.memory.owners;
    owners.weights_global_bytes + owners.weights_layers_bytes + owners.activation_bytes + owners.staging_bytes
}
