//! What the driver knows of an address.

use std::ffi::c_void;

use crate::abi::{InPtr, OutPtr, code};
use crate::address_space::{AddressRange, space};
use crate::call_guard::calls;
use crate::current_context::current;

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const HOST: u64 = 1;
const DEVICE: u64 = 2;

calls! {
    Health fn cuPointerGetAttribute(value: *mut c_void, attribute: u32, address: u64) {
        let range = space().range_of(address).ok_or(code::INVALID_VALUE)?;
        write(value, known(attribute, address, &range)?)
    }

    // As the driver: without an error for an address that it does not know, with zeros as values.
    Health fn cuPointerGetAttributes(
        count: u32, attributes: InPtr<u32>, values: InPtr<*mut c_void>, address: u64,
    ) {
        let range = space().range_of(address);
        for index in 0..count as usize {
            let nothing = AddressRange { start: 0, bytes: 0, is_device: false };
            let (value, bytes) = known(attributes.at(index)?, address, range.as_ref().unwrap_or(&nothing))?;
            write(values.at(index)?, (if range.is_some() { value } else { 0 }, bytes))?;
        }
        Ok(())
    }

    Health fn cuMemGetAddressRange_v2(start: OutPtr<u64>, bytes: OutPtr<usize>, address: u64) {
        let range = space().range_of(address).filter(|range| range.is_device).ok_or(code::NOT_FOUND)?;
        // Either may be null.
        let _ = start.set(range.start);
        let _ = bytes.set(range.bytes as usize);
        Ok(())
    }
}

/// Returns the value and the bytes of a `CUpointer_attribute`.
fn known(attribute: u32, address: u64, range: &AddressRange) -> Result<(u64, usize), u32> {
    match attribute {
        1 => Ok((current() as u64, 8)),
        2 => Ok((if range.is_device { DEVICE } else { HOST }, 4)),
        3 => Ok((address, 8)),
        4 if !range.is_device => Ok((address, 8)),
        4 => Err(code::INVALID_VALUE),
        // Managed memory, and IPC of the old kind: neither is there.
        8 | 10 => Ok((0, 1)),
        // The device, which has number 0.
        9 => Ok((0, 4)),
        11 => Ok((range.start, 8)),
        12 => Ok((range.bytes, 8)),
        13 => Ok((1, 1)),
        14 => Ok((u64::from(range.is_device), 8)),
        _ => Err(code::NOT_SUPPORTED),
    }
}

fn write(place: *mut c_void, (value, bytes): (u64, usize)) -> Result<(), u32> {
    if place.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the caller has space for the attribute, which has this many bytes.
    unsafe { std::ptr::copy_nonoverlapping(value.to_ne_bytes().as_ptr(), place.cast::<u8>(), bytes) };
    Ok(())
}
