//! `sluice-sidecar devices`: the CUDA devices that this process sees, for `sluice up`, which links no driver.

use std::io::Write;

use sluice_memory::cuda::{Context, Device, Driver, Error};
use sluice_wire::cuda_devices::{CudaDevice, CudaDeviceReport};

use crate::run::failure::Failure;

/// Runs the subcommand: reports the devices, or the reason why there are none.
///
/// # Errors
/// That reason.
pub fn run() -> Result<(), Failure> {
    let found = devices();
    let report = CudaDeviceReport::new(found.as_ref().cloned().map_err(ToString::to_string));
    let line = serde_json::to_string(&report).expect("a report serialises");
    writeln!(std::io::stdout(), "{line}").map_err(|error| Failure::Other(error.into()))?;
    found.map(drop).map_err(|error| Failure::Other(error.into()))
}

/// Returns the devices in the order of the driver, which honours `CUDA_VISIBLE_DEVICES`.
fn devices() -> Result<Vec<CudaDevice>, Error> {
    let driver = Driver::open()?;
    (0..driver.devices()?).map(|ordinal| describe(Device::open(driver, ordinal)?)).collect()
}

/// Describes a device. One that cannot be used has its problem, so that the others are found all the same.
fn describe(device: Device) -> Result<CudaDevice, Error> {
    // The driver says what is free only in a context, and a device in use by another process may give none.
    let free = match device.unfit_capability()? {
        Some(problem) => Err(problem),
        None => Context::new(device)
            .and_then(|context| context.memory())
            .map_err(|error| format!("the driver gives no context: {error}")),
    };
    Ok(CudaDevice {
        uuid: device.uuid()?,
        name: device.name()?,
        total_bytes: device.total_bytes()?,
        free_bytes: free.as_ref().map_or(0, |memory| memory.free),
        problem: free.err(),
    })
}
