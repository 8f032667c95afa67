//! Host memory that the device may use.

use crate::abi::{OutPtr, code};
use crate::address_space::space;
use crate::call_guard::calls;

calls! {
    Uncaptured fn cuMemHostRegister_v2(place: u64, bytes: usize, _flags: u32) {
        space().register(place, bytes as u64)
    }

    Uncaptured fn cuMemHostUnregister(place: u64) {
        space().unregister(place)
    }

    Uncaptured fn cuMemHostAlloc(place: OutPtr<u64>, bytes: usize, _flags: u32) {
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        place.set(space().allocate_host(bytes as u64)?)
    }

    Uncaptured fn cuMemAllocHost_v2(place: OutPtr<u64>, bytes: usize) {
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        place.set(space().allocate_host(bytes as u64)?)
    }

    Uncaptured fn cuMemFreeHost(place: u64) {
        space().free_host(place)
    }

    Context fn cuMemHostGetDevicePointer_v2(address: OutPtr<u64>, place: u64, _flags: u32) {
        if !space().is_host(place, 1) {
            return Err(code::INVALID_VALUE);
        }
        address.set(place)
    }
}
