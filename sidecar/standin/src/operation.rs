//! The operations of streams.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{BatchOperation, code};
use crate::address_space::{View, word};
use crate::cublas::matmul::Matmul;
use crate::event::RecordedEvent;
use crate::kernels::Launch;
use crate::wait_until::wait_until;

/// One operation.
#[derive(Clone)]
pub enum Operation {
    /// Copies bytes; an address that is neither a device address nor registered is ordinary host memory.
    Copy { to: u64, from: u64, bytes: u64 },
    /// Fills 32-bit words.
    Fill { to: u64, word: u32, count: u64 },
    /// Runs a kernel.
    Kernel(Launch),
    /// Runs a product of cuBLASLt.
    Matmul(Box<Matmul>),
    /// Waits for words and writes words, in order.
    Words(Vec<WordOperation>),
    /// Marks an event as reached.
    Record(Arc<RecordedEvent>),
    /// Waits for an event.
    Wait(Arc<RecordedEvent>),
}

/// An operation on one 64-bit word.
#[derive(Clone, Copy)]
pub enum WordOperation {
    /// Waits until the word matches `value` according to `flags`: at least (0, circular), equal (1), a common bit (2),
    /// a bit clear in both (3).
    Wait { address: u64, value: u64, flags: u32 },
    /// Writes the word.
    Write { address: u64, value: u64 },
}

impl WordOperation {
    /// Converts from the driver's form.
    pub fn from_batch(operation: &BatchOperation) -> Result<Self, u32> {
        let BatchOperation { address, value, flags, .. } = *operation;
        match operation.operation {
            4 => Ok(Self::Wait { address, value, flags }),
            5 => Ok(Self::Write { address, value }),
            _ => Err(code::NOT_SUPPORTED),
        }
    }

    /// Converts to the driver's form.
    pub fn to_batch(self) -> BatchOperation {
        let (operation, address, value, flags) = match self {
            Self::Wait { address, value, flags } => (4, address, value, flags),
            Self::Write { address, value } => (5, address, value, 0),
        };
        BatchOperation { operation, padding: 0, address, value, flags, rest: [0; 5] }
    }

    fn run(self, given_up: &dyn Fn() -> bool) -> Result<(), u32> {
        match self {
            Self::Write { address, value } => word(address, |word| word.store(value, Ordering::Release)),
            Self::Wait { address, value, flags } => wait_until(given_up, || {
                word(address, |word| is_satisfied(word.load(Ordering::Acquire), value, flags))
            }),
        }
    }
}

impl Operation {
    /// Runs the operation. A long one stops when `given_up` returns `true`.
    ///
    /// # Errors
    /// The fault that the device would report.
    pub fn run(&self, given_up: &dyn Fn() -> bool) -> Result<(), u32> {
        match self {
            Self::Copy { to, from, bytes } => copy(*to, *from, *bytes),
            Self::Fill { to, word, count } => fill(*to, *word, *count),
            Self::Kernel(launch) => launch.run(given_up),
            Self::Matmul(matmul) => matmul.run(),
            Self::Words(all) => all.iter().try_for_each(|one| one.run(given_up)),
            Self::Record(mark) => {
                mark.reach();
                Ok(())
            }
            Self::Wait(mark) => {
                mark.wait(given_up);
                Ok(())
            }
        }
    }
}

fn is_satisfied(word: u64, value: u64, flags: u32) -> bool {
    match flags {
        0 => word.wrapping_sub(value).cast_signed() >= 0,
        1 => word == value,
        2 => word & value != 0,
        _ => (word | value) != u64::MAX,
    }
}

/// Returns the host pointer of bytes at an address; an ordinary host address is not checked, as in the driver.
fn host_pointer(view: &View, address: u64, bytes: u64) -> Result<*mut u8, u32> {
    match view.host(address, bytes) {
        Err(_) if address != 0 && address >> 56 == 0 => Ok(address as *mut u8),
        other => other,
    }
}

fn copy(to: u64, from: u64, bytes: u64) -> Result<(), u32> {
    let view = View::new();
    let (to, from) = (host_pointer(&view, to, bytes)?, host_pointer(&view, from, bytes)?);
    // SAFETY: both ranges are mapped, or are valid memory of the caller; the view keeps mappings during the copy.
    // `copy` allows overlapping ranges.
    unsafe { std::ptr::copy(from, to, bytes as usize) };
    Ok(())
}

fn fill(to: u64, word: u32, count: u64) -> Result<(), u32> {
    let view = View::new();
    let place = view.host(to, count * 4)?.cast::<u32>();
    if !place.is_aligned() {
        return Err(code::INVALID_VALUE);
    }
    for at in 0..count as usize {
        // SAFETY: inside the mapped range, which stays mapped while the view exists.
        unsafe { place.add(at).write(word) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_satisfied;

    #[test]
    fn a_wait_compares_as_the_driver_documents_it() {
        assert!(is_satisfied(5, 5, 0) && is_satisfied(6, 5, 0) && !is_satisfied(4, 5, 0));
        assert!(is_satisfied(1, u64::MAX, 0), "at least, on a circle");
        assert!(is_satisfied(5, 5, 1) && !is_satisfied(6, 5, 1));
        assert!(is_satisfied(6, 2, 2) && !is_satisfied(4, 2, 2));
    }
}
