//! Copies and fills.

use std::sync::Arc;

use crate::abi::code;
use crate::address_space::View;

/// A copy of rows of bytes. An address that is neither a device address nor registered is ordinary host memory.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    pub to: u64,
    pub from: u64,
    /// Bytes of a row.
    pub bytes: u64,
    pub rows: u64,
    /// Bytes from one row to the next, at the target and at the source.
    pub pitches: [u64; 2],
}

/// A fill of elements with one value.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    pub to: u64,
    pub value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub element: u32,
    pub count: u64,
}

impl Copy {
    /// Copies `bytes` in one row.
    pub fn new(to: u64, from: u64, bytes: u64) -> Self {
        Self { to, from, bytes, rows: 1, pitches: [bytes; 2] }
    }

    /// Runs it.
    pub fn run(&self) -> Result<(), u32> {
        let view = View::new();
        for row in 0..self.rows {
            let to = any_pointer(&view, self.to + row * self.pitches[0], self.bytes)?;
            let from = any_pointer(&view, self.from + row * self.pitches[1], self.bytes)?;
            // SAFETY: both ranges are mapped, or are valid memory of the caller; the view keeps mappings during the copy.
            // `copy` allows overlapping ranges.
            unsafe { std::ptr::copy(from, to, self.bytes as usize) };
        }
        Ok(())
    }

    /// Reads the source, if it is ordinary host memory: the driver does this before an asynchronous call returns.
    pub fn staged(&self) -> Option<Arc<[u8]>> {
        if !is_pageable(self.from, self.bytes) || self.rows != 1 {
            return None;
        }
        let mut bytes = vec![0; self.bytes as usize];
        // SAFETY: memory of the caller, which it guarantees during the call.
        unsafe { std::ptr::copy_nonoverlapping(self.from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Some(bytes.into())
    }

    /// Whether the target is ordinary host memory: the driver waits for such a copy.
    pub fn is_to_pageable(&self) -> bool {
        is_pageable(self.to, self.bytes)
    }
}

/// Writes bytes to an address.
pub fn store(to: u64, bytes: &[u8]) -> Result<(), u32> {
    let view = View::new();
    let place = any_pointer(&view, to, bytes.len() as u64)?;
    // SAFETY: the range is mapped, or is valid memory of the caller; the view keeps mappings during the copy.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    Ok(())
}

impl Fill {
    /// Checks the address as the call does.
    pub fn checked(self) -> Result<Self, u32> {
        if self.to.is_multiple_of(self.element.into()) { Ok(self) } else { Err(code::INVALID_VALUE) }
    }

    /// Runs it.
    pub fn run(&self) -> Result<(), u32> {
        let view = View::new();
        let place = view.host(self.to, self.count * u64::from(self.element))?;
        let count = self.count as usize;
        // SAFETY: inside the mapped range, which stays mapped while the view exists; `checked` has seen its alignment,
        // and a host pointer has that of its device address.
        unsafe {
            match self.element {
                1 => place.write_bytes(self.value as u8, count),
                2 => (0..count).for_each(|at| place.cast::<u16>().add(at).write(self.value as u16)),
                _ => (0..count).for_each(|at| place.cast::<u32>().add(at).write(self.value)),
            }
        }
        Ok(())
    }
}

/// Whether an address is that of ordinary host memory.
fn is_pageable(address: u64, bytes: u64) -> bool {
    address != 0 && address >> 56 == 0 && View::new().host(address, bytes).is_err()
}

/// Returns the host pointer of bytes at an address; an ordinary host address is not checked, as in the driver.
fn any_pointer(view: &View, address: u64, bytes: u64) -> Result<*mut u8, u32> {
    match view.host(address, bytes) {
        Err(_) if address != 0 && address >> 56 == 0 => Ok(address as *mut u8),
        other => other,
    }
}
