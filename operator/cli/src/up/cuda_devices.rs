//! The CUDA devices of this machine, and which GPU of which pool each of them is.
//!
//! This program links no driver: a sidecar asks it ([`find`]), as it does for the sizes of a model. The rest is pure.

use std::collections::BTreeMap;
use std::process::Stdio;

use anyhow::Context;
use sluice_common::text::{bytes, counted};
use sluice_plan::gpu::{GpuSizes, gpus};
use sluice_types::GpuPool;
use sluice_types::load::{LoadError, LoadErrors, ManifestObject, Path};
use sluice_wire::cuda_devices::{CudaDevice, CudaDeviceReport};
use tokio::process::Command;

use super::output::eprint_note;
use super::support_check::is_cuda;
use crate::manifests::SourceObject;
use crate::plan::inputs::{GpuKey, PlanInputs};
use crate::{child, sibling_binaries};

/// What a sidecar found: the devices in the order of the driver, or why there are none.
pub type FoundDevices = Result<Vec<CudaDevice>, String>;

/// Asks the driver for its devices. It honours `CUDA_VISIBLE_DEVICES`.
///
/// # Errors
/// `sluice-sidecar` is missing or answers nothing.
pub async fn find() -> anyhow::Result<FoundDevices> {
    let sidecar = sibling_binaries::find("sluice-sidecar")?;
    let mut command = Command::new(&sidecar);
    command.arg("devices").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child::set_warn_log_level(&mut command);
    child::kill_on_parent_exit(&mut command);
    let ended = command.output().await.with_context(|| sidecar.display().to_string())?;
    CudaDeviceReport::from_json(&ended.stdout).with_context(|| {
        let words = String::from_utf8_lossy(&ended.stderr);
        format!("{} devices ended with {}: {words}", sidecar.display(), ended.status)
    })
}

/// The pools of CUDA devices that have tenants to run, in the order of the files.
#[derive(Debug)]
pub struct CudaPools<'a>(Vec<(&'a SourceObject, &'a GpuPool)>);

impl<'a> CudaPools<'a> {
    /// Finds the pools. A pool without a tenant to run takes no device.
    pub fn new(objects: &'a [SourceObject], inputs: &PlanInputs) -> Self {
        let pools = objects.iter().filter_map(|source| match &source.located.object {
            ManifestObject::Pool(pool) => Some((source, pool)),
            ManifestObject::Tenant(_) => None,
        });
        let used = |source: &SourceObject| !inputs.pool(&source.key()).tenants.is_empty();
        CudaPools(pools.filter(|(source, pool)| is_cuda(&pool.spec) && used(source)).collect())
    }

    /// Whether there is none, and no driver is needed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives each GPU of each pool a device, in the order of the driver.
    ///
    /// # Errors
    /// There is no device that the engine can use, or there are fewer than GPUs: the field, and what was found.
    pub fn assign(&self, found: FoundDevices) -> Result<BTreeMap<GpuKey, CudaDevice>, LoadErrors> {
        let usable = |device: &&CudaDevice| device.problem.is_none();
        let (words, devices) = match &found {
            Ok(devices) => (found_words(devices), devices.iter().filter(usable).collect()),
            Err(refusal) => (refusal.clone(), Vec::new()),
        };
        if devices.is_empty() {
            return Err(self.0.iter().map(|(source, pool)| no_device(source, pool, &words)).collect());
        }
        let (mut free, mut assigned, mut errors) = (devices.iter(), BTreeMap::new(), Vec::new());
        for (source, pool) in &self.0 {
            let mut names = gpus(pool, &|_| GpuSizes::default()).into_iter();
            for (index, group) in pool.spec.gpus.iter().enumerate() {
                let names: Vec<String> = names
                    .by_ref()
                    .take(usize::try_from(group.count).unwrap_or(0))
                    .map(|gpu| gpu.name)
                    .collect();
                let taken: Vec<&CudaDevice> = free.by_ref().take(names.len()).copied().collect();
                if taken.len() < names.len() {
                    errors.push(too_few(source, index, (taken.len(), names.len()), &words));
                }
                let keyed = names.into_iter().map(|name| (source.key(), name));
                assigned.extend(keyed.zip(taken.into_iter().cloned()));
            }
        }
        if errors.is_empty() { Ok(assigned) } else { Err(errors.into_iter().collect()) }
    }
}

/// Notes which device each GPU is.
pub fn print(assigned: &BTreeMap<GpuKey, CudaDevice>) {
    for ((_, gpu), device) in assigned {
        eprint_note(format_args!("{gpu} is {}", device_words(device)));
    }
}

fn no_device(source: &SourceObject, pool: &GpuPool, words: &str) -> LoadError {
    let class = &pool.spec.device_class_name;
    let problem = format!(
        "`{class}` needs a CUDA device, and there is none: {words}; host.sluice.dev makes GPUs of host memory"
    );
    source.field_error("spec.deviceClassName", &problem)
}

/// `left` devices are left for a group of `wanted`.
fn too_few(source: &SourceObject, group: usize, (left, wanted): (usize, usize), words: &str) -> LoadError {
    let verb = if left == 1 { "is" } else { "are" };
    let problem = format!(
        "the group needs {}, and {left} {verb} left: {words}; lower count, or the other pools and groups of the files",
        counted(wanted, "CUDA device")
    );
    source.located.error(Path::of_keys("spec.gpus").index(group).key("count"), problem)
}

/// Describes what the driver found.
fn found_words(devices: &[CudaDevice]) -> String {
    match devices {
        [] => "the driver has no device, or CUDA_VISIBLE_DEVICES hides it".to_owned(),
        devices => {
            let each: Vec<String> = devices.iter().map(device_words).collect();
            format!("the driver has {}", each.join(", "))
        }
    }
}

/// Describes a device: name, UUID and memory.
pub fn device_words(device: &CudaDevice) -> String {
    let CudaDevice { uuid, name, total_bytes, free_bytes, problem } = device;
    let total = bytes(*total_bytes);
    match problem {
        Some(problem) => format!("{name} ({uuid}, {total}: {problem})"),
        None => format!("{name} ({uuid}, {} free of {total})", bytes(*free_bytes)),
    }
}

#[cfg(test)]
mod tests;
