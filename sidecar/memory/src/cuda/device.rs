//! A device and its properties.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{self, CUdevice_attribute};

use super::Error;
use super::driver::{Driver, call};

/// Compute capability for which the PTX of the kernels is written: later devices run it, earlier ones do not.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// One device.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    driver: Driver,
    raw: sys::CUdevice,
}

impl Device {
    /// Opens the device with this index in the driver.
    pub fn open(driver: Driver, ordinal: u32) -> Result<Device, Error> {
        let seen = driver.devices()?;
        if ordinal >= seen {
            return Err(Error::NoDevice { asked: ordinal, seen });
        }
        let mut raw = 0;
        // SAFETY: writes one integer.
        unsafe { call!(cuDeviceGet(&mut raw, ordinal as c_int)) }?;
        Ok(Device { driver, raw })
    }

    /// Finds the device with this UUID among those that this process sees.
    ///
    /// # Errors
    /// [`Error::NoDeviceWithUuid`], which names the devices that it sees.
    pub fn with_uuid(driver: Driver, uuid: [u8; 16]) -> Result<Device, Error> {
        let mut seen = Vec::new();
        for ordinal in 0..driver.devices()? {
            let device = Device::open(driver, ordinal)?;
            if device.uuid_bytes()? == uuid {
                return Ok(device);
            }
            seen.push(device.uuid()?);
        }
        Err(Error::NoDeviceWithUuid { asked: uuid_text("GPU", uuid), seen: seen.join(", ") })
    }

    /// Returns the driver.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Returns the driver's number of the device.
    pub(crate) fn raw(&self) -> sys::CUdevice {
        self.raw
    }

    /// Whether contexts of this process are those of an MPS server. An older driver does not
    /// know, and counts as none.
    pub fn is_in_mps(&self) -> bool {
        let enabled = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
        enabled.is_ok_and(|enabled| enabled != 0)
    }

    /// Returns one attribute.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: writes one integer; a driver that does not support the attribute returns an error.
        unsafe { call!(cuDeviceGetAttribute(&mut value, attribute, self.raw)) }?;
        Ok(value)
    }

    /// Returns the name, such as "NVIDIA H200".
    pub fn name(&self) -> Result<String, Error> {
        let mut text = [0; 256];
        // SAFETY: writes at most the given number of bytes, including the final zero.
        unsafe { call!(cuDeviceGetName(text.as_mut_ptr(), text.len() as c_int, self.raw)) }?;
        Ok(words(&text))
    }

    /// Returns the UUID in the format of `nvidia-smi`.
    pub fn uuid(&self) -> Result<String, Error> {
        let kind = if self.name()?.contains("MIG") { "MIG" } else { "GPU" };
        Ok(uuid_text(kind, self.uuid_bytes()?))
    }

    /// Returns the UUID of the GPU, or of the MIG device.
    pub fn uuid_bytes(&self) -> Result<[u8; 16], Error> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes.
        unsafe { call!(cuDeviceGetUuid_v2(&mut uuid, self.raw)) }?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Returns the PCI address.
    pub fn pci(&self) -> Result<String, Error> {
        let mut text = [0; 64];
        // SAFETY: writes at most the given number of bytes, including the final zero.
        unsafe { call!(cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int, self.raw)) }?;
        Ok(words(&text))
    }

    /// Returns the bytes of its memory.
    pub fn total_bytes(&self) -> Result<u64, Error> {
        let mut bytes = 0;
        // SAFETY: writes one integer.
        unsafe { call!(cuDeviceTotalMem_v2(&mut bytes, self.raw)) }?;
        Ok(bytes as u64)
    }

    /// Returns the compute capability, such as `(9, 0)`.
    pub fn capability(&self) -> Result<(i32, i32), Error> {
        let major = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major, minor))
    }

    /// Returns why the kernels do not run on the device; `None` if they do.
    pub fn unfit_capability(&self) -> Result<Option<String>, Error> {
        let found = self.capability()?;
        let ((major, minor), (least_major, least_minor)) = (found, LEAST_CAPABILITY);
        let words = || {
            format!("compute capability {major}.{minor}, and the kernels need {least_major}.{least_minor}")
        };
        Ok((found < LEAST_CAPABILITY).then(words))
    }

    /// Returns the compute capability, such as "9.0".
    pub fn compute_capability(&self) -> Result<String, Error> {
        let (major, minor) = self.capability()?;
        Ok(format!("{major}.{minor}"))
    }

    /// Returns the number of multiprocessors.
    pub fn multiprocessors(&self) -> Result<u32, Error> {
        let count = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(u32::try_from(count).unwrap_or(1))
    }
}

/// Returns a UUID in the format of `nvidia-smi`.
fn uuid_text(kind: &str, uuid: [u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("{kind}-{}", parts.join("-"))
}

fn words(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|byte| *byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
}
