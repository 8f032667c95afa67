//! The CUDA device of a tenant, where it has one.

use std::path::Path;

use sluice_link::control::{ControlPage, done_offset, kv_done_offset, ready_offset};
use sluice_link::message;
use sluice_link::slab::SlabLayout;
use sluice_memory::backing::SignalWord;
use sluice_memory::cuda::{Context, Device, Driver};
use sluice_memory::cuda_backing::ControlFile;
use sluice_memory::{CudaBacking, HostWeightsBuilder, HostWeightsError, numa};
use sluice_wire::config::{CudaConfig, SidecarConfig};

use super::error::{LoadError, config_error};

/// Where a tenant computes.
pub(super) enum Gpu {
    /// Host memory stands in for a GPU.
    Host,
    /// A CUDA device, with the context of this process.
    Cuda {
        /// The context.
        context: Context,
        /// UUID of the device, by which the engine finds it too.
        uuid: [u8; 16],
    },
}

impl Gpu {
    /// Opens the device that the configuration names.
    ///
    /// # Errors
    /// There is no driver, or not this device.
    pub(super) fn open(config: &SidecarConfig) -> Result<Gpu, LoadError> {
        let Some(cuda) = &config.gpu.cuda else { return Ok(Gpu::Host) };
        let device = device(Driver::open()?, cuda)?;
        bind_host_memory();
        let (context, uuid) = (Context::new(device)?, device.uuid_bytes()?);
        tracing::info!(name = device.name()?, uuid = device.uuid()?, "opened the GPU");
        Ok(Gpu::Cuda { context, uuid })
    }

    /// Returns the device for the engine.
    pub(super) fn device(&self) -> message::Device {
        match self {
            Gpu::Host => message::Device::Host,
            Gpu::Cuda { uuid, .. } => message::Device::Cuda { uuid: *uuid },
        }
    }

    /// Allocates host memory for the weights, from which copies to the device run at full speed.
    pub(super) fn host_weights(
        &self,
        layout: &SlabLayout,
        layers: u16,
    ) -> Result<HostWeightsBuilder, HostWeightsError> {
        let slabs = vec![layout.layer.bytes; usize::from(layers)];
        match self {
            Gpu::Host => HostWeightsBuilder::new(layout.global.bytes, &slabs),
            Gpu::Cuda { context, .. } => HostWeightsBuilder::registered(context, layout.global.bytes, &slabs),
        }
    }

    /// Returns the memory of the device, without chunks; `None` for host memory.
    pub(super) fn backing(
        &self,
        (chunk_bytes, capacity_chunks): (u64, u32),
        control: &ControlPage,
    ) -> Result<Option<CudaBacking>, LoadError> {
        let Gpu::Cuda { context, .. } = self else { return Ok(None) };
        let file = control.fd().try_clone_to_owned();
        let file = file.map_err(|source| LoadError::Io { path: "the control page".into(), source })?;
        let control = ControlFile { file, bytes: control.bytes(), offset: word_offset };
        let backing = CudaBacking::new(context, chunk_bytes, capacity_chunks, Some(control))?;
        if !backing.streams_signal() {
            tracing::warn!(
                "streams of this device or driver cannot wait for words and write them: the CPU does"
            );
        }
        Ok(Some(backing))
    }
}

/// Keeps the weights and the host tier, which this thread allocates next, out of the memory of GPUs.
fn bind_host_memory() {
    match numa::bind_to_cpu_nodes(Path::new(numa::NODES)) {
        Ok(Some(nodes)) => tracing::info!(?nodes, "bound host memory to the NUMA nodes with CPUs"),
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, "host memory may take memory of a GPU that is a NUMA node"),
    }
}

/// Returns the device with the UUID, or the only one.
fn device(driver: Driver, config: &CudaConfig) -> Result<Device, LoadError> {
    let Some(wanted) = &config.uuid else {
        return match driver.devices()? {
            1 => Ok(Device::open(driver, 0)?),
            seen => Err(config_error("gpu.cuda.uuid", format!("this process sees {seen} devices: name one"))),
        };
    };
    let uuid = parse_uuid(wanted).ok_or_else(|| {
        config_error(
            "gpu.cuda.uuid",
            format!("`{wanted}` is not a UUID like GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"),
        )
    })?;
    Ok(Device::with_uuid(driver, uuid)?)
}

/// Parses a UUID of a GPU or a MIG device.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"))?.replace('-', "");
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(uuid)
}

/// Returns where a word is on the control page. No process waits for the global slab.
fn word_offset(word: SignalWord) -> Option<u64> {
    match word {
        SignalWord::Ready(None) => None,
        SignalWord::Ready(Some(layer)) => Some(ready_offset(layer)),
        SignalWord::Done(layer) => Some(done_offset(layer)),
        SignalWord::KvDone(layer) => Some(kv_done_offset(layer)),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_uuid;

    #[test]
    fn uuids_are_read_as_nvidia_smi_shows_them() {
        let read = parse_uuid("GPU-00010203-0405-0607-0809-0a0b0c0d0eff").unwrap();
        assert_eq!(read, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert!(parse_uuid("MIG-00010203-0405-0607-0809-0a0b0c0d0eff").is_some());
        for wrong in
            ["", "GPU-", "00010203-0405-0607-0809-0a0b0c0d0eff", "GPU-000102030405060708090a0b0c0d0exx"]
        {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
    }
}
