//! The fields of a pool from which the claim of a GPU is made, for the message of a claim that no driver satisfies.

use sluice_types::pool::SharingMode;

use crate::gpu::Gpu;

/// Returns the fields of pool `pool` that say what the claim of `gpu` asks for. `None` for a GPU of host memory, whose
/// driver is ours and names the field itself.
pub(super) fn fields(pool: &str, gpu: &Gpu) -> Option<String> {
    let settings = &gpu.settings;
    if settings.is_host_backed() {
        return None;
    }
    let group = format!("spec.gpus[{}].sharing", gpu.group);
    let asked = match (settings.sharing.mode, &settings.sharing.isolated) {
        (SharingMode::Isolated, Some(isolated)) => {
            format!("{group}.isolated.profile: {} (of class mig.nvidia.com)", isolated.profile)
        }
        (SharingMode::Spatial, _) => format!(
            "spec.deviceClassName: {}, {group}.mode: Spatial (NVIDIA's driver needs its feature gate MPSSupport)",
            settings.device_class_name
        ),
        _ => format!("spec.deviceClassName: {}", settings.device_class_name),
    };
    Some(format!("GpuPool `{pool}` asks for {asked}"))
}
