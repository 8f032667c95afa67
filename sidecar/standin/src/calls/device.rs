//! The driver itself and its one device.

use std::ffi::{CStr, c_char};

use crate::abi::{OutPtr, code};
use crate::call_guard::{calls, start};
use crate::code_text::code_text;
use crate::env_config::ENV_CONFIG;
use crate::leak_report;
use crate::objects::pool;

/// Attributes other than 0: numbers of `CUdevice_attribute`.
/// They are those of an H100, but for eight multiprocessors.
const ATTRIBUTES: &[(i32, i32)] = &[
    (1, 1024),        // threads per block
    (2, 1024),        // threads per block, x
    (3, 1024),        // threads per block, y
    (4, 64),          // threads per block, z
    (5, i32::MAX),    // blocks, x
    (6, 65535),       // blocks, y
    (7, 65535),       // blocks, z
    (8, 49152),       // shared memory per block
    (9, 65536),       // constant memory
    (12, 65536),      // registers per block
    (13, 1_980_000),  // kHz of the multiprocessors
    (36, 2_619_000),  // kHz of the memory
    (37, 5120),       // bits of the memory bus
    (38, 52_428_800), // bytes of the second cache
    (39, 2048),       // threads per multiprocessor
    (78, 1),          // priorities of streams
    (81, 233_472),    // shared memory per multiprocessor
    (82, 65536),      // registers per multiprocessor
    (97, 232_448),    // shared memory per block, after opting in
    (106, 32),        // blocks per multiprocessor
    (111, 1024),      // shared memory that the driver takes of each block
    (10, 32),         // warp size
    (16, 8),          // multiprocessors
    (19, 1),          // host memory mapped for the device
    (31, 1),          // concurrent kernels
    (40, 3),          // asynchronous copies
    (41, 1),          // unified addressing
    (75, 9),          // compute capability, major
    (76, 0),          // compute capability, minor
    (91, 1),          // host addresses of registered memory
    (92, 1),          // operations on words by streams, version 1
    (93, 1),          // 64-bit operations on words by streams, version 1
    (94, 1),          // waits for no common bit, version 1
    (99, 1),          // registered host memory
    (102, 1),         // virtual memory
    (103, 1),         // handles as file descriptors
    (115, 1),         // memory pools
    (119, 0),         // memory pools as file descriptors
    (122, 1),         // 64-bit operations on words by streams
    (123, 1),         // waits for no common bit
];

calls! {
    Nothing fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        pool()?;
        raise_descriptor_limit();
        leak_report::report_at_exit();
        start();
        Ok(())
    }

    Nothing fn cuDriverGetVersion(version: OutPtr<i32>) {
        version.set(ENV_CONFIG.driver.number())
    }

    Nothing fn cuGetErrorName(error: u32, text: OutPtr<*const c_char>) {
        text.set(code_text(error).0.as_ptr().cast())
    }

    Nothing fn cuGetErrorString(error: u32, text: OutPtr<*const c_char>) {
        text.set(code_text(error).1.as_ptr().cast())
    }

    Start fn cuDeviceGetCount(count: OutPtr<i32>) {
        count.set(1)
    }

    Start fn cuDeviceGet(device: OutPtr<i32>, ordinal: i32) {
        if ordinal != 0 {
            return Err(code::INVALID_DEVICE);
        }
        device.set(0)
    }

    Start fn cuDeviceGetName(name: OutPtr<c_char>, length: i32, device: i32) {
        check_ordinal(device)?;
        text(&name, length, c"Sluice stand-in")
    }

    Start fn cuDeviceGetPCIBusId(name: OutPtr<c_char>, length: i32, device: i32) {
        check_ordinal(device)?;
        text(&name, length, c"0000:00:00.0")
    }

    Start fn cuDeviceGetUuid(uuid: OutPtr<[u8; 16]>, device: i32) {
        check_ordinal(device)?;
        uuid.set(*b"sluice-stand-in!")
    }

    Start fn cuDeviceGetUuid_v2(uuid: OutPtr<[u8; 16]>, device: i32) {
        check_ordinal(device)?;
        uuid.set(*b"sluice-stand-in!")
    }

    Start fn cuDeviceTotalMem_v2(bytes: OutPtr<usize>, device: i32) {
        check_ordinal(device)?;
        bytes.set(pool()?.capacity() as usize)
    }

    Start fn cuDeviceComputeCapability(major: OutPtr<i32>, minor: OutPtr<i32>, device: i32) {
        check_ordinal(device)?;
        major.set(attribute(75))?;
        minor.set(attribute(76))
    }

    Start fn cuDeviceGetAttribute(value: OutPtr<i32>, attribute: i32, device: i32) {
        check_ordinal(device)?;
        value.set(self::attribute(attribute))
    }
}

/// Returns an attribute of the device.
pub fn attribute(number: i32) -> i32 {
    let usual = ATTRIBUTES.iter().find(|(known, _)| *known == number).map_or(0, |(_, value)| *value);
    ENV_CONFIG.attributes.get(&number).copied().unwrap_or(usual)
}

fn check_ordinal(device: i32) -> Result<(), u32> {
    if device == 0 { Ok(()) } else { Err(code::INVALID_DEVICE) }
}

/// Writes `text` into a buffer of `length` bytes.
fn text(place: &OutPtr<c_char>, length: i32, text: &CStr) -> Result<(), u32> {
    let bytes = text.to_bytes_with_nul();
    if place.raw().is_null() || usize::try_from(length).unwrap_or(0) < bytes.len() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the caller provides `length` bytes, which is enough.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), place.raw(), bytes.len()) };
    Ok(())
}

/// Raises the descriptor limit to the maximum, because every piece of memory is a descriptor.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
